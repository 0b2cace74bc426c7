"""Backends: one module per batch system. ``interface`` defines what a backend is."""
