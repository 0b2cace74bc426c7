"""Simulates masters, agents and clients with faults injected from a seed."""
