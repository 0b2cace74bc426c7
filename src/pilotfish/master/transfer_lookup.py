"""Answers the questions of transfer threads about the machine. The event loop looks them up; threads get immutable values.

Only the event loop may read the machine: a thread could read its tables in the middle of a change.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, NamedTuple, TypeVar

from pilotfish.core.connections import WorkerConnection
from pilotfish.core.machine import Machine
from pilotfish.core.state import Worker
from pilotfish.portable.transfer.transfer_protocol import AskLater

MAX_BROADCASTS = 1000
"""Maximum pairs of content and site whose broadcast trees are kept."""
MAX_TRANSFERS = 16
"""Maximum transfers at once with workers of no site."""
SHOWN_HOLDERS = 3
"""Number of holders that an error message names."""
LOOK_UP_S = 30.0
"""Seconds until a thread gives up waiting for the event loop, which may be waiting for disk space."""
LATER_S = 1.0
"""Seconds until a worker that was put off may ask again."""

Answer = TypeVar("Answer")


class LoopCalls:
    """Runs functions in the event loop for threads that wait for the answer. ``schedule`` is thread-safe."""

    def __init__(self, schedule: Callable[[Callable[[], None]], object]) -> None:
        self._schedule = schedule
        self._lock = threading.Lock()
        self._waiting: set[Future[Any]] = set()
        self._closed = False

    def call(self, function: Callable[[], Answer]) -> Answer:
        """Returns the result of the function in the event loop. Raises AskLater if the loop does not answer in time or has ended."""
        future: Future[Answer] = Future()
        with self._lock:
            if self._closed:
                raise AskLater(LATER_S)
            self._waiting.add(future)
        try:
            self._schedule(lambda: _answer(future, function))
            return future.result(LOOK_UP_S)
        except (TimeoutError, CancelledError):
            future.cancel()
            raise AskLater(LATER_S) from None
        finally:
            with self._lock:
                self._waiting.discard(future)

    def close(self) -> None:
        """Raises AskLater in all waiting threads and in later calls."""
        with self._lock:
            self._closed = True
            for future in self._waiting:
                future.cancel()


def _answer(future: Future[Answer], function: Callable[[], Answer]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except Exception as problem:  # noqa: BLE001 - the thread that asked raises it
        future.set_exception(problem)


class SiteLimit(NamedTuple):
    """Site of a worker, and its maximum number of transfers at once."""

    site: str
    max_transfers: int


class KnownContent(NamedTuple):
    """Facts about a content at the time of the look-up."""

    digest: str
    size: int
    path: str
    """The user's file, or empty; ``mtime_ns`` is its modification time at submission."""
    mtime_ns: int
    maker: int
    holders: tuple[str, ...]
    """The first of the workers that hold it."""
    holder_connected: bool
    asker: SiteLimit
    sources: list[Any]
    """Contacts of workers to get it from; empty: the master sends it."""


class TransferLookup:
    """Reads the machine for transfer threads. Only the event loop may call it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._broadcasts = BroadcastTree(machine.state.workers, machine.connections)

    def content(self, asker: str, digest: str, size: int, no_redirect: bool) -> KnownContent | None:
        """Looks up a content for a worker; None if no run needs a content of that digest and size."""
        record = self._machine.state.contents.get(digest)
        if record is None or record.size != size:
            return None
        connected = any(holder in self._machine.connections for holder in record.holders)
        sources = [] if no_redirect else self._broadcasts.sources(asker, digest)
        holders = tuple(list(record.holders)[:SHOWN_HOLDERS])
        return KnownContent(digest, size, record.path, record.mtime_ns, record.maker, holders, connected, self.site_limit(asker), sources)

    def site_limit(self, asker: str) -> SiteLimit:
        worker = self._machine.state.workers.get(asker)
        site = worker.site if worker is not None else ""
        record = self._machine.state.sites.get(site)
        return SiteLimit(site, record.site.transfers if record is not None and record.site is not None else MAX_TRANSFERS)


class BroadcastTree:
    """Chooses the workers from which a worker gets a content.

    Of the workers of one site that ask for the same content, the first gets it from the master; the others get it from those before them,
    as it arrives, in a binary tree.
    """

    def __init__(self, workers: Mapping[str, Worker], connections: Mapping[str, WorkerConnection]) -> None:
        self._workers = workers
        self._connections = connections
        self._receivers: OrderedDict[tuple[str, str], list[str]] = OrderedDict()

    def sources(self, asker: str, digest: str) -> list[Any]:
        """Returns contacts of workers that have the content or get it before this one; empty: the master sends it."""
        worker = self._workers.get(asker)
        if worker is None or self._contact(asker) is None:
            return []
        receivers = [name for name in self._receivers.pop((worker.site, digest), ()) if name in self._workers]
        if asker not in receivers:
            receivers.append(asker)
        self._receivers[worker.site, digest] = receivers
        if len(self._receivers) > MAX_BROADCASTS:
            self._receivers.popitem(last=False)
        position = receivers.index(asker)
        above: list[str] = []
        while position:
            position = (position - 1) // 2
            above.append(receivers[position])
        return [contact for contact in map(self._contact, above) if contact is not None]

    def _contact(self, worker: str) -> Any:
        connection = self._connections.get(worker)
        return None if connection is None else connection.peer
