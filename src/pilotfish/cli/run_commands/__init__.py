"""Contains the commands that start a run, follow it and run its tasks again."""
