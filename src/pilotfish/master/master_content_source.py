"""Serves the user's files and stored outputs to workers, and measures the bandwidth to each site.

Transfer threads call the content source. These threads must not read the state of the machine, because the event loop can change it at the
same time. Instead, a thread asks the event loop, which reads the state and returns immutable values. The threads report events through the
event loop.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from pilotfish.core.machine import Machine
from pilotfish.core.state import ContentRecord
from pilotfish.model import inputs as i
from pilotfish.model.contents import RESULT
from pilotfish.model.ids import INDEX_MASK, show_task
from pilotfish.model.quantities import show_bytes
from pilotfish.model.task import Payload
from pilotfish.portable.transfer.cache_directory import content_path
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.content_source import FileReader
from pilotfish.portable.transfer.file_locks import WriterBusy
from pilotfish.portable.transfer.incoming_content import DigestMismatch, IncomingContent, NoSpace
from pilotfish.portable.transfer.transfer_protocol import AskElsewhere, AskLater, ContentAbsent
from pilotfish.store.pool_directory import PoolDirectory

ORPHANED_S = 86400.0
"""A content that belongs to no run is removed this many seconds after its last use. Such a content never became part of a result."""
UNBOUNDED = 1 << 62
MAX_ASKED = 1000
"""Maximum number of entries in ``_asked``."""
MAX_ASKERS = 10_000
"""Maximum number of workers whose site is stored."""
LATE_S = 3600.0
"""While some tasks are unfinished, a released content is kept for this many seconds. The result of an unfinished task can still need the
content."""
HOLDER_S = 90.0
HOLDER_AGAIN_S = 3.0
"""If only a different worker has a content, the worker that needs it asks again after this many seconds. It gives up after ``HOLDER_S``
seconds."""
RESERVE_BYTES = 256 * 1024 * 1024
MAX_BROADCASTS = 1000
"""Maximum number of broadcast trees that are stored. There is one tree for each content and site (see ``_sources``)."""
MAX_TRANSFERS = 16
"""Maximum number of simultaneous transfers with workers that belong to no site."""
SHOWN_HOLDERS = 3
"""Number of holders that an error message names."""
LOOK_UP_S = 30.0
"""Maximum seconds that a thread waits for the event loop. The event loop is slow, for example, while it waits for disk space."""
LATER_S = 1.0
"""Seconds after which a worker asks again, if the master cannot serve it now."""
READ_EVERY_S = 2.0
"""Seconds between two calls of ``LinkMeter.read`` while contents are sent."""
MIN_MEASURED_BYTES = 32_768
"""Minimum number of bytes for a measurement. Fewer bytes are possibly all still in buffers of this machine."""

Answer = TypeVar("Answer")


class LoopCalls:
    """Lets threads run functions in the event loop and wait for their results. ``schedule``: a function that makes the event loop call a
    function soon."""

    def __init__(self, schedule: Callable[[Callable[[], None]], object]) -> None:
        self._schedule = schedule
        self._lock = threading.Lock()
        self._waiting: set[Future[Any]] = set()
        self._closed = False

    def call(self, function: Callable[[], Answer]) -> Answer:
        """Runs a function in the event loop and returns its result. Raises AskLater if the loop does not answer in time or has ended."""
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
        """Makes all waiting calls and all later calls raise AskLater."""
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
    """The site of a worker, and the maximum number of simultaneous transfers of that site."""

    site: str
    max_transfers: int


class KnownContent(NamedTuple):
    """What the machine knew about a content at the time of the look-up."""

    digest: str
    size: int
    path: str
    """Path of the user's file, or empty. ``mtime_ns`` is the modification time of that file at submission."""
    mtime_ns: int
    maker: int
    holders: tuple[str, ...]
    """Names of a few workers that have the content."""
    holder_connected: bool
    asker: SiteLimit
    output: Payload
    """If the content is the result of a call and the payload store of the master has it: this result. Otherwise empty."""
    sources: list[Any]
    """Contacts of workers that can send the content. If the list is empty, the master sends the content."""


class TransferLookup:
    """Reads the state of the machine for transfer threads. Only the event loop is allowed to call these methods."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._receivers: dict[tuple[str, str], list[str]] = {}
        """Workers that asked for a content, by site and digest."""

    def content(self, asker: str, digest: str, size: int, no_redirect: bool) -> KnownContent | None:
        """Looks up a content for a worker. Returns None if no run needs a content with this digest and size. With ``no_redirect``, the
        master itself sends the content."""
        record = self._machine.state.contents.get(digest)
        if record is None or record.size != size:
            return None
        connected = any(holder in self._machine.connections for holder in record.holders)
        sources = [] if no_redirect else self._sources(asker, digest)
        holders = tuple(list(record.holders)[:SHOWN_HOLDERS])
        known = (digest, size, record.path, record.mtime_ns, record.maker, holders, connected, self.site_limit(asker))
        return KnownContent(*known, self._result(record), sources)

    def _result(self, record: ContentRecord) -> Payload:
        maker = self._machine.state.find_task(record.maker) if record.maker else None
        if maker is None:
            return b""
        left = maker.shape.run.left_files.get(maker.id & INDEX_MASK, {}).get(RESULT)
        return maker.output if left is not None and left.digest == record.digest else b""

    def site_limit(self, asker: str) -> SiteLimit:
        worker = self._machine.state.workers.get(asker)
        site = worker.site if worker is not None else ""
        record = self._machine.state.sites.get(site)
        return SiteLimit(site, record.site.transfers if record is not None and record.site is not None else MAX_TRANSFERS)

    def _sources(self, asker: str, digest: str) -> list[Any]:
        """Returns contacts of workers from which the worker ``asker`` can get the content. If the list is empty, the master sends the
        content.

        All workers of one site that ask for the same content form a binary tree. The worker at the root gets the content from the master.
        Each other worker gets the content from workers above itself in the tree, even while these workers are still receiving the content.
        """
        workers = self._machine.state.workers
        worker = workers.get(asker)
        if worker is None or self._contact(asker) is None:
            return []
        receivers = [name for name in self._receivers.pop((worker.site, digest), ()) if name in workers]
        if asker not in receivers:
            receivers.append(asker)
        self._receivers[worker.site, digest] = receivers
        if len(self._receivers) > MAX_BROADCASTS:
            del self._receivers[next(iter(self._receivers))]
        position = receivers.index(asker)
        above: list[str] = []
        while position:
            position = (position - 1) // 2
            above.append(receivers[position])
        return [contact for contact in map(self._contact, above) if contact is not None]

    def _contact(self, worker: str) -> Any:
        connection = self._machine.connections.get(worker)
        return None if connection is None else connection.peer


class MasterContentSource:
    """Serves contents to transfer threads.

    ``calls`` runs functions in the event loop. ``tell`` reports an event to the machine through the event loop. ``read_soon`` makes the
    event loop call ``LinkMeter.read`` soon. All three are thread-safe.
    """

    def __init__(
        self, pool: PoolDirectory, machine: Machine, calls: LoopCalls, tell: Callable[[i.Input], object], read_soon: Callable[[], object]
    ) -> None:
        self.meter = LinkMeter(self._site_of, read_soon)
        self.load_output: Callable[[Payload], bytes] = lambda output: b""
        """A function that returns the bytes of a task's output. The host sets this attribute. Only the event loop is allowed to call the
        function."""
        self.call_later: Callable[[float, Callable[[], None]], object] = lambda delay_s, function: None
        """A function that makes the event loop call a function after some seconds. The host sets this attribute."""
        self._store = ContentCache(str(pool.contents), UNBOUNDED, lambda digest: True, durable=True)
        self._cache = str(pool.cache)
        self._machine = machine
        """Only the event loop is allowed to use the machine."""
        self._lookup = TransferLookup(machine)
        self._calls = calls
        self._tell = tell
        self._released: dict[str, float] = {}
        """Release times of contents that are released but still stored. The oldest time comes first."""
        self._removal_due = False
        """Whether a call of ``_remove_later`` is scheduled."""
        self._lock = threading.Lock()
        self._asked: dict[tuple[str, str], tuple[float, float]] = {}
        """For each pair of a worker and a content that it waits for: the times of the first and the last request. The content is at a
        different worker only."""
        self._sites: dict[str, str] = {}
        """Sites of the workers that asked for a transfer."""
        self._space_problem = ""
        self._active: dict[str, int] = {}
        """Number of running transfers by site."""

    # --- called by transfer threads -------------------------------------------------------------------------------------------------------

    def _site_of(self, asker: str) -> str:
        """Returns the site of a worker that has asked for a transfer; empty if the worker has no site."""
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
            self.meter.count_start(site)
            return reading
        except BaseException:
            self._leave(site)
            raise

    def _enter(self, asker: str, limit: SiteLimit) -> str:
        """Counts a new transfer at the site of the worker ``asker`` and returns this site. Raises AskLater if the ``limit`` of the site is
        reached."""
        with self._lock:
            if self._active.get(limit.site, 0) >= limit.max_transfers:
                raise AskLater(LATER_S)
            self._active[limit.site] = self._active.get(limit.site, 0) + 1
            self._sites.pop(asker, None)
            self._sites[asker] = limit.site
            if len(self._sites) > MAX_ASKERS:
                del self._sites[next(iter(self._sites))]
        return limit.site

    def _leave(self, site: str) -> None:
        with self._lock:
            self._active[site] -= 1

    def _sent(self, site: str) -> None:
        self._leave(site)
        self.meter.count_end(site)

    def _open(self, asker: str, record: KnownContent) -> FileReader:
        digest, size = record.digest, record.size
        stored = self._store.verified_path(digest, size)
        if stored is not None:
            return FileReader(stored, size, "site")
        cached = content_path(self._cache, digest)
        if os.path.exists(cached):  # The content is in the cache of this machine. The receiver verifies its hash.
            return FileReader(cached, size, "site")
        if record.path:
            return _user_file(record)
        if record.output:
            return FileReader(self._store_result(record), size, "site")
        if self._may_arrive(asker, record):
            raise AskLater(HOLDER_AGAIN_S)
        raise ContentAbsent(_describe_lost(record), "site")

    def _store_result(self, record: KnownContent) -> str:
        """Copies the result of a call from the payload store to the content store. This is needed if a task uses the result as a content
        and no connected worker can send this content."""
        data = self._calls.call(lambda: self.load_output(record.output))
        try:
            with self._store.incoming(record.digest, record.size) as incoming:
                incoming.write(memoryview(data)[incoming.offset :])
                return incoming.finish()
        except (DigestMismatch, ValueError):
            raise ContentAbsent(_describe_lost(record), "site") from None
        except (WriterBusy, NoSpace):
            raise AskLater(LATER_S) from None

    def _may_arrive(self, asker: str, record: KnownContent) -> bool:
        """Returns True if the worker ``asker`` should ask again later. The reason is that a connected worker has the content, and can send
        it to the master soon.

        Returns False if ``asker`` has already been asking for ``HOLDER_S`` seconds.
        """
        if not record.holder_connected:
            return False
        now = time.monotonic()
        with self._lock:
            since, last = self._asked.pop((asker, record.digest), (now, now))
            since = since if now - last < HOLDER_S else now  # After a long pause, this request belongs to a new task.
            self._asked[asker, record.digest] = since, now
            if len(self._asked) > MAX_ASKED:
                del self._asked[next(iter(self._asked))]
        return now - since < HOLDER_S

    def incoming(self, asker: str, digest: str, size: int) -> IncomingContent | None:
        if self._store.verified_path(digest, size) is not None:
            return None
        free = shutil.disk_usage(self._store.directory).free - self._store.incoming_bytes()
        if free < size + RESERVE_BYTES:
            # The journal is on the same disk and needs free space.
            spared = f"{show_bytes(max(0, free))} are free, and {show_bytes(RESERVE_BYTES)} must stay so"
            problem = f"{show_bytes(size)} do not fit into {self._store.directory}, where {spared}"
            self._report_space(problem)
            raise NoSpace(problem)
        self._report_space("")
        site = self._enter(asker, self._calls.call(lambda: self._lookup.site_limit(asker)))
        try:
            incoming = self._store.incoming(digest, size)
        except BaseException:
            self._leave(site)
            raise
        incoming.on_closed = lambda: self._leave(site)
        return incoming

    def _report_space(self, problem: str) -> None:
        """Tells the machine about a change of ``problem``: the reason why outputs do not fit on the disk, or an empty text if they fit."""
        with self._lock:
            changed, self._space_problem = problem != self._space_problem, problem
        if changed:
            self._tell(i.OutputSpaceChanged(problem))

    # --- called by the event loop ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the waiting of all threads, because the event loop will answer no more requests."""
        self._calls.close()

    def release(self, digest: str) -> None:
        """Removes a content that no run needs. While some tasks are unfinished, waits with the removal for up to ``LATE_S`` seconds.

        The delay is useful if running tasks produce the same content: their workers do not need to upload the content again.
        """
        self._released.pop(digest, None)
        self._released[digest] = time.monotonic()
        self._remove_released()

    def _remove_released(self) -> None:
        now = time.monotonic()
        for known, at in list(self._released.items()):
            if self._machine.state.unfinished and at > now - LATE_S:
                continue
            del self._released[known]
            if known not in self._machine.state.contents:
                with suppress(FileNotFoundError):
                    os.unlink(content_path(self._store.directory, known))
        if self._released and not self._removal_due:
            self._removal_due = True
            self.call_later(max(0.0, next(iter(self._released.values())) + LATE_S - now), self._remove_later)

    def _remove_later(self) -> None:
        self._removal_due = False
        self._remove_released()

    def sweep(self) -> None:
        """Removes old contents that belong to no result, because their agent died before it sent the result."""
        for digest in self._store.contents():
            path = content_path(self._store.directory, digest)
            with suppress(FileNotFoundError):
                if digest not in self._machine.state.contents and time.time() - os.stat(path).st_atime > ORPHANED_S:
                    os.unlink(path)


def _user_file(record: KnownContent) -> FileReader:
    """Opens the user's file. Raises ContentAbsent if the file was changed after submission. The receiver checks the hash of the content."""
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


class LinkMeter:
    """Measures the bandwidth to each site: the number of bytes sent, and the time during which contents were sent.

    Transfer threads call the counting methods. When sending starts and no call of ``read`` is scheduled, the meter calls ``read_soon``.
    """

    def __init__(self, site_of: Callable[[str], str], read_soon: Callable[[], object]) -> None:
        self._site_of = site_of
        self._read_soon = read_soon
        self._lock = threading.Lock()
        self._bytes: dict[str, int] = {}
        self._active: dict[str, int] = {}
        self._since: dict[str, float] = {}
        """For each site: the sending time is counted until this point in time."""
        self._seconds: dict[str, float] = {}
        self._reading_due = False
        """Whether a reading is scheduled."""

    def count_start(self, site: str) -> None:
        with self._lock:
            first, self._reading_due = not self._reading_due, True
            self._active[site] = self._active.get(site, 0) + 1
            self._since.setdefault(site, time.monotonic())
        if first:
            self._read_soon()

    def count_sent(self, asker: str, length: int) -> None:
        """Counts the bytes of one sent piece, and the seconds since the piece before it."""
        site = self._site_of(asker)
        with self._lock:
            if site in self._active:
                self._bytes[site] = self._bytes.get(site, 0) + length
                self._count_time(site)

    def count_end(self, site: str) -> None:
        with self._lock:
            self._count_time(site)
            self._active[site] -= 1
            if not self._active[site]:
                del self._active[site], self._since[site]

    def take_back(self, asker: str, length: int) -> None:
        """Subtracts ``length`` from the counted bytes of a site if no transfer to the site is active any more. These bytes were counted as
        sent, but they are still in buffers of this machine. So the meter would not measure how long they take."""
        site = self._site_of(asker)
        with self._lock:
            if length and site in self._bytes and site not in self._active:
                self._bytes[site] -= length

    def read(self) -> tuple[list[i.TransferMeasured], bool]:
        """Returns a measurement for each site to which enough bytes were sent since its last measurement. The second value is True if
        contents are still being sent, so that ``read`` must be called again."""
        with self._lock:
            measured = [
                i.TransferMeasured(site, self._bytes[site], seconds) for site, seconds in self._seconds.items() if self._is_enough(site)
            ]
            for site in [*self._seconds]:
                if self._is_enough(site) or site not in self._active:
                    del self._seconds[site]
                    self._bytes.pop(site, None)
            self._reading_due = bool(self._active)
            return measured, self._reading_due

    def _is_enough(self, site: str) -> bool:
        return self._bytes.get(site, 0) >= MIN_MEASURED_BYTES and self._seconds[site] > 0

    def _count_time(self, site: str) -> None:
        if site in self._since:
            now = time.monotonic()
            self._seconds[site] = self._seconds.get(site, 0.0) + now - self._since[site]
            self._since[site] = now
