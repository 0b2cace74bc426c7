"""The real master behind the commands: a client of the pool's master, which is started if nobody listens."""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pilotfish.applications.task_list import NOTHING, TaskNeeds
from pilotfish.client.master_client import MasterClient
from pilotfish.client.pools import PoolHandle, ensure_pool, is_served
from pilotfish.client.submission import Submission
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.model.messages import EndedItem
from pilotfish.model.task import RunOptions, TaskSpec
from pilotfish.store.pool_directory import pool_home

PEEK_S = 2.0


class _Listener:
    """Puts what the client's thread hears into a queue for the command's thread."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[RunNews] = queue.SimpleQueue()

    def ended(self, items: list[EndedItem], body: memoryview) -> None:
        self.heard.put(RunNews(ended=tuple(items)))

    def began(self, indices: list[int]) -> None:
        self.heard.put(RunNews(began=tuple(indices)))

    def finished(self, counts: dict[str, int]) -> None:
        self.heard.put(RunNews(finished=True))

    def lost(self, error: PilotfishError) -> None:
        self.heard.put(RunNews(lost=error))

    def next(self, timeout_s: float) -> RunNews | None:
        try:
            return self.heard.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Nothing to do: the client that feeds it ends with the command."""


class RunUpload:
    """A run that is being filled over the wire."""

    def __init__(self, client: MasterClient, submission: Submission) -> None:
        self._client = client
        self._submission = submission
        # A refusal of tasks is told to whoever listens to the run: us, until somebody watches it.
        self._listener = submission.listener = _Listener()
        self._added = 0

    @property
    def number(self) -> int:
        return self._submission.run

    def spec(self, spec: TaskSpec, code: bytes) -> int:
        return self._client.spec_number(self._submission, spec, code)

    def add(self, spec: int, payload: bytes, needs: TaskNeeds = NOTHING) -> None:
        self._client.submit(self._submission, spec, payload, _ignore, needs)
        self._added += 1

    def close(self) -> None:
        self._client.close_run(self._submission)
        # The master answers in order: with this answer, everything before it is on its disk.
        known = self._client.ask("run", run=self.number).data["tasks"]
        while (news := self._listener.next(0.0)) is not None:
            if news.lost is not None:
                raise news.lost
        if known != self._added:
            raise PilotfishError(f"the master has {known:,} of {self._added:,} tasks: it refused the others", "see: pilotfish doctor")


def _ignore(index: int) -> None:
    """Nobody waits for single tasks here."""


class PoolSession:
    def __init__(self, client: MasterClient) -> None:
        self._client = client
        self._submissions: dict[int, Submission] = {}
        self.contents = client.contents

    def ask(self, kind: str, **arguments: Any) -> Any:
        return self._client.ask(kind, **arguments).data

    def ask_bytes(self, kind: str, **arguments: Any) -> tuple[Any, bytes]:
        reply = self._client.ask(kind, **arguments)
        return reply.data, reply.body

    def peek(self, task: str, stream: int, offset: int) -> bytes:
        # The answer comes from the worker, which may be busy, stopped or dying: nobody should wait for it for ever.
        heard: queue.SimpleQueue[bytes | PilotfishError] = queue.SimpleQueue()

        def ask() -> None:
            try:
                heard.put(self._client.ask("tail", task=task, stream=stream, offset=offset).body)
            except PilotfishError as error:
                heard.put(error)

        threading.Thread(target=ask, daemon=True).start()
        try:
            answer = heard.get(timeout=PEEK_S)
        except queue.Empty:
            return b""
        if isinstance(answer, PilotfishError):
            raise answer
        return answer

    def begin(self, options: RunOptions) -> RunUpload:
        submission = self._client.open_run(uuid.uuid4().hex, options, feeds=not options.application)
        self._submissions[submission.run] = submission
        return RunUpload(self._client, submission)

    def watch(self, run: int, cursor: int) -> _Listener:
        submission = self._submissions.get(run)
        if submission is None:
            row = self.ask("run", run=run)
            options = RunOptions(name=row["name"], command=row["command"])
            submission = self._client.open_run(row["uid"], options, feeds=False)
            self._submissions[run] = submission
        listener = _Listener()
        self._client.watch(submission, listener, cursor=cursor, payloads=False)
        return listener

    def close(self) -> None:
        self._client.close()


def connect_live(pool: str, start: bool, workers: int | None) -> PoolSession:
    if not start:
        _require(pool)
    found = ensure_pool(pool)
    master = PoolSession(MasterClient.connect(found.directory, found.revive))
    if start and workers is not None:
        master.ask("workers_set", local=workers)
    return master


def connect_to_look(pool: str) -> PoolSession:
    """A client of a master that is started if need be. If somebody stopped it, it leaves the work alone."""
    _require(pool)
    found = ensure_pool(pool, looking=True)
    return PoolSession(MasterClient.connect(found.directory, found.revive))


def _require(pool: str) -> None:
    if not pool_home(pool).directory.is_dir():
        raise NoPool(f"nothing has been run in the pool {pool!r} yet", "Start: pilotfish run -- COMMAND")


def _connect_live_if_served(pool: str) -> PoolSession | None:
    """A client of a master that is there; it neither starts one nor waits for one."""
    directory = pool_home(pool).directory
    return PoolSession(MasterClient.connect(directory, None, patience_s=0.0)) if is_served(directory) else None


def connect_to_stop(found: PoolHandle) -> PoolSession:
    """A client that lets the master go: it does not start it again."""
    return PoolSession(MasterClient.connect(found.directory, None))


# What the commands need of a master, and how they come by one.
#
# The commands know a master only through ``Master``: questions, runs to fill, runs to watch. ``connect`` makes the real one; tests put
# their own in its place.

PAGE = 10_000
"""So many rows a master gives in one answer."""


@dataclass(frozen=True, slots=True)
class RunNews:
    """What was heard of a run since the last time: tasks that ended, tasks that were seen running, and whether that was all."""

    ended: tuple[EndedItem, ...] = ()
    began: tuple[int, ...] = ()
    finished: bool = False
    lost: PilotfishError | None = None


class RunWatcher(Protocol):
    def next(self, timeout_s: float) -> RunNews | None:
        """News, or None when there was none for so long."""

    def close(self) -> None: ...


class RunUploadProtocol(Protocol):
    """A run that is being filled."""

    @property
    def number(self) -> int: ...

    def spec(self, spec: TaskSpec, code: bytes) -> int:
        """The number of a spec in the run."""

    def add(self, spec: int, payload: bytes, needs: TaskNeeds = NOTHING) -> None:
        """One more task; waits when the master cannot keep up."""

    def close(self) -> None:
        """There are no more. Returns when all of them are on the master's disk."""


class PoolSessionProtocol(Protocol):
    @property
    def contents(self) -> Path | None:
        """Where large outputs lie that were brought home."""

    def ask(self, kind: str, **arguments: Any) -> Any:
        """The answer to a question, or the outcome of a command; PilotfishError if it cannot be met."""

    def ask_bytes(self, kind: str, **arguments: Any) -> tuple[Any, bytes]:
        """The same for kinds that have bytes in their answer."""

    def peek(self, task: str, stream: int, offset: int) -> bytes:
        """What a running task wrote to a stream beyond ``offset``; nothing if its worker does not answer just now."""

    def begin(self, options: RunOptions) -> RunUploadProtocol: ...

    def watch(self, run: int, cursor: int) -> RunWatcher:
        """Hear of the run's tasks from the ``cursor``-th that ended on."""

    def close(self) -> None: ...


class NoPool(PilotfishError):
    """Nothing was ever run in this pool."""

    code = "P3101"


Connector = Callable[[str, bool, int | None], PoolSessionProtocol]


def connect(pool: str, start: bool = False, workers: int | None = None) -> PoolSessionProtocol:
    """The master of a pool, started again if it ended; with ``start`` the pool is made if there is none."""
    return _connector(pool, start, workers)


def look(pool: str) -> PoolSessionProtocol:
    """The same for whoever only asks: what somebody stopped is not set going by that."""
    if _connector is not _connect_live:
        return _connector(pool, False, None)

    return connect_to_look(pool)


def connect_if_served(pool: str) -> PoolSessionProtocol | None:
    """The master of a pool if there is one just now; none is started."""
    if _connector is not _connect_live:
        return _connector(pool, False, None)

    return _connect_live_if_served(pool)


def _connect_live(pool: str, start: bool, workers: int | None) -> PoolSessionProtocol:

    return connect_live(pool, start, workers)


_connector: Connector = _connect_live


def use_connector(connector: Connector | None) -> None:
    """Put another way to get a master in place; None brings the real one back."""
    global _connector
    _connector = connector or _connect_live


def find_run(master: PoolSessionProtocol, wanted: str | None) -> dict[str, Any]:
    """The row of a run: a number, a name (the newest of that name), or None for the newest of all."""
    row: dict[str, Any] = master.ask("run", **({} if wanted is None else {"run": wanted}))
    return row


def all_tasks(
    master: PoolSessionProtocol, run: int, state: str | None = None, offset: int = 0, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """The tasks of a run, a page at a time; without a limit all of them."""
    filtered = {"state": state} if state else {}
    left = limit
    while left is None or left > 0:
        page = PAGE if left is None else min(PAGE, left)
        rows = master.ask("tasks", run=run, limit=page, offset=offset, **filtered)
        yield from rows
        if len(rows) < page:
            return
        offset += page
        left = None if left is None else left - page


def task_name(text: str) -> str:
    """A task as a person writes it, ``3.17``, checked."""
    run, dot, index = text.partition(".")
    if not (dot and run.isascii() and run.isdigit() and index.isascii() and index.isdigit()):
        raise BadInput(f"{text!r} does not name a task", "A task is RUN.INDEX, such as 3.17; list them: pilotfish tasks")
    return f"{int(run)}.{int(index)}"
