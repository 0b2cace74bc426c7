"""Parsl's HighThroughputExecutor. PARSL_PREFETCH is the number of tasks that workers prefetch; PARSL_QUIET disables the log file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import parsl  # type: ignore[import-not-found]
from parsl.executors import HighThroughputExecutor  # type: ignore[import-not-found]
from parsl.providers import LocalProvider  # type: ignore[import-not-found]

from benchmarks.contestants.measure import Engine, main


class ParslEngine(Engine):
    def start(self, workers: int) -> None:
        executor = HighThroughputExecutor(
            label="benchmark",
            address="127.0.0.1",
            max_workers_per_node=workers,
            cores_per_worker=1e-6,
            prefetch_capacity=int(os.environ.get("PARSL_PREFETCH", "0")),
            provider=LocalProvider(init_blocks=1, min_blocks=1, max_blocks=1),
        )
        parsl.load(
            parsl.Config(
                executors=[executor],
                strategy="none",
                run_dir=os.path.join(os.environ["TMPDIR"], "runinfo"),
                initialize_logging="PARSL_QUIET" not in os.environ,
            )
        )
        self.applications: dict[Callable[..., Any], Any] = {}

    def submit(self, function: Callable[..., Any], argument: Any) -> Any:
        application = self.applications.get(function)
        if application is None:
            application = self.applications[function] = parsl.python_app(function)
        return application(argument)

    def stop(self) -> None:
        parsl.dfk().cleanup()
        parsl.clear()

    def version(self) -> str:
        return str(parsl.__version__)


if __name__ == "__main__":
    main(ParslEngine())
