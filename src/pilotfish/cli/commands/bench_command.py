"""Implements bench: measures the speed of this machine for ten seconds. The numbers are precise enough for a bug report."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import asdict, dataclass

import click

from pilotfish.cli.commands.doctor_commands import measure_sync
from pilotfish.cli.shared_options import json_option, old_option
from pilotfish.cli.terminal.screen import Column, Screen, duration, rate
from pilotfish.config import home

BURST = 2000
MAX_MEASURE_S = 3.0
COMMANDS = 400


@dataclass(frozen=True, slots=True)
class Measurement:
    what: str
    value: float
    unit: str
    meaning: str


COLUMNS = (
    Column("BENCHMARK", lambda measure: measure.what),
    Column("VALUE", lambda measure: duration(measure.value) if measure.unit == "s" else rate(measure.value), right=True),
    Column("MEANING", lambda measure: measure.meaning, elastic=True),
)


@click.command()
@click.option("--cores", type=click.IntRange(min=1), metavar="N", help="Cores to use.  [default: all]")
@old_option("--workers", "--cores")
@json_option
def bench(cores: int | None, as_json: bool) -> None:
    """Benchmark this machine for ten seconds."""
    cores = cores or len(os.sched_getaffinity(0))
    measures = [*measure_disk(), *measure_calls(cores), *measure_commands(cores)]
    screen = Screen.of()
    if as_json:
        screen.json({"cores": cores, "measures": [asdict(measure) for measure in measures]})
        return
    screen.table(COLUMNS, measures)


def measure_disk() -> list[Measurement]:
    place = home()
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    return [Measurement("fsync", measure_sync(place), "s", "to write a durable record at PILOTFISH_HOME")]


def measure_calls(cores: int) -> list[Measurement]:
    """Measure Python calls through an Executor: seconds to the first result, seconds per call, and calls per second."""
    from pilotfish import Executor

    def nothing(number: int) -> int:
        return number

    started = time.perf_counter()
    with Executor(max_workers=cores) as executor:
        executor.submit(nothing, 0).result()
        first = time.perf_counter() - started
        trips = []
        deadline = time.perf_counter() + MAX_MEASURE_S / 2
        while time.perf_counter() < deadline:
            before = time.perf_counter()
            executor.submit(nothing, 0).result()
            trips.append(time.perf_counter() - before)
        done = 0
        before = time.perf_counter()
        while time.perf_counter() - before < MAX_MEASURE_S:
            for future in [executor.submit(nothing, number) for number in range(BURST)]:
                future.result()
            done += BURST
        spent = time.perf_counter() - before
    return [
        Measurement("first call", first, "s", "to start master, worker and slot and get the first result"),
        Measurement("round trip", statistics.median(trips), "s", "of one call in an idle pool (median)"),
        Measurement("calls", done / spent, "1/s", f"no-op Python calls, {BURST:,} at a time, durable and encrypted"),
    ]


def measure_commands(cores: int) -> list[Measurement]:
    from pilotfish.cli.run_commands.attach_command import follow
    from pilotfish.client.temporary_pool import private_master

    with private_master(cores) as private:
        follow(private.master, private.submit([["true"]]), quiet=True)
        before = time.perf_counter()
        follow(private.master, private.submit([["true"]] * COMMANDS), quiet=True)
        spent = time.perf_counter() - before
    return [Measurement("commands", COMMANDS / spent, "1/s", "executables (true) with captured output")]
