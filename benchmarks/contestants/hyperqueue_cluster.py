"""HyperQueue's Python package. It does not return values, so each function writes its value to a file, which is read here."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import hyperqueue  # type: ignore[import-not-found]
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig  # type: ignore[import-not-found]
from hyperqueue.task.function import PythonEnv  # type: ignore[import-not-found]

from benchmarks.contestants.measure import WINDOW, Engine, main

WAIT_S = 120.0


def call_and_keep(function: Callable[..., Any], argument: Any, path: str) -> None:
    with open(path + ".part", "wb") as file:
        pickle.dump(function(argument), file, protocol=5)
    os.rename(path + ".part", path)


def wait_for_file(path: Path) -> None:
    """Waits until a file exists, within a millisecond. HyperQueue's own wait polls once a second, longer than the measured times."""
    deadline = time.monotonic() + WAIT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path} did not appear within {WAIT_S:.0f} s")
        time.sleep(0.0005)


class HyperqueueEngine(Engine):
    def start(self, workers: int) -> None:
        # Its progress bar would be part of the measurement.
        hyperqueue.client.create_progress_callback = lambda: lambda jobs: None
        self.directory = Path(tempfile.mkdtemp(prefix="values-"))
        self.cluster = LocalCluster(str(self.directory / "server"), WorkerConfig(cores=workers))
        self.client = self.cluster.client(python_env=PythonEnv(python_bin=sys.executable))
        self.numbers = itertools.count()
        self.time_true = self.time_true_programs

    def new_job(self) -> tuple[Path, Job]:
        directory = self.directory / str(next(self.numbers))
        directory.mkdir()
        return directory, Job(directory)

    def submit(self, function: Callable[..., Any], argument: Any) -> Any:
        return self.submit_many(function, [argument])

    def result(self, handle: Any) -> Any:
        return self.read_values(handle)[0]

    def submit_many(self, function: Callable[..., Any], arguments: Iterable[Any]) -> tuple[Path, int]:
        directory, job = self.new_job()
        count = 0
        for count, argument in enumerate(arguments, 1):
            job.function(call_and_keep, args=(function, argument, str(directory / str(count))), stdout=None, stderr=None)
        self.client.submit(job)
        return directory, count

    def read_values(self, handle: tuple[Path, int]) -> list[Any]:
        directory, count = handle
        values = []
        for number in range(1, count + 1):
            wait_for_file(directory / str(number))
            values.append(pickle.loads((directory / str(number)).read_bytes()))
        return values

    def call_all(self, function: Callable[..., Any], arguments: Iterable[Any]) -> Sequence[Any]:
        return self.read_values(self.submit_many(function, arguments))

    def call_windowed(self, function: Callable[..., Any], arguments: Iterable[Any]) -> Iterable[Any]:
        stream = iter(arguments)
        while batch := list(itertools.islice(stream, WINDOW)):
            yield from self.call_all(function, batch)

    def time_true_programs(self, count: int) -> float:
        """Returns the seconds until all tasks have started: their output files exist then, and at most one task per worker still runs."""
        directory, job = self.new_job()
        began = time.perf_counter()
        for number in range(count):
            job.program(["/bin/true"], stdout=str(directory / f"{number}.out"), stderr=str(directory / f"{number}.err"))
        submitted = self.client.submit(job)
        for number in range(count):
            wait_for_file(directory / f"{number}.err")
        elapsed = time.perf_counter() - began
        self.client.wait_for_jobs([submitted])
        return elapsed

    def stop(self) -> None:
        self.cluster.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def version(self) -> str:
        return importlib.metadata.version("hyperqueue")


if __name__ == "__main__":
    main(HyperqueueEngine())
