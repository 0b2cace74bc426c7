"""Measures the rate of payloads of 1 MiB to a task and back."""

from __future__ import annotations

import sys

from benchmarks.harness import Figure, Goal, Options, Question, compare
from benchmarks.peers import engine_contestants

RATE = Figure("mib_per_s", "MiB/s")


def question(form: str) -> Question:
    return Question(
        name=f"payloads_{form}",
        title=f"1 MiB of {form} in and out",
        figures=[RATE],
        goals=[Goal("at least as fast as the best distributed peer", RATE, ("peer",), 1.0)],
        notes=["MiB/s each way: n x 1 MiB / elapsed, at most 32 calls at a time"],
    )


def main(options: Options) -> int:
    """Measures bytes, then numpy arrays, which some contestants transfer without a copy."""
    statuses = [compare(question(form), engine_contestants("payloads", options, ("--form", form)), options) for form in ("bytes", "numpy")]
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main(Options.from_command_line(__doc__)))
