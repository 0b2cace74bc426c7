"""A simulated world of masters, agents and clients in which faults are injected from a seed."""
