"""Names the parts of predict, whatif and replay."""
