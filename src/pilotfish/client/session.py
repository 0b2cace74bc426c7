"""Opens sessions with pools. The command line and the Python API use a session to send requests, submit runs and watch runs."""

from __future__ import annotations

import json
import math
import queue
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any

from pilotfish.client.application_environment import forget_environment
from pilotfish.client.master_client import MasterClient
from pilotfish.client.pools import ensure_pool, is_served, similar_pool
from pilotfish.client.submission import PendingRequest, RunListener, Submission
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.model.messages import EndedItem
from pilotfish.model.states import DONE, TASK_STATES
from pilotfish.model.task import RunOptions
from pilotfish.portable.output_marks import show_size
from pilotfish.store.pool_directory import pool_home

PEEK_S = 2.0
"""Seconds to wait for the answer of a worker."""
USAGE = 0
"""Stream number of requests for CPU time and memory instead of output."""
END = -1
"""Offset that means: the last bytes of an output."""
PAGE = 10_000
"""Maximum number of rows in one answer of the master."""
USAGE_AT_ONCE = 1000
"""Number of tasks whose workers are asked for the usage at the same time."""
TAIL_BYTES = 64 << 10
MANAGER_FAILED = "its application manager failed"
"""The reason of the cancellation when the manager of a run has failed."""


class NoPool(PilotfishError):
    """The pool does not exist yet, so it has no runs."""

    code = "P3101"


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """An update about a run: ended tasks, started tasks, or the end of the run. ``lost``: an error. No more updates come after it."""

    ended: tuple[EndedItem, ...] = ()
    began: tuple[int, ...] = ()
    finished: bool = False
    lost: PilotfishError | None = None


class RunWatcher:
    """Queues the updates of a run. The client's thread puts updates into the queue, and a second thread takes them out."""

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

    def peek(self, task: str, stream: int, offset: int) -> tuple[int, bytes]:
        """Returns a part of the output of a running task: the position of its first byte in the whole output, and the bytes.

        ``stream``: 2 for standard error, otherwise standard output. ``offset``: position from which to read; END reads the last bytes. The
        returned position is larger than ``offset`` if the worker no longer has the bytes between them. If no answer comes within PEEK_S
        seconds, returns no bytes.
        """
        where: dict[str, Any] = {"which": "end"} if offset == END else {"offset": offset}
        try:
            reply = self.request("tail", task=task, stream=stream, **where).result(PEEK_S)
        except TimeoutError:
            return max(0, offset), b""
        return max(0, int(reply.data["offset"])), reply.body

    def request_usage(self, row: dict[str, Any]) -> Callable[[float], None]:
        """Asks the worker of a running task for the CPU time and memory that the task has used so far.

        Returns a function. It waits for the answer until the time of its argument, and writes the answer to ``row``. Without an answer,
        both values in ``row`` are None.
        """
        row.update(cpu_s=None, rss_bytes=None)
        request = self.request("tail", task=row["id"], stream=USAGE)

        def take(deadline: float) -> None:
            with suppress(TimeoutError, PilotfishError, ValueError, TypeError):
                reply = request.result(max(0.0, deadline - time.monotonic()))
                if reply.data["known"]:
                    cpu_s, rss_bytes = json.loads(bytes(reply.body))
                    row.update(cpu_s=round(float(cpu_s), 6), rss_bytes=int(rss_bytes))

        return take

    def begin(self, options: RunOptions, uid: str = "", listener: RunListener | None = None) -> Submission:
        """Opens a new run, or finds the run with this ``uid``. ``listener`` receives all ended tasks of the run, with their results."""
        run = self.open_run(uid or secrets.token_hex(16), options, sends_tasks=not options.application)
        if listener is not None:
            self.watch(run, listener)
        return run

    def confirm(self, run: Submission) -> None:
        """Closes the run and waits until the master has recorded all its tasks. Raises an error if the master refused a task."""
        self.close_run(run)
        # The master handles messages in order. So its answer shows that it has recorded all tasks that were sent before this request.
        known = self.ask("run", run=run.run)["tasks"]
        if run.failure is not None:
            raise run.failure
        if known != run.next_index:
            raise PilotfishError(f"the master has {known:,} of {run.next_index:,} tasks: it refused the others", "see: pilotfish doctor")

    def watch_run(self, run: int, cursor: int) -> RunWatcher:
        """Returns a watcher for the updates of a run. The watcher does not report the first ``cursor`` ended tasks."""
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
"""A function that creates all sessions, if it is set. Tests set it, so that they need no master."""


def connect(pool: str, start: bool = False, local_cores: int | None = None, read_only: bool = False) -> PoolSession:
    """Opens a session with a pool. Starts the master of the pool if no master runs.

    ``start``: whether to create the pool if it does not exist. ``local_cores``: number of cores of this machine that the pool uses from now
    on; ignored without ``start``. ``read_only``: if a user stopped the pool, leave it stopped, so that its tasks do not run.
    """
    if _connector is not None:
        return _connector(pool, start, local_cores)
    if not start and not pool_home(pool).directory.is_dir():
        raise NoPool(f"pool {pool!r} has no runs yet", similar_pool(pool) or "Start: pilotfish run -- COMMAND")
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
    """Returns the row of the run with this number or name. If several runs have the name, returns the newest. None means the newest run."""
    row: dict[str, Any] = master.ask("run", **({} if wanted is None else {"run": wanted}))
    return row


def all_tasks(
    master: PoolSession, run: int, state: str | None = None, offset: int = 0, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a run's tasks, beginning with row ``offset``. ``state``: only tasks in this state. ``limit``: maximum number of
    rows; None means all.

    The rows are requested page by page. The next page is requested before the rows of the current page are used, so that master and client
    work at the same time.
    """
    filtered = {"state": state} if state else {}
    end = math.inf if limit is None else offset + limit

    def request(start: int) -> tuple[int, PendingRequest]:
        count = int(min(PAGE, end - start))
        return count, master.request("tasks", run=run, limit=count, offset=start, **filtered)

    following = request(offset) if offset < end else None
    while following is not None:
        (page, pending), following = following, None
        rows = master.wait(pending).data
        offset += page
        if len(rows) == page and offset < end:
            following = request(offset)
        yield from rows


def with_usage(master: PoolSession, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the rows of tasks. For each running task, asks the worker for the used CPU time and memory, and adds the answer to the row.
    Waits at most PEEK_S seconds for all answers together."""
    remaining = iter(rows)
    deadline = None
    while chunk := list(islice(remaining, USAGE_AT_ONCE)):
        answers = [master.request_usage(row) for row in chunk if row["state"] == "running"]
        if answers and deadline is None:
            deadline = time.monotonic() + PEEK_S
        for take in answers:
            take(deadline or 0.0)
        yield from chunk


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
            skipped = max(0, path.stat().st_size - TAIL_BYTES)
            file.seek(skipped)
            note = f"[pilotfish: {show_size(skipped)} left out here; all of it is in {path}]\n".encode() if skipped else b""
            return note + file.read()
    except OSError:
        return b""


def why_manager_failed(master: PoolSession, row: dict[str, Any]) -> bytes:
    """Returns the end of the log of a run's manager. Returns no bytes if the tasks of the run were cancelled for a reason other than the
    failure of the manager."""
    for task in all_tasks(master, row["run"], "cancelled", limit=1):
        if (task.get("failure") or {}).get("message") != MANAGER_FAILED:
            return b""
    return manager_log(master, row["run"])


def state_of_run(row: dict[str, Any]) -> str:
    """Returns the state of a run as users see it. Older masters do not send ``status``. For these masters, the state is computed here."""
    if "status" in row:
        return str(row["status"])
    from pilotfish.core.explain.task_reasons import status_of

    run: Any = SimpleNamespace(**row)
    run.finished, run.counts = row["state"] == "done", [row["counts"].get(state, 0) for state in TASK_STATES]
    run.unfinished = sum(run.counts[:DONE])
    return status_of(run)


def forget_run(master: PoolSession, run: int) -> None:
    """Asks the master to forget a run, and removes the run's files from the pool directory."""
    uid = master.ask("run", run=run)["uid"]
    master.ask("forget", run=run)
    forget_environment(master.directory, uid)
    records = (f"{name}-{run}.jsonl" for name in ("outputs", "delivered", "programs"))
    for name in (f"register-{run}.gz", f"application-{run}.log", *records):
        with suppress(OSError):
            (master.directory / name).unlink()
