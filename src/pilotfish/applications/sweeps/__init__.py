"""Names the sources of sweeps."""
