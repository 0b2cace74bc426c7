"""Learns from ended tasks, transfers and queue waits."""
