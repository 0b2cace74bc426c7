"""executorlib: warm worker processes of one machine behind ZeroMQ sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import executorlib  # type: ignore[import-not-found]

from benchmarks.contestants.measure import Engine, main


class ExecutorlibEngine(Engine):
    def start(self, workers: int) -> None:
        self.executor = executorlib.SingleNodeExecutor(max_workers=workers, block_allocation=True, disable_dependencies=True)

    def submit(self, function: Callable[..., Any], argument: Any) -> Any:
        return self.executor.submit(function, argument)

    def stop(self) -> None:
        self.executor.shutdown()

    def version(self) -> str:
        return str(executorlib.__version__)


if __name__ == "__main__":
    main(ExecutorlibEngine())
