"""Holds the values that travel: frozen msgspec Structs, validated once when they enter and never changed."""
