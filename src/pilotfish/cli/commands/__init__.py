"""Names the commands."""
