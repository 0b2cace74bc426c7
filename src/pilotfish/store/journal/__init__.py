"""Keeps the facts of a pool on disk. The journal is a log in files called segments, and snapshots that replace older segments."""
