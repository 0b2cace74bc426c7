"""Names the rules about pilots and sites."""
