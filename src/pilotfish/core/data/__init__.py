"""Names the rules about contents."""
