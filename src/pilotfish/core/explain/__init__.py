"""Answers questions of users and programs: rows, reasons, and the commands that fix a problem."""
