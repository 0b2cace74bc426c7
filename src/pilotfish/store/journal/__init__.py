"""Names the parts of the journal."""
