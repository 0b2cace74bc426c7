"""Names the site commands."""
