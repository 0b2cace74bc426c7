"""Connects commands and programs to the master of a pool."""
