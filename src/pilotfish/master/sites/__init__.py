"""Names the parts of site control."""
