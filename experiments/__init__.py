"""Reproductions of published experiments: `make experiments`."""
