"""Encodes Python calls and decodes their results."""
