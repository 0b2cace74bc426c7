"""Output to the terminal: tables, progress, errors."""
