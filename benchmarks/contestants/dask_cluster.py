"""Dask distributed: a LocalCluster of one-threaded worker processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import distributed  # type: ignore[import-not-found]

from benchmarks.contestants.measure import Engine, main


class DaskEngine(Engine):
    def start(self, workers: int) -> None:
        self.cluster = distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.ERROR,
        )
        self.client = distributed.Client(self.cluster)

    def submit(self, function: Callable[..., Any], argument: Any) -> Any:
        return self.client.submit(function, argument, pure=False)

    def call_all(self, function: Callable[..., Any], arguments: Iterable[Any]) -> Sequence[Any]:
        values: list[Any] = self.client.gather([self.submit(function, argument) for argument in arguments])
        return values

    def stop(self) -> None:
        self.client.close()
        self.cluster.close()

    def version(self) -> str:
        return str(distributed.__version__)


if __name__ == "__main__":
    main(DaskEngine())
