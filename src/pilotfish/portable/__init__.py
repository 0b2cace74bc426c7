"""Says what portable means: standard library only, Python 3.8+."""
