"""Commands that estimate and simulate."""
