"""Names the rules about workers."""
