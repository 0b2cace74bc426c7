"""The slot process."""
