#!/usr/bin/env python3
"""Prints the mean amplitude of a damped, randomly driven oscillator. Usage: oscillator.py DAMPING SEED

It replaces a real simulation: a few tenths of a second of computing and one line of result, with the standard library only.
"""

import math
import random
import sys

STEPS = 120_000
STEP_S = 0.002


def mean_amplitude(damping: float, seed: int) -> float:
    """Returns the root mean square of the position, without the first tenth of the steps."""
    rng = random.Random(seed)
    position, velocity, total = 1.0, 0.0, 0.0
    push = math.sqrt(STEP_S)
    for step in range(STEPS):
        velocity += (-position - damping * velocity) * STEP_S + push * rng.gauss(0.0, 1.0)
        position += velocity * STEP_S
        if step > STEPS // 10:
            total += position * position
    return math.sqrt(total / (STEPS * 0.9))


if __name__ == "__main__":
    print(f"{mean_amplitude(float(sys.argv[1]), int(sys.argv[2])):.4f}")
