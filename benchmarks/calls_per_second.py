"""Measures no-op Python calls per second through submit and result."""

from __future__ import annotations

import sys

from benchmarks.harness import Figure, Goal, Options, Question, compare
from benchmarks.peers import POOL, engine_contestants

RATE = Figure("per_s", "calls/s")
QUESTION = Question(
    name="calls_per_second",
    title="no-op Python calls",
    figures=[RATE],
    goals=[
        Goal("at least 8 times the best distributed peer", RATE, ("peer",), 8.0),
        Goal("at least 2 times ProcessPoolExecutor", RATE, (POOL,), 2.0),
    ],
    notes=["all n calls are submitted, then all values are fetched and compared; n is sized so that this takes some seconds"],
)


def main(options: Options) -> int:
    return compare(QUESTION, engine_contestants("calls", options), options)


if __name__ == "__main__":
    sys.exit(main(Options.from_command_line(__doc__)))
