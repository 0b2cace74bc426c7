"""Measures the time from nothing to the first result."""

from __future__ import annotations

import sys

from benchmarks.commands import measured, pilotfish_run_cold
from benchmarks.harness import Contestant, Figure, Goal, Options, Question, compare
from benchmarks.peers import engine_contestants

COLD = Figure("cold_s", "s", 2, higher_is_better=False)
OURS = "pilotfish run"
QUESTION = Question(
    name="cold_start",
    title="from nothing to the first result",
    figures=[
        COLD,
        Figure("task_ran_s", "task ran after s", 2, higher_is_better=False),
        Figure("warm_command_s", "second command s", 2, higher_is_better=False),
    ],
    goals=[Goal("the first `pilotfish run` ends within 1.5 s", COLD, (), 1.5, ours=OURS)],
    notes=[
        "from the start of a Python process to its first value, imports included; pilotfish run: to the end of the command",
        "cold means that no process of the contestant runs; its files may be in the page cache",
    ],
)


def main(options: Options) -> int:
    contestants = [Contestant(OURS, "ours", measured(lambda: pilotfish_run_cold(options))), *engine_contestants("first", options)]
    return compare(QUESTION, contestants, options)


if __name__ == "__main__":
    sys.exit(main(Options.from_command_line(__doc__)))
