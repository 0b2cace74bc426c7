"""Serves the user's files and stored outputs to workers.

Transfer threads call it. They never touch the machine: the event loop looks up what they need, and receives their findings as inputs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable

from pilotfish.core.machine import Machine
from pilotfish.master.link_meter import LinkMeter
from pilotfish.master.transfer_lookup import LATER_S, KnownContent, LoopCalls, SiteLimit, TransferLookup
from pilotfish.model import inputs as i
from pilotfish.model.ids import show_task
from pilotfish.model.quantities import show_bytes
from pilotfish.portable.transfer.cache_directory import content_path
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.content_source import FileReader
from pilotfish.portable.transfer.incoming_content import IncomingContent, NoSpace
from pilotfish.portable.transfer.transfer_protocol import AskElsewhere, AskLater, ContentAbsent
from pilotfish.store.pool_directory import PoolDirectory

ORPHANED_S = 86400.0
"""Seconds until a content that no run knows is removed: it never became part of a result."""
UNBOUNDED = 1 << 62
MAX_ASKED = 1000
"""Maximum pairs of worker and content whose waiting time is kept."""
MAX_ASKERS = 10_000
"""Maximum workers whose site is kept."""
LATE_S = 3600.0
"""Seconds that a released content is kept while tasks are unfinished: a result may still name it."""
HOLDER_S = 90.0
HOLDER_AGAIN_S = 3.0
"""Seconds between two requests for a content whose holder does not answer; they end after HOLDER_S seconds."""
RESERVE_BYTES = 256 * 1024 * 1024


class TransferLimit:
    """Limits the transfers at once with one site; other workers ask again later. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: dict[str, int] = {}

    def enter(self, limit: SiteLimit) -> None:
        """Counts one more transfer. Raises AskLater if the site is at its limit."""
        with self._lock:
            if self._active.get(limit.site, 0) >= limit.max_transfers:
                raise AskLater(LATER_S)
            self._active[limit.site] = self._active.get(limit.site, 0) + 1

    def leave(self, site: str) -> None:
        with self._lock:
            self._active[site] -= 1


class MasterContentSource:
    """Serves contents to transfer threads. ``calls`` runs functions in the event loop; ``tell`` sends it an input. Both are thread-safe."""

    def __init__(
        self, pool: PoolDirectory, machine: Machine, meter: LinkMeter, calls: LoopCalls, tell: Callable[[i.Input], object]
    ) -> None:
        self._meter = meter
        self._store = ContentCache(str(pool.contents), UNBOUNDED, lambda digest: True, durable=True)
        self._cache = str(pool.cache)
        self._machine = machine
        """For the event loop only."""
        self._lookup = TransferLookup(machine)
        self._calls = calls
        self._tell = tell
        self._released: dict[str, float] = {}
        self._lock = threading.Lock()
        self._asked: dict[tuple[str, str], tuple[float, float]] = {}
        """Per worker and content that only another worker holds: times of the first and the last request."""
        self._sites: dict[str, str] = {}
        """Sites of the workers that asked for a transfer."""
        self._space_problem = ""
        self._limit = TransferLimit()

    # --- called by transfer threads -------------------------------------------------------------------------------------------------------

    def site_of(self, asker: str) -> str:
        """Return the site of a worker that has asked for a transfer; empty if it has none."""
        return self._sites.get(asker, "")

    def reading(self, asker: str, digest: str, size: int, no_redirect: bool) -> FileReader:
        known = self._calls.call(lambda: self._lookup.content(asker, digest, size, no_redirect))
        if known is None:
            raise ContentAbsent(f"no run needs a content {digest} of {size} bytes", "site")
        if known.sources:
            raise AskElsewhere(known.sources)
        site = self._enter(asker, known.asker)
        try:
            reading = self._open(asker, known)
            reading.on_closed = lambda: self._sent(site)
            self._meter.count_start(site)
            return reading
        except BaseException:
            self._limit.leave(site)
            raise

    def _enter(self, asker: str, limit: SiteLimit) -> str:
        self._limit.enter(limit)
        with self._lock:
            self._sites.pop(asker, None)
            self._sites[asker] = limit.site
            if len(self._sites) > MAX_ASKERS:
                del self._sites[next(iter(self._sites))]
        return limit.site

    def _sent(self, site: str) -> None:
        self._limit.leave(site)
        self._meter.count_end(site)

    def _open(self, asker: str, record: KnownContent) -> FileReader:
        digest, size = record.digest, record.size
        stored = self._store.verified_path(digest, size)
        if stored is not None:
            return FileReader(stored, size, "site")
        cached = content_path(self._cache, digest)
        if os.path.exists(cached):  # an agent on this machine has it; the receiver verifies its hash
            return FileReader(cached, size, "site")
        if record.path:
            return _user_file(record)
        if self._may_come(asker, record):
            raise AskLater(HOLDER_AGAIN_S)
        raise ContentAbsent(_describe_lost(record), "site")

    def _may_come(self, asker: str, record: KnownContent) -> bool:
        """Whether to ask again later: a connected worker holds the content and may answer soon. Ends after HOLDER_S seconds."""
        if not record.holder_connected:
            return False
        now = time.monotonic()
        with self._lock:
            since, last = self._asked.pop((asker, record.digest), (now, now))
            since = since if now - last < HOLDER_S else now  # a later request belongs to another task
            self._asked[asker, record.digest] = since, now
            if len(self._asked) > MAX_ASKED:
                del self._asked[next(iter(self._asked))]
        return now - since < HOLDER_S

    def incoming(self, asker: str, digest: str, size: int) -> IncomingContent | None:
        if self._store.verified_path(digest, size) is not None:
            return None
        free = shutil.disk_usage(self._store.directory).free - self._store.incoming_bytes()
        if free < size + RESERVE_BYTES:
            # The journal is on the same disk, and the master cannot continue without it.
            spared = f"{show_bytes(max(0, free))} are free, and {show_bytes(RESERVE_BYTES)} must stay so"
            problem = f"{show_bytes(size)} do not fit into {self._store.directory}, where {spared}"
            self._report_space(problem)
            raise NoSpace(problem)
        self._report_space("")
        site = self._enter(asker, self._calls.call(lambda: self._lookup.site_limit(asker)))
        try:
            incoming = self._store.incoming(digest, size)
        except BaseException:
            self._limit.leave(site)
            raise
        incoming.on_closed = lambda: self._limit.leave(site)
        return incoming

    def _report_space(self, problem: str) -> None:
        """Tells the event loop that outputs do not fit on the disk, or that they fit again."""
        with self._lock:
            changed, self._space_problem = problem != self._space_problem, problem
        if changed:
            self._tell(i.OutputSpaceChanged(problem))

    # --- called by the event loop ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Releases threads that wait for the event loop, which answers no more."""
        self._calls.close()

    def release(self, digest: str) -> None:
        """Removes a content that no run needs. While tasks are unfinished it stays for a while.

        A running task may have produced the same content and skipped the upload, because the master had it.
        """
        now = time.monotonic()
        self._released[digest] = now
        for known, at in list(self._released.items()):
            if self._machine.state.unfinished and at > now - LATE_S:
                continue
            del self._released[known]
            if known not in self._machine.state.contents:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(content_path(self._store.directory, known))

    def sweep(self) -> None:
        """Removes contents without a result: their agent died before it sent one."""
        for digest in self._store.contents():
            path = content_path(self._store.directory, digest)
            try:
                if digest not in self._machine.state.contents and time.time() - os.stat(path).st_atime > ORPHANED_S:
                    os.unlink(path)
            except FileNotFoundError:
                continue


def _user_file(record: KnownContent) -> FileReader:
    """Opens the user's file. It must be unchanged since submission; the receiver verifies its hash."""
    reading = FileReader(record.path, record.size, "user")
    status = os.fstat(reading.fileno())
    if status.st_mtime_ns != record.mtime_ns:
        reading.close()
        raise ContentAbsent(
            f"{record.path} was changed after it was submitted: run the command again, to use the file as it is now", "user"
        )
    return reading


def _describe_lost(record: KnownContent) -> str:
    made = f", which task {show_task(record.maker)} made," if record.maker else ""
    what = f"the content {record.digest[:12]}… of {show_bytes(record.size)}{made}"
    if record.holders:
        return f"{what} was kept at {', '.join(record.holders)}, and could not be had from there"
    return f"{what} was kept where it was made, and no present worker has it: run the task again that made it"
