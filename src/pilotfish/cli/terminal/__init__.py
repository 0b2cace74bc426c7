"""Names terminal output."""
