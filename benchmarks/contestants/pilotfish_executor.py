"""Ours: pilotfish.Executor, durable as by default; agents come by the socket file, or by TLS as from another machine."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from benchmarks.contestants.measure import Engine, main
from pilotfish import Executor


class PilotfishEngine(Engine):
    def start(self, workers: int) -> None:
        if os.environ.get("PILOTFISH_BENCH_TLS"):
            home = Path(os.environ["PILOTFISH_HOME"])
            home.mkdir(mode=0o700)
            (home / "config.toml").write_text("tls_here = true\n")
        self.executor = Executor(max_workers=workers)

    def submit(self, function: Callable[..., Any], argument: Any) -> Future[Any]:
        return self.executor.submit(function, argument)

    def stop(self) -> None:
        self.executor.shutdown()

    def version(self) -> str:
        return importlib.metadata.version("pilotfish")


if __name__ == "__main__":
    main(PilotfishEngine())
