"""Measures how soon many workers run, when the first one runs already."""

from __future__ import annotations

import dataclasses
import sys

from benchmarks.harness import Figure, Goal, Options, Question, compare
from benchmarks.peers import engine_contestants

WORKERS = 32
ALL_UP = Figure("all_up_s", "s", 2, higher_is_better=False)
QUESTION = Question(
    name="workers_up",
    title=f"{WORKERS} workers run",
    figures=[ALL_UP, Figure("count", "processes")],
    goals=[Goal("within 0.5 s", ALL_UP, (), 0.5)],
    notes=["from the submission of as many calls as there are workers until the last of them begins"],
)


def main(options: Options) -> int:
    options = dataclasses.replace(options, workers=WORKERS)
    return compare(QUESTION, engine_contestants("workers_up", options), options)


if __name__ == "__main__":
    sys.exit(main(Options.from_command_line(__doc__)))
