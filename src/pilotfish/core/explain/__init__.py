"""Answers questions of users and programs with rows, reasons, and the commands that fix a problem."""
