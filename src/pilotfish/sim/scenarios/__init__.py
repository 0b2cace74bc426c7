"""Names the parts of `pilotfish simulate`."""
