"""Keeps the facts of a pool on disk: an append-only log in segments, and snapshots."""
