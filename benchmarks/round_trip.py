"""Measures the round trip of single calls, one at a time, after warm-up."""

from __future__ import annotations

import sys

from benchmarks.harness import Figure, Goal, Options, Question, compare
from benchmarks.peers import POOL, engine_contestants

MEDIAN = Figure("p50_ms", "p50 ms", 2, higher_is_better=False)
QUESTION = Question(
    name="round_trip",
    title="round trip of one call",
    figures=[MEDIAN, Figure("p90_ms", "p90 ms", 2, higher_is_better=False), Figure("p99_ms", "p99 ms", 2, higher_is_better=False)],
    goals=[Goal("p50 at most 1 ms", MEDIAN, (), 1.0), Goal("p50 at most 2 times ProcessPoolExecutor", MEDIAN, (POOL,), 0.5)],
    notes=["pilotfish: facts are written before they take effect; the pool of one program does not wait for the disk (decision 0019)"],
)


def main(options: Options) -> int:
    return compare(QUESTION, engine_contestants("round_trip", options), options)


if __name__ == "__main__":
    sys.exit(main(Options.from_command_line(__doc__)))
