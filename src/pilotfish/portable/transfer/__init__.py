"""Names the parts of file transfer: protocol, client, server, cache."""
