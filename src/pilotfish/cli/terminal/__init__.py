"""Writes output to the terminal: tables, progress, errors."""
