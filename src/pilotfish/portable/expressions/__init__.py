"""Implements the language of requirements and ranks: syntax, evaluation, worker properties, matching by rank."""
