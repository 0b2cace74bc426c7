"""Names the rules about tasks."""
