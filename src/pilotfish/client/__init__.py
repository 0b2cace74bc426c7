"""Says what client is: the one way to a master."""
