"""Keeps a pool on disk: the journal of facts, large payloads, and the lock against a second master."""
