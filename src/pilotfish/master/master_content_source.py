"""Where the master takes contents from and puts them: the person's own files, and its store of what tasks have made.

Called by the threads that serve bulk connections: it reads the machine's state, and never changes it, but for what people are told.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from pilotfish.core.connections import WorkerConnection
from pilotfish.core.machine import Machine
from pilotfish.core.state import ContentRecord, Worker
from pilotfish.master.link_meter import LinkMeter
from pilotfish.model.ids import show_task
from pilotfish.model.quantities import show_bytes
from pilotfish.portable.transfer.cache_directory import content_path
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.content_source import FileReader, ServedContent
from pilotfish.portable.transfer.incoming_content import IncomingContent, NoRoom
from pilotfish.portable.transfer.transfer_protocol import AskElsewhere, AskLater, ContentAbsent
from pilotfish.store.pool_directory import PoolDirectory

ORPHANED_S = 86400.0
"""What no run knows after so long never became the result of a task."""
UNBOUNDED = 1 << 62
MOST_BROADCASTS = 1000
MOST_TRANSFERS = 16
"""At once with workers of no site."""
LATER_S = 1.0
LATE_S = 3600.0
"""A result comes at most so long after the first of its files, as a rule."""
HOLDER_S = 90.0
HOLDER_AGAIN_S = 3.0
"""So long, and so often, one asks for what a worker holds that does not answer."""
RESERVE_BYTES = 256 * 1024 * 1024


class BroadcastTree:
    """Who gets which content of us. Of those of one site that ask for the same, the first gets it from us, and the others, in a binary
    tree, from those before them, as it comes."""

    def __init__(self, workers: Mapping[str, Worker], presence: Mapping[str, WorkerConnection]) -> None:
        self._workers = workers
        self._presence = presence
        self._lock = threading.Lock()
        self._getters: OrderedDict[tuple[str, str], list[str]] = OrderedDict()

    def sources(self, asker: str, digest: str) -> list[Any]:
        """Contacts of those who have it or get it before this one; none: it is for us to send it."""
        worker = self._workers.get(asker)
        if worker is None or self._contact(asker) is None:
            return []
        with self._lock:
            getters = [name for name in self._getters.pop((worker.site, digest), ()) if name in self._workers]
            if asker not in getters:
                getters.append(asker)
            self._getters[worker.site, digest] = getters
            if len(self._getters) > MOST_BROADCASTS:
                self._getters.popitem(last=False)
            place = getters.index(asker)
        above: list[str] = []
        while place:
            place = (place - 1) // 2
            above.append(getters[place])
        return [contact for contact in map(self._contact, above) if contact is not None]

    def _contact(self, worker: str) -> Any:
        presence = self._presence.get(worker)
        return None if presence is None else presence.peer


class TransferLimit:
    """So many contents at once to and from one site, as its description says; the others ask again."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lock = threading.Lock()
        self._passing: dict[str, int] = {}

    def enter(self, asker: str) -> str:
        """The site of who asks. AskLater if there are enough of that site."""
        worker = self._machine.state.workers.get(asker)
        site = worker.site if worker is not None else ""
        record = self._machine.state.sites.get(site)
        most = record.site.transfers if record is not None and record.site is not None else MOST_TRANSFERS
        with self._lock:
            if self._passing.get(site, 0) >= most:
                raise AskLater(LATER_S)
            self._passing[site] = self._passing.get(site, 0) + 1
        return site

    def leave(self, site: str) -> None:
        with self._lock:
            self._passing[site] -= 1


class MasterContentSource:
    def __init__(self, pool: PoolDirectory, machine: Machine, meter: LinkMeter) -> None:
        self._meter = meter
        self._store = ContentCache(str(pool.contents), UNBOUNDED, lambda digest: True, durable=True)
        self._cache = str(pool.cache)
        self._known = machine.state.contents.get
        self._machine = machine
        self._released: dict[str, float] = {}
        self._lock = threading.Lock()
        self._asked: dict[tuple[str, str], tuple[float, float]] = {}
        """Who asks us for what a worker holds, since when, and when for the last time."""
        self._broadcasts = BroadcastTree(machine.state.workers, machine.presence)
        self._turnstile = TransferLimit(machine)

    def reading(self, asker: str, digest: str, size: int, insist: bool) -> ServedContent:
        record = self._known(digest)
        if record is None or record.size != size:
            raise ContentAbsent(f"no run needs a content {digest} of {size} bytes", "site")
        others = [] if insist else self._broadcasts.sources(asker, digest)
        if others:
            raise AskElsewhere(others)
        site = self._turnstile.enter(asker)
        try:
            served = ServedContent(self._open(asker, record), lambda: self._sent(site))
            self._meter.began(site)
            return served
        except BaseException:
            self._turnstile.leave(site)
            raise

    def _sent(self, site: str) -> None:
        self._turnstile.leave(site)
        self._meter.ended(site)

    def _open(self, asker: str, record: ContentRecord) -> FileReader:
        digest, size = record.digest, record.size
        kept = self._store.take(digest, size)
        if kept is not None:
            return FileReader(kept, size, "site")
        beside = content_path(self._cache, digest)
        if os.path.exists(beside):  # an agent on this machine has it; the receiver will see whether it is sound
            return FileReader(beside, size, "site")
        if record.path:
            return _persons_file(record)
        if self._may_come(asker, record):
            raise AskLater(HOLDER_AGAIN_S)
        raise ContentAbsent(_lost(record), "site")

    def _may_come(self, asker: str, record: ContentRecord) -> bool:
        """A worker that is here holds it: if it did not answer this one, it may do so in a moment. But not for ever."""
        if not any(holder in self._machine.presence for holder in record.holders):
            return False
        now = time.monotonic()
        with self._lock:
            since, last = self._asked.pop((asker, record.digest), (now, now))
            since = since if now - last < HOLDER_S else now  # it is another task that asks
            self._asked[asker, record.digest] = since, now
            if len(self._asked) > MOST_BROADCASTS:
                del self._asked[next(iter(self._asked))]
        return now - since < HOLDER_S

    def incoming(self, asker: str, digest: str, size: int) -> IncomingContent | None:
        if self._store.take(digest, size) is not None:
            return None
        free = shutil.disk_usage(self._store.directory).free - self._store.promised()
        if free < size + RESERVE_BYTES:
            # The journal lies on the same disk, and without it nothing goes on.
            spared = f"{show_bytes(max(0, free))} are free, and {show_bytes(RESERVE_BYTES)} must stay so"
            self._machine.no_room_at_home = f"{show_bytes(size)} do not fit into {self._store.directory}, where {spared}"
            raise NoRoom(self._machine.no_room_at_home)
        self._machine.no_room_at_home = ""
        site = self._turnstile.enter(asker)
        try:
            incoming = self._store.incoming(digest, size)
        except BaseException:
            self._turnstile.leave(site)
            raise
        incoming.closed = lambda: self._turnstile.leave(site)
        return incoming

    def release(self, digest: str) -> None:
        """No run needs it. But a task that runs may have made it anew, and have been told that it is here: then it stays for a while."""
        now = time.monotonic()
        self._released[digest] = now
        for known, at in list(self._released.items()):
            if self._machine.state.unfinished and at > now - LATE_S:
                continue
            del self._released[known]
            if self._known(known) is None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(content_path(self._store.directory, known))

    def sweep(self) -> None:
        """Remove what came for results that never did: its agent died in between."""
        for digest in self._store.contents():
            path = content_path(self._store.directory, digest)
            try:
                if self._known(digest) is None and time.time() - os.stat(path).st_atime > ORPHANED_S:
                    os.unlink(path)
            except FileNotFoundError:
                continue


def _persons_file(record: ContentRecord) -> FileReader:
    """It must still be the file that was submitted; that its bytes are, the receiver finds out."""
    reading = FileReader(record.path, record.size, "user")
    status = os.fstat(reading.fileno())
    if status.st_mtime_ns != record.mtime_ns:
        reading.close()
        raise ContentAbsent(
            f"{record.path} was changed after it was submitted: run the command again, to use the file as it is now", "user"
        )
    return reading


def _lost(record: ContentRecord) -> str:
    made = f", which task {show_task(record.maker)} made," if record.maker else ""
    what = f"the content {record.digest[:12]}… of {show_bytes(record.size)}{made}"
    if record.holders:
        return f"{what} was kept at {', '.join(list(record.holders)[:3])}, and could not be had from there"
    return f"{what} was kept where it was made, and no worker that is here has it: run the task again that made it"
