"""Names the parts of the agent process."""
