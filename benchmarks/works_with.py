"""Measures how long other libraries take with Pilotfish, compared with ProcessPoolExecutor."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.harness import Contestant, Figure, Goal, Options, Question, compare
from benchmarks.peers import OURS, POOL, Unavailable, python_of, run_program

ENVIRONMENT = "works-with"
LIBRARIES = ("scipy", "emcee", "optuna", "adaptive", "pymoo", "tqdm", "dask", "asyncio")
FIGURES = [Figure(f"ms_{duration}", f"ms, calls of {duration} ms", 2, higher_is_better=False) for duration in (10, 50)]


def question(library: str) -> Question:
    return Question(
        name=f"works_with_{library}",
        title=library,
        figures=FIGURES,
        goals=[Goal(f"at most 1.3 times ProcessPoolExecutor: {figure.title}", figure, (POOL,), 1 / 1.3) for figure in FIGURES],
        notes=["ms = elapsed x workers / calls; the calls sleep"],
    )


def contestants(library: str, options: Options) -> list[Contestant]:
    def measure(executor: str) -> dict[str, Any]:
        try:
            python = python_of(ENVIRONMENT, options.cache)
        except Unavailable as why:
            return {"error": str(why)}
        program = ["-m", "benchmarks.contestants.libraries", library, executor]
        return run_program(python, [*program, "--workers", str(options.workers), "--seconds", str(options.seconds)], {})

    return [Contestant(POOL, "floor", lambda: measure("processpool")), Contestant(OURS, "ours", lambda: measure("pilotfish"))]


def main(options: Options) -> int:
    return max(compare(question(library), contestants(library, options), options) for library in LIBRARIES)


if __name__ == "__main__":
    sys.exit(main(Options.from_command_line(__doc__)))
