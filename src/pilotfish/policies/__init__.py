"""Policies propose which task goes to which worker."""
