"""Answers questions of people and programs: rows, reasons, and the commands that fix a problem."""
