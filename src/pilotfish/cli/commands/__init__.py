"""Contains the commands that start, show and control runs, and that check the installation."""
