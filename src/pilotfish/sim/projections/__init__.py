"""Implements `pilotfish predict`, `pilotfish whatif` and `pilotfish replay`."""
