"""Reads the sources of sweeps: parameter values, tables and task list files."""
