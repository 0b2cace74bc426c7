"""Compares the speed of Pilotfish with other systems. Each module is one benchmark; ``python -m benchmarks`` runs them all."""
