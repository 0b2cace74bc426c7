"""Opens a session with a pool: send requests, submit runs, watch runs. The command line and the Python API use the same session."""

from __future__ import annotations

import math
import queue
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotfish.applications.task_list import NO_NEEDS, TaskNeeds
from pilotfish.client.master_client import MasterClient
from pilotfish.client.pools import PoolHandle, ensure_pool, is_served
from pilotfish.client.submission import RunListener, Submission
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.model.messages import EndedItem
from pilotfish.model.task import RunOptions, TaskSpec
from pilotfish.portable.payload_format import PackedPayload
from pilotfish.store.pool_directory import pool_home

PEEK_S = 2.0
"""Seconds until a request to a worker is given up."""
PAGE = 10_000
"""Maximum rows per answer."""


class NoPool(PilotfishError):
    """This pool has no runs."""

    code = "P3101"


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """Update about a run: ended tasks, started tasks, whether the run is finished, or the error after which no more updates come."""

    ended: tuple[EndedItem, ...] = ()
    began: tuple[int, ...] = ()
    finished: bool = False
    lost: PilotfishError | None = None


class RunWatcher:
    """Queues the updates of a run for another thread."""

    def __init__(self) -> None:
        self._updates: queue.SimpleQueue[RunUpdate] = queue.SimpleQueue()

    def next(self, timeout_s: float) -> RunUpdate | None:
        """Waits for an update; None after ``timeout_s`` seconds."""
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


class RunUpload:
    def __init__(self, client: MasterClient, submission: Submission) -> None:
        self.number = submission.run
        self._client = client
        self._submission = submission

    @property
    def uid(self) -> str:
        return self._submission.uid

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites that the run may use; empty means all."""
        return self._submission.options.sites

    def spec(self, spec: TaskSpec, code: bytes) -> int:
        """Returns the number of a spec in the run; equal specs have the same."""
        return self._client.spec_number(self._submission, spec, code)

    def add(self, spec: int, payload: PackedPayload, needs: TaskNeeds = NO_NEEDS, register: Callable[[int], None] | None = None) -> None:
        """Adds a task; waits if the master cannot keep up. ``register`` gets its index before any message about it can arrive."""
        self._client.submit(self._submission, spec, payload, register, needs)

    def close(self) -> None:
        """Declares that no more tasks will come."""
        self._client.close_run(self._submission)

    def confirm(self) -> None:
        """Closes the run and waits until all tasks are durable at the master. Raises if the master refused some."""
        # The master reports a refusal to the listener of the run, and this run has no other listener yet.
        watcher = self._submission.listener
        self.close()
        # The master answers in order, so with this answer everything before it is durable.
        known = self._client.ask("run", run=self.number).data["tasks"]
        while isinstance(watcher, RunWatcher) and (update := watcher.next(0.0)) is not None:
            if update.lost is not None:
                raise update.lost
        added = self._submission.next_index
        if known != added:
            raise PilotfishError(f"the master has {known:,} of {added:,} tasks: it refused the others", "see: pilotfish doctor")


class PoolSession:
    """A session with the master of one pool, which is restarted when it dies."""

    def __init__(self, client: MasterClient) -> None:
        self.client = client
        self.directory = client.pool_directory
        self.contents: Path | None = client.contents
        """Directory of large outputs that were copied from workers."""
        self._submissions: dict[int, Submission] = {}

    @classmethod
    def open(cls, pool: PoolHandle) -> PoolSession:
        return cls(MasterClient.connect(pool.directory, pool.revive))

    def ask(self, kind: str, **arguments: Any) -> Any:
        """Sends a request and waits for the answer; raises PilotfishError if it is refused."""
        return self.client.ask(kind, **arguments).data

    def ask_bytes(self, kind: str, **arguments: Any) -> tuple[Any, bytes]:
        """Like ``ask``, for answers with bytes."""
        reply = self.client.ask(kind, **arguments)
        return reply.data, reply.body

    def peek(self, task: str, stream: int, offset: int) -> bytes:
        """Returns the output of a running task from ``offset`` on; empty if its worker does not answer in time."""
        try:
            return self.client.request("tail", task=task, stream=stream, offset=offset).result(PEEK_S).body
        except TimeoutError:
            return b""

    def begin(self, options: RunOptions, uid: str = "", listener: RunListener | None = None) -> RunUpload:
        """Opens a run, or finds it by ``uid``. ``listener`` receives all its endings, with results."""
        submission = self.client.open_run(uid or secrets.token_hex(16), options, sends_tasks=not options.application)
        self._submissions[submission.run] = submission
        self.client.watch(submission, listener or RunWatcher(), payloads=listener is not None)
        return RunUpload(self.client, submission)

    def watch(self, run: int, cursor: int) -> RunWatcher:
        """Watches a run from the ``cursor``-th ended task on."""
        submission = self._submissions.get(run)
        if submission is None:
            row = self.ask("run", run=run)
            options = RunOptions(name=row["name"], command=row["command"])
            submission = self._submissions[run] = self.client.open_run(row["uid"], options, sends_tasks=False)
        watcher = RunWatcher()
        self.client.watch(submission, watcher, cursor=cursor, payloads=False)
        return watcher

    def close(self) -> None:
        self.client.close()


# --- connecting -----------------------------------------------------------------------------------------------------------------------

_connector: Callable[[str, bool, int | None], PoolSession] | None = None
"""Creates all sessions if set, so that tests need no master."""


def connect(pool: str, start: bool = False, local_cores: int | None = None) -> PoolSession:
    """Opens a session with a pool; starts its master if none runs. ``start``: create the pool if it does not exist."""
    if _connector is not None:
        return _connector(pool, start, local_cores)
    if not start:
        _require_pool(pool)
    session = PoolSession.open(ensure_pool(pool))
    if start and local_cores is not None:
        session.ask("workers_set", local=local_cores)
    return session


def connect_read_only(pool: str) -> PoolSession:
    """Like ``connect``, for commands that only read: a stopped pool stays stopped."""
    if _connector is not None:
        return _connector(pool, False, None)
    _require_pool(pool)
    return PoolSession.open(ensure_pool(pool, read_only=True))


look = connect_read_only
"""Former name, which plug-ins may import."""


def connect_if_served(pool: str) -> PoolSession | None:
    """Opens a session if a master runs; otherwise returns None. The session ends with that master."""
    if _connector is not None:
        return _connector(pool, False, None)
    directory = pool_home(pool).directory
    return PoolSession(MasterClient.connect(directory, reconnect_s=0.0)) if is_served(directory) else None


def connect_to_stop(pool: PoolHandle) -> PoolSession:
    """Opens a session that does not restart the master."""
    return PoolSession(MasterClient.connect(pool.directory))


def _require_pool(pool: str) -> None:
    if not pool_home(pool).directory.is_dir():
        raise NoPool(f"pool {pool!r} has no runs yet", "Start: pilotfish run -- COMMAND")


# --- rows -----------------------------------------------------------------------------------------------------------------------------


def find_run(master: PoolSession, wanted: str | None) -> dict[str, Any]:
    """Finds the row of a run by number or name (the newest with that name); None is the newest of all."""
    row: dict[str, Any] = master.ask("run", **({} if wanted is None else {"run": wanted}))
    return row


def all_tasks(
    master: PoolSession, run: int, state: str | None = None, offset: int = 0, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """Returns the tasks of a run, read page by page; all of them without a limit."""
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
    """Checks a task id such as ``3.17``."""
    run, dot, index = text.partition(".")
    if not (dot and run.isascii() and run.isdigit() and index.isascii() and index.isdigit()):
        raise BadInput(f"{text!r} does not name a task", "A task is RUN.INDEX, such as 3.17; list them: pilotfish tasks")
    return f"{int(run)}.{int(index)}"
