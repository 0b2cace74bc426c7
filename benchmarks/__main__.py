"""Runs all benchmarks, or some, one after the other: ``python -m benchmarks [QUESTION ...]``."""

from __future__ import annotations

import argparse
import importlib
import sys

from benchmarks.harness import Options

QUESTIONS = (
    "calls_per_second",
    "round_trip",
    "executables_per_second",
    "short_sleeps",
    "payloads",
    "cold_start",
    "workers_up",
    "after_large",
    "works_with",
    "pending_calls",
    "cost_of_a_task",
    "million_tasks",
    "connections",
    "transfers",
    "planning",
    "predictions",
    "shared_files",
    "policies",
    "simulator",
    "workflows",
    "awlb",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare Pilotfish with the other systems, on this machine.")
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"benchmarks to run [default: all]: {', '.join(QUESTIONS)}")
    Options.add_to(parser)
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.questions) - set(QUESTIONS))
    if unknown:
        parser.error(f"unknown benchmark: {', '.join(unknown)}; available: {', '.join(QUESTIONS)}")
    options = Options.from_namespace(chosen)
    status = 0
    for name in chosen.questions or QUESTIONS:
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"\n== {name}: {(module.__doc__ or '').strip()}", flush=True)
        status = max(status, module.main(options))
        sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
