"""Keeps pilots and sites, and handles news about them."""
