"""Describes executables: command line, files, environment and working directory of tasks that run a program."""
