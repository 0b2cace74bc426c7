"""Measures the CPU time of a call by process, and the bytes that it writes to disk."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import Contestant, Figure, Options, Question, compare, layout
from benchmarks.peers import OURS, engine_contestants

QUESTION = Question(
    name="cost_of_a_task",
    title="cost of a no-op call",
    figures=[
        Figure("cpu_us_per_task", "CPU us", 1, higher_is_better=False),
        Figure("disk_bytes_per_task", "disk bytes", 0, higher_is_better=False),
    ],
    notes=["CPU time of all processes of a contestant; bytes written to its files (journal, logs)"],
)
ROLES = (("pilotfish.master ", "master"), ("pilotfish.agent local ", "agent and slots"))
"""Part of the command line of each of our processes, and its role."""


def role_of(process: dict[str, Any]) -> str:
    if process["client"]:
        return "client"
    return next((role for words, role in ROLES if words in process["command"]), "other")


def show_roles(rounds: Sequence[dict[str, Any]]) -> None:
    """Prints a table of our processes, from the round with the median cost."""
    usable = sorted((figures for figures in rounds if "processes" in figures), key=lambda figures: figures["cpu_us_per_task"])
    if not usable:
        return
    figures = usable[len(usable) // 2]
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for process in figures["processes"]:
        total = spent[role_of(process)]
        total[0] += 1
        total[1] += process["cpu_us_per_task"]
        total[2] += process["rss_mib"]
    rows = [["ours", "processes", "CPU us per task", "RSS MiB"]]
    rows += [[role, f"{count:.0f}", f"{cpu:.1f}", f"{rss:.0f}"] for role, (count, cpu, rss) in sorted(spent.items())]
    print(layout(rows))


def main(options: Options) -> int:
    kept: list[dict[str, Any]] = []

    def keep(contestant: Contestant) -> Contestant:
        def measure() -> dict[str, Any]:
            figures = contestant.measure()
            kept.append(figures)
            return figures

        return Contestant(contestant.name, contestant.kind, measure)

    contestants = [keep(one) if one.name == OURS else one for one in engine_contestants("cost", options)]
    status = compare(QUESTION, contestants, options)
    show_roles(kept)
    return status


if __name__ == "__main__":
    sys.exit(main(Options.from_command_line(__doc__)))
