"""Contains the commands that show and control runs, and that check the installation."""
