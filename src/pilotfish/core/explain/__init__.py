"""Names rows, reasons and remedies."""
