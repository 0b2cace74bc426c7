"""Runs a pool live: event loop, sockets, journal and batch systems around the pure machine."""
