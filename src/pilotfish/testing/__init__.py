"""Exports contract suites for plug-in authors."""
