"""Pilotfish: one pool of workers out of the places you have."""
