"""Checks invariants of every simulated world."""
