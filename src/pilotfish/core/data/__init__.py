"""Keeps which contents tasks need and make and where these contents are, and explains why a task waits for them."""
