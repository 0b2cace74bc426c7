"""Opens sessions with pools. The command line and the Python API use a session to send requests, submit runs and watch runs."""

from __future__ import annotations

import math
import queue
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from pilotfish.client.master_client import MasterClient
from pilotfish.client.pools import ensure_pool, is_served
from pilotfish.client.submission import RunListener, Submission
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.model.messages import EndedItem
from pilotfish.model.states import TASK_STATES
from pilotfish.model.task import RunOptions
from pilotfish.store.pool_directory import pool_home

PEEK_S = 2.0
"""Seconds to wait for the answer of a worker."""
PAGE = 10_000
"""Maximum number of rows in one answer of the master."""
TAIL_BYTES = 64 << 10
MANAGER_FAILED = "its application manager failed"
"""The reason with which the process of a failed manager cancels its run."""


class NoPool(PilotfishError):
    """The pool does not exist yet, so it has no runs."""

    code = "P3101"


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """An update about a run: ended tasks, started tasks, or the end of the run. ``lost`` is the error after which no more updates come."""

    ended: tuple[EndedItem, ...] = ()
    began: tuple[int, ...] = ()
    finished: bool = False
    lost: PilotfishError | None = None


class RunWatcher:
    """Queues the updates of a run. The client's thread writes them, and another thread reads them."""

    def __init__(self) -> None:
        self._updates: queue.SimpleQueue[RunUpdate] = queue.SimpleQueue()

    def next(self, timeout_s: float) -> RunUpdate | None:
        """Waits for an update and returns it. Returns None after ``timeout_s`` seconds."""
        try:
            return self._updates.get(timeout=timeout_s)
        except queue.Empty:
            return None

    # --- called by the client's thread --------------------------------------------------------------------------------------------

    def ended(self, items: list[EndedItem], body: memoryview) -> None:
        self._updates.put(RunUpdate(ended=tuple(items)))

    def began(self, indices: list[int]) -> None:
        self._updates.put(RunUpdate(began=tuple(indices)))

    def finished(self, counts: dict[str, int]) -> None:
        self._updates.put(RunUpdate(finished=True))

    def lost(self, error: PilotfishError) -> None:
        self._updates.put(RunUpdate(lost=error))


class PoolSession(MasterClient):
    """A client of the master of one pool, with methods for whole runs."""

    def peek(self, task: str, stream: int, offset: int) -> bytes:
        """Returns the output of a running task from ``offset`` on. Returns no bytes if the task's worker does not answer in time."""
        try:
            return self.request("tail", task=task, stream=stream, offset=offset).result(PEEK_S).body
        except TimeoutError:
            return b""

    def begin(self, options: RunOptions, uid: str = "", listener: RunListener | None = None) -> Submission:
        """Opens a new run, or finds the run with this ``uid``. ``listener`` receives all ended tasks of the run, with their results."""
        run = self.open_run(uid or secrets.token_hex(16), options, sends_tasks=not options.application)
        if listener is not None:
            self.watch(run, listener)
        return run

    def confirm(self, run: Submission) -> None:
        """Closes the run and waits until the master has recorded all its tasks. Raises an error if the master refused a task."""
        self.close_run(run)
        # The master answers in order. When this answer comes, the master has recorded all tasks that were sent before the request.
        known = self.ask("run", run=run.run)["tasks"]
        if run.failure is not None:
            raise run.failure
        if known != run.next_index:
            raise PilotfishError(f"the master has {known:,} of {run.next_index:,} tasks: it refused the others", "see: pilotfish doctor")

    def watch_run(self, run: int, cursor: int) -> RunWatcher:
        """Returns a watcher for the updates of a run. The first update has the ended task with number ``cursor``."""
        with self._lock:
            submission = self._runs.get(run)
        if submission is None:
            row = self.ask("run", run=run)
            submission = self.open_run(row["uid"], RunOptions(name=row["name"], command=row["command"]), sends_tasks=False)
        watcher = RunWatcher()
        self.watch(submission, watcher, cursor=cursor, payloads=False)
        return watcher


# --- connecting -----------------------------------------------------------------------------------------------------------------------

_connector: Callable[[str, bool, int | None], PoolSession] | None = None
"""If this is set, it creates all sessions. Tests set it, so that they need no master."""


def connect(pool: str, start: bool = False, local_cores: int | None = None, read_only: bool = False) -> PoolSession:
    """Opens a session with a pool. Starts the pool's master if none runs.

    ``start``: create the pool if it does not exist. ``read_only``: leave a stopped pool stopped.
    """
    if _connector is not None:
        return _connector(pool, start, local_cores)
    if not start and not pool_home(pool).directory.is_dir():
        raise NoPool(f"pool {pool!r} has no runs yet", "Start: pilotfish run -- COMMAND")
    handle = ensure_pool(pool, read_only)
    session = PoolSession.connect(handle.directory, handle.revive)
    if start and local_cores is not None:
        session.ask("workers_set", local=local_cores)
    return session


def connect_read_only(pool: str) -> PoolSession:
    """Opens a session for a command that only reads. A stopped pool stays stopped."""
    return connect(pool, read_only=True)


def connect_if_served(pool: str) -> PoolSession | None:
    """Opens a session if a master runs; otherwise returns None. The session ends when that master ends."""
    if _connector is not None:
        return _connector(pool, False, None)
    directory = pool_home(pool).directory
    return PoolSession.connect(directory, reconnect_s=0.0) if is_served(directory) else None


# --- runs -----------------------------------------------------------------------------------------------------------------------------


def find_run(master: PoolSession, wanted: str | None) -> dict[str, Any]:
    """Returns the row of the run with this number or name. Of several runs with one name, the newest counts. None means the newest run."""
    row: dict[str, Any] = master.ask("run", **({} if wanted is None else {"run": wanted}))
    return row


def all_tasks(
    master: PoolSession, run: int, state: str | None = None, offset: int = 0, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a run's tasks. Reads them page by page. Without a limit, yields all of them."""
    filtered = {"state": state} if state else {}
    end = math.inf if limit is None else offset + limit
    while offset < end:
        page = int(min(PAGE, end - offset))
        rows = master.ask("tasks", run=run, limit=page, offset=offset, **filtered)
        yield from rows
        if len(rows) < page:
            return
        offset += page


def task_name(text: str) -> str:
    """Checks a task id such as ``3.17`` and returns it without leading zeros."""
    run, dot, index = text.partition(".")
    if not (dot and run.isascii() and run.isdigit() and index.isascii() and index.isdigit()):
        raise BadInput(f"{text!r} does not name a task", "A task is RUN.INDEX, such as 3.17; list them: pilotfish tasks")
    return f"{int(run)}.{int(index)}"


def manager_log(master: PoolSession, run: int) -> bytes:
    """Returns the end of the log of a run's manager. Returns no bytes if the run has no log."""
    path = master.directory / f"application-{run}.log"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read()
    except OSError:
        return b""


def why_manager_failed(master: PoolSession, row: dict[str, Any]) -> bytes:
    """Returns the log of a manager that failed. Returns no bytes if the run was cancelled for another reason."""
    for task in all_tasks(master, row["run"], "cancelled", limit=1):
        if (task.get("failure") or {}).get("message") != MANAGER_FAILED:
            return b""
    return manager_log(master, row["run"])


def state_of_run(row: dict[str, Any]) -> str:
    """Returns the state of a run as users see it. A row from a master of the previous version has no ``status``."""
    if "status" in row:
        return str(row["status"])
    from pilotfish.core.explain.task_reasons import status_of

    run: Any = SimpleNamespace(**row)
    run.finished, run.counts = row["state"] == "done", [row["counts"].get(state, 0) for state in TASK_STATES]
    return status_of(run)


def forget_run(master: PoolSession, run: int) -> None:
    """Asks the master to forget a run, and removes the run's files from the pool directory."""
    master.ask("forget", run=run)
    for name in (f"register-{run}.gz", f"application-{run}.log"):
        with suppress(OSError):
            (master.directory / name).unlink()
