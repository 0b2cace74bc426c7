"""Handles what clients ask: messages, commands and subscriptions."""
