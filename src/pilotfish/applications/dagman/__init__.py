"""Names the parts of DAGMan support."""
