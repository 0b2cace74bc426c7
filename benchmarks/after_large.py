"""Measures the round trip of a small call just after a call with a large argument and result."""

from __future__ import annotations

import sys

from benchmarks.harness import Figure, Goal, Options, Question, compare
from benchmarks.peers import POOL, engine_contestants

AFTER = Figure("after_ms", "ms after", 2, higher_is_better=False)
QUESTION = Question(
    name="after_large",
    title="a small call after a large one",
    figures=[
        AFTER,
        Figure("after_max_ms", "longest", 1, higher_is_better=False),
        Figure("large_ms", "8 MiB ms", 1, higher_is_better=False),
    ],
    goals=[Goal("at most 2 times ProcessPoolExecutor", AFTER, (POOL,), 0.5)],
    notes=["the large call sends 8 MiB of bytes and gets them back; the small call follows at once"],
)


def main(options: Options) -> int:
    return compare(QUESTION, engine_contestants("after_large", options), options)


if __name__ == "__main__":
    sys.exit(main(Options.from_command_line(__doc__)))
