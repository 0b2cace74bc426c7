"""File transfer: protocol, client, server, content cache."""
