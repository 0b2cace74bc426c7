#!/usr/bin/env python3
"""A damped oscillator, pushed at random: how far does it swing on average? Usage: oscillator.py DAMPING SEED

A stand-in for a real simulation: some tenths of a second of computing, one line of result. Only the standard library.
"""

import math
import random
import sys

STEPS = 120_000
STEP_S = 0.002


def mean_amplitude(damping: float, seed: int) -> float:
    """The root mean square of the position, after the first tenth has been forgotten."""
    dice = random.Random(seed)
    position, velocity, total = 1.0, 0.0, 0.0
    push = math.sqrt(STEP_S)
    for step in range(STEPS):
        velocity += (-position - damping * velocity) * STEP_S + push * dice.gauss(0.0, 1.0)
        position += velocity * STEP_S
        if step > STEPS // 10:
            total += position * position
    return math.sqrt(total / (STEPS * 0.9))


if __name__ == "__main__":
    print(f"{mean_amplitude(float(sys.argv[1]), int(sys.argv[2])):.4f}")
