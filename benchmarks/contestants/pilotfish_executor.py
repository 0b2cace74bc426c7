"""pilotfish.Executor with its defaults."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from benchmarks.contestants.measure import Engine, main
from pilotfish import Executor


class PilotfishEngine(Engine):
    def start(self, workers: int) -> None:
        self.executor = Executor(max_workers=workers)

    def submit(self, function: Callable[..., Any], argument: Any) -> Future[Any]:
        return self.executor.submit(function, argument)

    def stop(self) -> None:
        self.executor.shutdown()

    def version(self) -> str:
        return importlib.metadata.version("pilotfish")


if __name__ == "__main__":
    main(PilotfishEngine())
