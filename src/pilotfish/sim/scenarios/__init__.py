"""Implements `pilotfish simulate`."""
