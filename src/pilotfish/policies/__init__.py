"""Contains the policies. A policy decides which task goes to which worker."""
