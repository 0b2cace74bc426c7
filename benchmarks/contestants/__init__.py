"""Programs that run inside each contestant's own environment: standard library and the contestant, nothing else."""
