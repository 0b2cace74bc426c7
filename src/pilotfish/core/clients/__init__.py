"""Names the rules about clients."""
