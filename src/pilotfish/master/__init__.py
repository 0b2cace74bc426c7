"""Runs a pool: connects the pure machine to an event loop, sockets, the journal and batch systems."""
