"""Implements a connection: frames, TLS and handshake."""
