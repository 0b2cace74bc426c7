"""Keeps which contents tasks need and make, where they are, and explains why a task waits for them."""
