"""Names the language of requirements and ranks."""
