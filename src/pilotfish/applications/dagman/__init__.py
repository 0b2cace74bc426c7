"""Supports DAGMan files: DAG files, submit descriptions and rescue files."""
