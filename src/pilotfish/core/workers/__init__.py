"""Contains the rules about workers: messages of agents, leases and site masters."""
