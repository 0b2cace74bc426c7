"""Records which contents tasks need and make, and where these contents are. Explains why a task waits for contents."""
