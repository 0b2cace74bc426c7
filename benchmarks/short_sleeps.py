"""Measures the utilisation of two workers with tasks of 1 ms."""

from __future__ import annotations

import sys

from benchmarks.harness import Figure, Goal, Options, Question, compare
from benchmarks.peers import engine_contestants

EFFICIENCY = Figure("efficiency", "efficiency", 2)
QUESTION = Question(
    name="short_sleeps",
    title="sleeps of 1 ms",
    figures=[EFFICIENCY],
    goals=[Goal("at least 75 % efficient", EFFICIENCY, (), 0.75)],
    notes=["efficiency = n x 1 ms / workers / elapsed; the sleep itself takes longer than 1 ms, so 1.00 is not possible"],
)


def main(options: Options) -> int:
    return compare(QUESTION, engine_contestants("sleeps", options), options)


if __name__ == "__main__":
    sys.exit(main(Options.from_command_line(__doc__)))
