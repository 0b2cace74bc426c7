"""Contains the commands that start a run, show its progress and run its tasks again."""
