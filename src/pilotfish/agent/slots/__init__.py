"""Names the parts of a slot process."""
