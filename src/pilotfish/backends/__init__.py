"""A backend is the adapter for one batch system, one module each. ``interface`` defines what a backend is."""
