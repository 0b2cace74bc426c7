"""Describes runs and their tasks: what a command line, a task list or a sweep asks for, checked before it is submitted."""
