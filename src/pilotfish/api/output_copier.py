"""Copies the output files of a run to their destinations while the program runs."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from pilotfish.applications.destinations import known_destination
from pilotfish.applications.executables.executable import Completed
from pilotfish.client.outputs.delivery_ledger import EarlierFiles
from pilotfish.client.outputs.output_delivery import OutputDelivery
from pilotfish.client.outputs.output_destinations import OutputDestinations, refuse_existing
from pilotfish.errors import BadInput, PilotfishError

_logger = logging.getLogger("concurrent.futures")


class OutputsNotCopied(PilotfishError):
    """A task succeeded, but an output file could not be copied to its destination. ``completed``: the result of the task."""

    code = "P4103"

    def __init__(self, message: str, hint: str = "", completed: Completed | None = None) -> None:
        super().__init__(message, hint)
        self.completed = completed


class OutputCopier:
    """Copies files in a thread of its own, because the client's thread must not wait for a disk."""

    def __init__(self, pool: Path, destinations: OutputDestinations) -> None:
        self._pool = pool
        self.destinations = destinations
        self._earlier = EarlierFiles(pool, bool(destinations.resumes))
        self._taken: set[str] = set()
        self._delivery: OutputDelivery | None = None
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    # --- submission ---------------------------------------------------------------------------------------------------------------

    def check(self, destinations: dict[str, str]) -> None:
        """Checks the destinations of a new task before the task is submitted. Raises BadInput if a destination exists and the run has not
        ``overwrite``. Also raises BadInput if an earlier task of the run has the same destination."""
        paths: set[str] = set()
        for name, destination in destinations.items():
            known = known_destination(name, destination)
            if known is None:
                continue
            path = os.path.normpath(known)
            if path in self._taken or path in paths:
                raise BadInput(
                    f"outputs: {name}={destination}: another task of the run writes {path}", "give each task another destination"
                )
            if not self.destinations.overwrite:
                refuse_existing(self.destinations.base, path, f"{name}={destination}", self._earlier)
            paths.add(path)
        self._taken |= paths

    def open(self, run: int) -> None:
        """Records the directory of the run, so that every client knows where to copy the files of the run."""
        if self._delivery is None:
            self.destinations.record(self._pool, run)
            self._delivery = OutputDelivery(self._pool, run, self.destinations)

    def add(self, run: int, index: int, destinations: dict[str, str]) -> None:
        """Records the destinations of a task. Call it before the task is sent."""
        self.open(run)
        if destinations:
            self.destinations.add(self._pool, run, index, destinations)

    # --- the thread ---------------------------------------------------------------------------------------------------------------

    def put(self, job: Callable[[], None]) -> None:
        """Lets the thread of this object call ``job``. ``job`` copies the files of one task with ``copy``."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="pilotfish-outputs", daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException:
                # A callback of the program can raise any error. The error must not end this thread, because other tasks need it.
                _logger.exception("exception after output files were copied")

    def copy(self, index: int, completed: Completed, failed: bool = False) -> OutputsNotCopied | None:
        """Copies the files of a task that succeeded or failed. Returns an error if a file could not be copied."""
        assert self._delivery is not None
        try:
            found = self._delivery.copy(index, completed.files, failed)
        except OSError as error:
            return OutputsNotCopied(f"the output files cannot be copied: {error}", "see: pilotfish doctor", completed)
        problem = found.error()
        return None if problem is None else OutputsNotCopied(str(problem), problem.hint, completed)

    def finish(self) -> None:
        """Waits until all jobs of the thread are done."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()
