"""Delivers and decodes the outputs of tasks."""
