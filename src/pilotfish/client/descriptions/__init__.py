"""Reads the runs and tasks that a command line, a task list or a sweep requests, and checks them before submission."""
