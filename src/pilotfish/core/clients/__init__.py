"""Handles messages, commands and subscriptions of clients."""
