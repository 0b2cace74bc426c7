"""Reproduces published experiments: `make experiments`."""
