"""Implements predict, whatif and replay."""
