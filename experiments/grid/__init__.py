"""Compares pilot factories on unreliable grids."""
