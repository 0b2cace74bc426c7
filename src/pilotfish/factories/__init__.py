"""Strategies propose pilots: how many, where, how big, and why."""
