"""Names the commands that estimate."""
