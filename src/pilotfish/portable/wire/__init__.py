"""Names the parts of a connection: frames, TLS, handshake."""
