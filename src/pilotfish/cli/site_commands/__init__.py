"""Contains the commands about sites and pilots."""
