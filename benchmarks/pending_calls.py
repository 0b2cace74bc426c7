"""Measures the memory of the calling program for each call that has no result yet."""

from __future__ import annotations

import sys

from benchmarks.harness import Figure, Goal, Options, Question, compare
from benchmarks.peers import engine_contestants

BYTES = Figure("bytes_per_call", "bytes", 0, higher_is_better=False)
QUESTION = Question(
    name="pending_calls",
    title="memory of the caller per pending call",
    figures=[BYTES],
    goals=[Goal("at most 1 kB", BYTES, (), 1000.0)],
    notes=["growth of the resident memory during 50,000 submissions"],
)


def main(options: Options) -> int:
    return compare(QUESTION, engine_contestants("pending", options), options)


if __name__ == "__main__":
    sys.exit(main(Options.from_command_line(__doc__)))
