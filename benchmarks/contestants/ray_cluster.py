"""Ray: one local node, one remote function per workload."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray  # type: ignore[import-not-found]

from benchmarks.contestants.measure import Engine, main


class RayEngine(Engine):
    def start(self, workers: int) -> None:
        directory = os.environ["TMPDIR"]
        # Ray puts Unix sockets below its directory, whose paths may not exceed 107 bytes.
        options = {"_temp_dir": directory} if len(directory) < 40 else {}
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR", **options)
        self.remote: dict[Callable[..., Any], Any] = {}

    def submit(self, function: Callable[..., Any], argument: Any) -> Any:
        remote = self.remote.get(function)
        if remote is None:
            remote = self.remote[function] = ray.remote(function)
        return remote.remote(argument)

    def result(self, handle: Any) -> Any:
        return ray.get(handle)

    def call_all(self, function: Callable[..., Any], arguments: Iterable[Any]) -> Sequence[Any]:
        values: list[Any] = ray.get([self.submit(function, argument) for argument in arguments])
        return values

    def stop(self) -> None:
        ray.shutdown()

    def version(self) -> str:
        return str(ray.__version__)


if __name__ == "__main__":
    main(RayEngine())
