"""How fast is it, next to what else there is? One question per module; ``python -m benchmarks`` asks them all."""
