"""Keeps pilots and sites, and handles reports about them."""
