"""Contains the commands that estimate finish times and simulate runs."""
