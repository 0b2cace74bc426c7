"""Contains the policies. A policy proposes which task goes to which worker."""
