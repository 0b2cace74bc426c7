"""Measures an engine that can call functions. All engines are measured in the same way.

An engine module defines a subclass of Engine and ends with ``main(ItsEngine())``. The output is one line, ``RESULT {json}``.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.contestants import workloads
from benchmarks.contestants.processes import MARK, bytes_below, marked_processes
from benchmarks.contestants.sizing import sized_run

MEBIBYTE = 1024 * 1024
WINDOW = 32
ROUND_TRIP_WARM_UP = 50
PENDING = 50_000


class Engine:
    """A contestant that calls functions in other processes."""

    time_true: Callable[[int], float] | None = None
    """Returns the seconds of n times /bin/true with captured output. None unless the contestant can run programs itself."""

    def start(self, workers: int) -> None:
        raise NotImplementedError

    def submit(self, function: Callable[..., Any], argument: Any) -> Any:
        raise NotImplementedError

    def result(self, handle: Any) -> Any:
        return handle.result()

    def call_all(self, function: Callable[..., Any], arguments: Iterable[Any]) -> Sequence[Any]:
        handles = [self.submit(function, argument) for argument in arguments]
        return [self.result(handle) for handle in handles]

    def call_windowed(self, function: Callable[..., Any], arguments: Iterable[Any]) -> Iterable[Any]:
        """Yields results in order, with at most WINDOW calls at a time, because all arguments together do not fit into memory."""
        pending: deque[Any] = deque()
        for argument in arguments:
            if len(pending) >= WINDOW:
                yield self.result(pending.popleft())
            pending.append(self.submit(function, argument))
        while pending:
            yield self.result(pending.popleft())

    def stop(self) -> None:
        raise NotImplementedError

    def version(self) -> str:
        return ""


def timed_calls(engine: Engine, function: Callable[..., Any]) -> Callable[[int], float]:
    def run(count: int) -> float:
        began = time.perf_counter()
        values = engine.call_all(function, range(count))
        elapsed = time.perf_counter() - began
        if list(values) != list(range(count)):
            raise RuntimeError("the contestant returned values that differ from those sent")
        return elapsed

    return run


def ask_calls(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    count, elapsed = sized_run(timed_calls(engine, workloads.nothing), options.seconds)
    return {"count": count, "elapsed_s": elapsed, "per_s": count / elapsed}


def ask_sleeps(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    count, elapsed = sized_run(timed_calls(engine, workloads.nap), options.seconds)
    return {"count": count, "elapsed_s": elapsed, "efficiency": count * workloads.SLEEP_S / options.workers / elapsed}


def ask_round_trip(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    warm_until = time.perf_counter() + options.seconds / 3
    for number in range(ROUND_TRIP_WARM_UP):
        engine.result(engine.submit(workloads.nothing, number))
        if time.perf_counter() > warm_until:
            break
    times: list[float] = []
    end = time.perf_counter() + options.seconds
    while len(times) < 20 or time.perf_counter() < end:
        began = time.perf_counter()
        engine.result(engine.submit(workloads.nothing, len(times)))
        times.append((time.perf_counter() - began) * 1000)
    times.sort()
    return {"count": len(times), **{f"p{part}_ms": times[min(len(times) - 1, len(times) * part // 100)] for part in (50, 90, 99)}}


def ask_executables(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    def run(count: int) -> float:
        began = time.perf_counter()
        values = engine.call_all(workloads.run_true, range(count))
        elapsed = time.perf_counter() - began
        if any(tuple(value) != (0, b"", b"") for value in values):
            raise RuntimeError("a /bin/true failed")
        return elapsed

    count, elapsed = sized_run(engine.time_true or run, options.seconds)
    return {"count": count, "elapsed_s": elapsed, "per_s": count / elapsed}


def payloads_of(form: str) -> list[Any]:
    """Returns different payloads of 1 MiB each, so that no contestant can send one payload once for all calls."""
    if form == "bytes":
        return [os.urandom(MEBIBYTE) for _ in range(8)]
    numpy = importlib.import_module("numpy")
    return [numpy.frombuffer(os.urandom(MEBIBYTE), dtype=numpy.uint8).view(numpy.float64) for _ in range(8)]


def ask_payloads(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    if options.form == "numpy" and importlib.util.find_spec("numpy") is None:
        return {"error": "numpy is not installed in this environment"}
    payloads = payloads_of(options.form)

    def run(count: int) -> float:
        began = time.perf_counter()
        received = 0
        for value in engine.call_windowed(workloads.echo, (payloads[number % len(payloads)] for number in range(count))):
            received += memoryview(value).nbytes
        if received != count * MEBIBYTE:
            raise RuntimeError("the contestant returned fewer bytes than were sent")
        return time.perf_counter() - began

    count, elapsed = sized_run(run, options.seconds)
    return {"count": count, "elapsed_s": elapsed, "mib_per_s": count / elapsed}


def ask_first(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    """Measures nothing more: ``main`` already has the time of the first result."""
    return {}


def ask_workers_up(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    """Measures the seconds until as many calls as there are workers have begun, when one worker runs already."""
    began = time.time()
    handles = [engine.submit(workloads.begin_and_hold, options.seconds) for _ in range(options.workers)]
    begun = [engine.result(handle) for handle in handles]
    processes = len({pid for pid, _ in begun})
    return {"count": processes, "all_up_s": max(at for _, at in begun) - began}


def ask_after_large(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    """Measures a call with 8 MiB in and out, and the round trip of a small call just after it."""
    data = os.urandom(8 * MEBIBYTE)
    large: list[float] = []
    small: list[float] = []
    end = time.perf_counter() + options.seconds
    while len(large) < 5 or time.perf_counter() < end:
        for times, function, argument in ((large, workloads.echo, data), (small, workloads.nothing, 1)):
            began = time.perf_counter()
            engine.result(engine.submit(function, argument))
            times.append((time.perf_counter() - began) * 1000)
    large.sort()
    small.sort()
    return {"count": len(small), "large_ms": large[len(large) // 2], "after_ms": small[len(small) // 2], "after_max_ms": small[-1]}


def ask_pending(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    """Measures the memory of the caller for each call that has no result yet."""
    blocked = [engine.submit(workloads.begin_and_hold, 3 * options.seconds) for _ in range(options.workers)]
    before = own_rss_bytes()
    handles = [engine.submit(workloads.nothing, number) for number in range(PENDING)]
    time.sleep(1.0)
    used = own_rss_bytes() - before
    for handle in [*blocked, *handles]:
        engine.result(handle)
    return {"count": PENDING, "bytes_per_call": used / PENDING}


def own_rss_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ask_cost(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the CPU time of every process of the contestant during a series of calls, and the bytes written below its directory."""
    run = timed_calls(engine, workloads.nothing)
    count, _ = sized_run(run, options.seconds)
    mark = os.environ[MARK]
    before, bytes_before = marked_processes(mark), bytes_below(os.environ["TMPDIR"])
    elapsed = run(count)
    after, bytes_after = marked_processes(mark), bytes_below(os.environ["TMPDIR"])
    used: list[dict[str, Any]] = []
    for pid, process in after.items():
        earlier = before[pid].cpu_s if pid in before else 0.0
        used.append(
            {
                "pid": pid,
                "parent": process.parent,
                "client": pid == os.getpid(),
                "command": process.command[:300],
                "cpu_us_per_task": (process.cpu_s - earlier) / count * 1e6,
                "rss_mib": process.rss_bytes / MEBIBYTE,
            }
        )
    total = sum(item["cpu_us_per_task"] for item in used)
    disk = (bytes_after - bytes_before) / count
    return {"count": count, "elapsed_s": elapsed, "cpu_us_per_task": total, "disk_bytes_per_task": disk, "processes": used}


QUESTIONS: dict[str, Callable[[Engine, argparse.Namespace], dict[str, Any]]] = {
    "calls": ask_calls,
    "sleeps": ask_sleeps,
    "round_trip": ask_round_trip,
    "executables": ask_executables,
    "payloads": ask_payloads,
    "first": ask_first,
    "workers_up": ask_workers_up,
    "after_large": ask_after_large,
    "pending": ask_pending,
    "cost": ask_cost,
}


def main(engine: Engine) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("question", choices=sorted(QUESTIONS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--form", choices=("bytes", "numpy"), default="bytes")
    options = parser.parse_args()
    began = time.perf_counter()
    engine.start(options.workers)
    try:
        if engine.result(engine.submit(workloads.nothing, 7)) != 7:
            raise RuntimeError("the first call returned a value that differs from the one sent")
        answer: dict[str, Any] = {"first_result_at": time.time(), "start_s": time.perf_counter() - began}
        answer.update(QUESTIONS[options.question](engine, options))
        answer["version"] = engine.version()
        # Printed before the engine stops, because the stop is not measured and may hang.
        print("RESULT " + json.dumps(answer), flush=True)
    finally:
        engine.stop()
    sys.stdout.flush()
