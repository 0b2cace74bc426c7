"""The real master behind the commands: a client of the pool's master, which is started if nobody listens."""

from __future__ import annotations

import queue
import threading
import uuid
from typing import Any

from pilotfish.applications.tasklist import NOTHING, Needs
from pilotfish.cli.pool import News, NoPool
from pilotfish.errors import PilotfishError
from pilotfish.live.client import Client
from pilotfish.live.daemon import Pool, ensure_pool, is_served
from pilotfish.live.home import pool_home
from pilotfish.live.submission import Submission
from pilotfish.model.messages import EndedItem
from pilotfish.model.task import RunOptions, TaskSpec

PEEK_S = 2.0


class _Listener:
    """Puts what the client's thread hears into a queue for the command's thread."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[News] = queue.SimpleQueue()

    def ended(self, items: list[EndedItem], body: memoryview) -> None:
        self.heard.put(News(ended=tuple(items)))

    def began(self, indices: list[int]) -> None:
        self.heard.put(News(began=tuple(indices)))

    def finished(self, counts: dict[str, int]) -> None:
        self.heard.put(News(finished=True))

    def lost(self, error: PilotfishError) -> None:
        self.heard.put(News(lost=error))

    def next(self, timeout_s: float) -> News | None:
        try:
            return self.heard.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Nothing to do: the client that feeds it ends with the command."""


class LiveRun:
    """A run that is being filled over the wire."""

    def __init__(self, client: Client, submission: Submission) -> None:
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

    def add(self, spec: int, payload: bytes, needs: Needs = NOTHING) -> None:
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


class LiveMaster:
    def __init__(self, client: Client) -> None:
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

    def begin(self, options: RunOptions) -> LiveRun:
        submission = self._client.open_run(uuid.uuid4().hex, options, feeds=not options.application)
        self._submissions[submission.run] = submission
        return LiveRun(self._client, submission)

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


def connect_live(pool: str, start: bool, workers: int | None) -> LiveMaster:
    if not start:
        _require(pool)
    found = ensure_pool(pool)
    master = LiveMaster(Client.connect(found.directory, found.revive))
    if start and workers is not None:
        master.ask("workers_set", local=workers)
    return master


def connect_to_look(pool: str) -> LiveMaster:
    """A client of a master that is started if need be. If somebody stopped it, it leaves the work alone."""
    _require(pool)
    found = ensure_pool(pool, looking=True)
    return LiveMaster(Client.connect(found.directory, found.revive))


def _require(pool: str) -> None:
    if not pool_home(pool).directory.is_dir():
        raise NoPool(f"nothing has been run in the pool {pool!r} yet", "Start: pilotfish run -- COMMAND")


def connect_if_served(pool: str) -> LiveMaster | None:
    """A client of a master that is there; it neither starts one nor waits for one."""
    directory = pool_home(pool).directory
    return LiveMaster(Client.connect(directory, None, patience_s=0.0)) if is_served(directory) else None


def connect_to_stop(found: Pool) -> LiveMaster:
    """A client that lets the master go: it does not start it again."""
    return LiveMaster(Client.connect(found.directory, None))
