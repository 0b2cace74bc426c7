"""Compares contestants: they take turns in one run; results are medians of the rounds and ratios within the same round.

The machine is shared and noisy. Absolute figures vary, but the ratio of two figures from the same minute is reliable.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["floor", "pool", "peer", "ours"]


@dataclass(frozen=True)
class Options:
    """Options of every benchmark."""

    out: Path | None
    cache: Path
    rounds: int
    seconds: float
    workers: int
    only: tuple[str, ...]
    strict: bool

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser) -> None:
        default_cache = os.environ.get("PILOTFISH_BENCH_CACHE", "~/.cache/pilotfish-bench")
        parser.add_argument("--out", type=Path, help="directory to write the results to, as JSON")
        parser.add_argument("--cache", type=Path, default=Path(default_cache), help="directory of the peers' environments")
        parser.add_argument("--rounds", type=int, default=3, help="number of measurements of every contestant")
        parser.add_argument("--seconds", type=float, default=3.0, help="approximate seconds of one measurement")
        parser.add_argument("--workers", type=int, default=2)
        parser.add_argument("--only", default="", help="contestants to measure: comma-separated prefixes of their names")
        parser.add_argument("--strict", action="store_true", help="exit with 1 when a goal is missed")

    @classmethod
    def from_namespace(cls, chosen: argparse.Namespace) -> Options:
        only = tuple(name.strip().lower() for name in chosen.only.split(",") if name.strip())
        cache = chosen.cache.expanduser().absolute()
        return cls(chosen.out, cache, chosen.rounds, chosen.seconds, chosen.workers, only, chosen.strict)

    @classmethod
    def from_command_line(cls, description: str) -> Options:
        parser = argparse.ArgumentParser(description=description)
        cls.add_to(parser)
        return cls.from_namespace(parser.parse_args())


@dataclass(frozen=True)
class Contestant:
    """A system to measure. ``measure`` returns figures by name, or {"error": reason}."""

    name: str
    kind: Kind
    measure: Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Figure:
    """A measured quantity."""

    key: str
    title: str
    digits: int = 0
    higher_is_better: bool = True


@dataclass(frozen=True)
class Goal:
    """A bound for the ratio of our figure to that of others (inverted when lower is better), or for our figure alone."""

    text: str
    figure: Figure
    against: tuple[str, ...]
    """Kinds or names of the other contestants; the best of them counts. Empty: our figure alone."""
    bound: float
    ours: str = "pilotfish"


@dataclass
class Standing:
    """The results of one contestant."""

    name: str
    kind: Kind
    rounds: list[dict[str, Any]]

    def values(self, key: str) -> list[float]:
        return [figures[key] for figures in self.rounds if key in figures]

    def median(self, key: str) -> float | None:
        values = self.values(key)
        return statistics.median(values) if values else None

    def error(self) -> str:
        return next((str(figures["error"]) for figures in self.rounds if "error" in figures), "")


@dataclass(frozen=True)
class Question:
    name: str
    title: str
    figures: Sequence[Figure]
    goals: Sequence[Goal] = ()
    notes: Sequence[str] = ()


def take_turns(contestants: Sequence[Contestant], options: Options) -> list[Standing]:
    """Measures each contestant once per round. Each round starts with another one, so that the order favours none."""
    chosen = [one for one in contestants if not options.only or one.name.lower().startswith(options.only)]
    standings = {one.name: Standing(one.name, one.kind, []) for one in chosen}
    for number in range(options.rounds):
        first = number % len(chosen) if chosen else 0
        for one in [*chosen[first:], *chosen[:first]]:
            began = time.monotonic()
            figures = one.measure()
            figures["load"] = os.getloadavg()[0]
            standings[one.name].rounds.append(figures)
            outcome = figures.get("error") or ", ".join(
                f"{key} {value:.4g}" for key, value in figures.items() if isinstance(value, int | float) and key != "first_result_at"
            )
            print(f"  round {number + 1} {one.name} ({time.monotonic() - began:.0f} s): {outcome}", file=sys.stderr, flush=True)
    return list(standings.values())


def ratio(one: Standing, other: Standing, figure: Figure) -> float | None:
    """Returns how many times better ``one`` is than ``other``: the median over the rounds in which both have the figure."""
    ratios = []
    for mine, theirs in zip(one.rounds, other.rounds, strict=True):
        if mine.get(figure.key) and theirs.get(figure.key):
            better = mine[figure.key] / theirs[figure.key]
            ratios.append(better if figure.higher_is_better else 1 / better)
    return statistics.median(ratios) if ratios else None


def judge(goal: Goal, standings: Sequence[Standing]) -> dict[str, Any]:
    """Tests whether a goal is met; ``met`` is None when it could not be measured."""
    ours = next((one for one in standings if one.name == goal.ours), None)
    seen: float | None = None
    rival = ""
    if ours is not None and not goal.against:
        seen = ours.median(goal.figure.key)
    elif ours is not None:
        others = [one for one in standings if one is not ours and (one.kind in goal.against or one.name in goal.against)]
        pairs = [(found, one.name) for one in others if (found := ratio(ours, one, goal.figure)) is not None]
        if pairs:
            seen, rival = min(pairs)
    met = None
    if seen is not None:
        at_least = goal.figure.higher_is_better or bool(goal.against)
        met = seen >= goal.bound if at_least else seen <= goal.bound
    return {"goal": goal.text, "bound": goal.bound, "seen": seen, "rival": rival, "met": met}


def layout(rows: Sequence[Sequence[str]]) -> str:
    """Formats rows as aligned columns; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines)


def table(question: Question, standings: Sequence[Standing]) -> str:
    """Formats one row per contestant: medians, range of the first figure, and our ratio in the same rounds."""
    main_figure = question.figures[0]
    measured = [one for one in standings if one.values(main_figure.key)]
    reference = next((one for one in measured if one.kind == "ours"), next(iter(measured), None))
    heading = [question.title, *(figure.title for figure in question.figures), "least..most", "n"]
    rows = [[*heading, f"{reference.name} is x times better" if reference else ""]]
    complaints = []
    for one in standings:
        values = one.values(main_figure.key)
        if one.error() or not values:
            complaints.append(f"{one.name}: {one.error() or 'no figure'}")
        if not values:
            rows.append([one.name, *("-" for _ in question.figures), "", "", ""])
            continue
        medians = [one.median(figure.key) for figure in question.figures]
        cells = ["-" if value is None else f"{value:,.{figure.digits}f}" for value, figure in zip(medians, question.figures, strict=True)]
        spread = f"{min(values):,.{main_figure.digits}f}..{max(values):,.{main_figure.digits}f}"
        counts = one.median("count")
        compared = ratio(reference, one, main_figure) if reference else None
        rows.append([one.name, *cells, spread, "" if counts is None else f"{counts:.0f}", "" if compared is None else f"{compared:.2f}"])
    return "\n".join([layout(rows), *(f"! {complaint}" for complaint in complaints)])


def describe_machine() -> dict[str, Any]:
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cores": os.cpu_count(),
        "processor": models[0] if models else platform.machine(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load": list(os.getloadavg()),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def write_json(out: Path | None, name: str, content: dict[str, Any]) -> None:
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(content, indent=1, default=str) + "\n")


def show_goals(verdicts: Sequence[dict[str, Any]]) -> None:
    for verdict in verdicts:
        seen, rival = verdict["seen"], verdict["rival"]
        word = {True: "met", False: "MISSED", None: "not measured"}[verdict["met"]]
        detail = "" if seen is None else f": {seen:.3g}" + (f" (against {rival})" if rival else "")
        print(f"goal {word}: {verdict['goal']}{detail}")


def compare(question: Question, contestants: Sequence[Contestant], options: Options) -> int:
    """Runs a benchmark, prints the table and writes the JSON; returns the exit status."""
    machine = describe_machine()
    print(f"{question.name}: {question.title}; {options.workers} workers, {options.rounds} rounds", file=sys.stderr)
    standings = take_turns(contestants, options)
    verdicts = [judge(goal, standings) for goal in question.goals]
    print(table(question, standings))
    show_goals(verdicts)
    for note in question.notes:
        print(f"note: {note}")
    content = {"question": question.name, "title": question.title, "machine": machine, "workers": options.workers}
    results = [
        {
            "name": one.name,
            "kind": one.kind,
            "medians": {figure.key: one.median(figure.key) for figure in question.figures},
            "rounds": one.rounds,
        }
        for one in standings
    ]
    content.update(figures=[asdict(figure) for figure in question.figures], contestants=results, goals=verdicts, notes=list(question.notes))
    write_json(options.out, question.name, content)
    return 1 if options.strict and any(verdict["met"] is not True for verdict in verdicts) else 0
