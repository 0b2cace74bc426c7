"""Contains one module per backend. A backend is the adapter for one kind of system. ``interface`` defines what a backend does."""
