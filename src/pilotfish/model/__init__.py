"""Defines the values that are sent and stored: frozen msgspec Structs, validated once when they enter and never changed."""
