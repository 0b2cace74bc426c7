"""Contains one module per backend, the adapter for one batch system. ``interface`` defines backends."""
