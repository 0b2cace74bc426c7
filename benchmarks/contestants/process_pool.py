"""concurrent.futures.ProcessPoolExecutor of the standard library, as the lower bound."""

from __future__ import annotations

import platform
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from benchmarks.contestants.measure import Engine, main


class PoolEngine(Engine):
    def start(self, workers: int) -> None:
        self.executor = ProcessPoolExecutor(max_workers=workers)

    def submit(self, function: Callable[..., Any], argument: Any) -> Future[Any]:
        return self.executor.submit(function, argument)

    def stop(self) -> None:
        self.executor.shutdown()

    def version(self) -> str:
        return platform.python_version()


if __name__ == "__main__":
    main(PoolEngine())
