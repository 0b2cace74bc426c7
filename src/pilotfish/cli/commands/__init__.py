"""Contains the commands that show runs, control runs or check the installation."""
