"""Finds earlier results for the tasks of new runs and of reruns, and explains why a task has none."""
