"""Brings contents to this node and away from it, in threads of its own: the event loop must never wait for a disk or for bulk data.

Where a content is looked for, in order: the cache, peers, the site's storage and files that are there already, the master. A cut costs
nothing but time: what has come is kept, and asked for from there on.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import threading
import time
from collections import deque
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ...portable.failures import Failure, describe_limit, is_limit
from ...portable.transfer.cache_directory import CacheError, content_path, remove
from ...portable.transfer.content_cache import ContentCache
from ...portable.transfer.file_locks import WriterBusy
from ...portable.transfer.incoming_content import DigestMismatch, IncomingContent, InUse, NoRoom, TooLarge
from ...portable.transfer.transfer_client import UploadProgress, dial_bulk, fetch, has_ended, push
from ...portable.transfer.transfer_protocol import AskElsewhere, AskLater, ConnectionCut, ContentAbsent, TransferChannel, is_digest
from ...portable.wire.frame_link import LinkLost, Rejected
from ...portable.wire.handshake import BadCredentials, read_credentials
from ..peers.contacts import Contact
from ..slots.output_upload import OutputReport
from .peer_network import PeerNetwork, read_all

FETCHES = 4
STOWS = 2
AGAIN_S = 0.2
AGAIN_MOST_S = 5.0
BUSY_S = 0.2
SEARCH_S = 5.0
ROOM_S = 120.0
"""So long one waits for others to be done with what fills the cache; then this worker counts as full."""
ROOM_AGAIN_S = 0.5
DAMAGED_TIMES = 3
MOST_SOURCES = 16
HERE, PEERS, STORAGE, MASTER = range(4)
"""Where contents are found."""

Answer = Callable[..., None]


class Stopped(Exception):
    """Nobody needs it any more."""


class Fetch:
    """One content that is wanted here."""

    def __init__(self, content: Sequence[Any]) -> None:
        self.digest, self.size, self.path = str(content[0]), int(content[1]), str(content[2])
        self.stopped = threading.Event()
        self.incoming: Optional[IncomingContent] = None
        self.channel: Optional[TransferChannel] = None
        self.published = False
        self.search_at = 0.0
        self.began = time.monotonic()
        self.reached = 0
        """So much had come when the last connection ended."""
        self.copied = 0
        """So much of it was copied from a disk of this machine."""

    def noted(self, offset: int) -> None:
        self.copied = offset

    @property
    def done(self) -> int:
        incoming = self.incoming
        return self.copied if incoming is None else incoming.offset


class Upload:
    """One content that is on its way to the master."""

    def __init__(self, digest: str, size: int) -> None:
        self.digest, self.size = digest, size
        self.progress = UploadProgress()
        self.channel: Optional[TransferChannel] = None


class Fetcher:
    """``tell(what, *arguments)`` is called from any thread with an input of the machine: fetched, not_fetched or stowed."""

    def __init__(self, cache: ContentCache, credentials_path: str, settings: Dict[str, Any], peers: PeerNetwork, tell: Answer) -> None:
        self.cache = cache
        self.peers = peers
        self._worker: str = settings["worker"]
        self._credentials_path = credentials_path
        self._outbox: str = settings["outbox"]
        self._home: str = settings.get("home", "")
        """Where the master keeps contents, if that is on this machine."""
        self._store = _open_store(self._home)
        self._storage: Sequence[str] = settings.get("storage", ())
        self._tell = tell
        self._jobs: Dict[str, Fetch] = {}
        self._pushes: Dict[int, Upload] = {}
        self._unwanted: Dict[int, None] = {}
        """Stows that nobody needs any more."""
        self._fetches: queue.SimpleQueue[Fetch] = queue.SimpleQueue()
        self._stows: queue.SimpleQueue[Tuple[int, Any]] = queue.SimpleQueue()
        self._threads = [0, 0]
        self._got = [0] * 8
        self._counting = threading.Lock()

    # --- called by the agent's own thread -----------------------------------------------------------------------------------------------

    def fetch(self, content: Sequence[Any]) -> None:
        job = self._jobs[content[0]] = Fetch(content)
        self._fetches.put(job)
        self._start(0, min(FETCHES, len(self._jobs)), self._fetch_all)

    def unfetch(self, digest: str) -> None:
        job = self._jobs.pop(digest, None)
        if job is not None:
            job.stopped.set()
            channel = job.channel
            if channel is not None:
                channel.abort()

    def stow(self, number: int, payload: Any) -> None:
        self._stows.put((number, payload))
        self._start(1, STOWS, self._stow_all)

    def unstow(self, number: int) -> None:
        self._unwanted[number] = None
        pushing = self._pushes.get(number)
        if pushing is not None and pushing.channel is not None:
            pushing.channel.abort()

    def discard(self, payload: Any) -> None:
        """Nobody wants these files."""
        try:
            for _, _, path, _ in OutputReport(payload, self._outbox).files():
                remove(path)
        except (ValueError, LookupError, TypeError):
            pass  # a slot can be made to say anything; then nothing is known of any files

    def let_go(self, header: Sequence[Any], body: Any) -> None:
        """No run needs these contents any more."""
        self.cache.let_go([digest for digest in header[1] if is_digest(digest)])

    def moving(self) -> List[List[Any]]:
        """[digest, bytes so far, bytes in all] of what is under way."""
        moving: List[List[Any]] = [[job.digest, job.done, job.size] for job in list(self._jobs.values())]
        moving.extend([pushing.digest, pushing.progress.offset, pushing.size] for pushing in list(self._pushes.values()))
        return moving

    def got(self) -> List[int]:
        return list(self._got)

    def _count(self, source: int, size: int) -> None:
        with self._counting:
            self._got[2 * source] += 1
            self._got[2 * source + 1] += size

    def _start(self, which: int, wanted: int, work: Callable[[], None]) -> None:
        while self._threads[which] < wanted:
            try:
                threading.Thread(target=work, daemon=True).start()
            except RuntimeError:
                if not self._threads[which]:
                    raise
                return  # this machine allows no more: those that there are must do
            self._threads[which] += 1

    # --- inwards ------------------------------------------------------------------------------------------------------------------------

    def _fetch_all(self) -> None:
        master = MasterTransferConnection(self._credentials_path, self._worker)
        while True:
            job = self._fetches.get()
            failure: Optional[Failure] = None
            try:
                self._fetch(job, master)
            except Stopped:
                pass
            except TooLarge as error:
                failure = ["missing-input", "site", str(error)]
            except NoRoom as error:
                failure = ["disk", "worker", str(error)]
            except ContentAbsent as error:
                failure = ["missing-input", error.blame, error.reason]
            except DigestMismatch as error:
                failure = ["missing-input", "site", "its input came damaged %d times: %s" % (DAMAGED_TIMES, error)]
            except OSError as error:
                what = describe_limit(error) if is_limit(error) else error.strerror
                failure = ["missing-input", "worker", "an input cannot be put into the cache: %s" % what]
            except Exception as error:  # noqa: BLE001 - the edge of a thread: somebody waits for its answer
                failure = ["missing-input", "worker", "an input cannot be put into the cache: %r" % error]
            self._fetched(job, failure)

    def _fetched(self, job: Fetch, failure: Optional[Failure]) -> None:
        stopped = job.stopped.is_set()
        if (stopped or failure is not None) and job.published and not self.cache.has(job.digest, job.size):
            self.peers.withdraw([job.digest])
        if stopped:
            return
        if self._jobs.get(job.digest) is job:
            self._jobs.pop(job.digest, None)
        if failure is None:
            self._tell("fetched", job.digest)
        else:
            self._tell("not_fetched", job.digest, failure)

    def _fetch(self, job: Fetch, master: MasterTransferConnection) -> None:
        """What peers had damaged is got from the master."""
        damaged = 0
        wait_s = AGAIN_S
        reached = 0
        sources: Sequence[Contact] = ()
        insist = False
        while True:
            self._pause(job, 0.0)
            try:
                source = self._look_around(job, sources, bool(damaged))
                if source is None:
                    self._fetch_from(job, master.channel(), insist)
                    source = MASTER
                self._count(source, job.size)
                return
            except WriterBusy:
                self._pause(job, BUSY_S)
            except InUse:
                if time.monotonic() > job.began + ROOM_S:
                    raise
                self._pause(job, ROOM_AGAIN_S)
            except DigestMismatch:
                damaged += 1
                if damaged >= DAMAGED_TIMES:
                    raise
            except AskLater as answer:
                self._pause(job, answer.seconds)
            except AskElsewhere as answer:
                sources, insist = list(read_all(answer.contacts)), True
            except ConnectionCut:
                sources = ()
                wait_s = AGAIN_S if job.reached > reached else min(2 * wait_s, AGAIN_MOST_S)
                reached = job.reached
                self._pause(job, wait_s)

    def _look_around(self, job: Fetch, sources: Sequence[Contact], peers_fail: bool) -> Optional[int]:
        """Where it was: in the cache, with peers, in the site's storage, or on a disk that we share with whoever has it."""
        if self.cache.take(job.digest, job.size) is not None:
            return HERE
        if not peers_fail and self._came_from_peers(job, sources):
            return PEERS
        if any(self.cache.adopt_copy(job.digest, job.size, path, job.noted) for path in self._elsewhere_here(job)):
            self.peers.publish([job.digest])
            return STORAGE
        return None

    def _fetch_from(self, job: Fetch, channel: TransferChannel, insist: bool) -> None:
        with self._writing(job) as incoming:
            self._go_on(job, incoming, channel, insist)

    @contextlib.contextmanager
    def _writing(self, job: Fetch) -> Iterator[IncomingContent]:
        """WriterBusy if another agent of this node brings it."""
        try:
            with self.cache.incoming(job.digest, job.size) as job.incoming:
                yield job.incoming
        finally:
            job.reached = max(job.reached, job.done)
            job.incoming = None

    def _go_on(self, job: Fetch, incoming: IncomingContent, channel: TransferChannel, insist: bool) -> None:
        def noted(length: int) -> None:
            if not job.published:  # whoever asks us for it from now on gets what has come, and the rest as it comes
                job.published = True
                self.peers.publish([job.digest])

        job.channel = channel
        try:
            self._pause(job, 0.0)
            fetch(channel, job.digest, job.size, incoming, insist, noted)
            noted(0)
        finally:
            job.channel = None

    def _came_from_peers(self, job: Fetch, sources: Sequence[Contact]) -> bool:
        """Try those that should have it, and those that they name instead."""
        with self._writing(job) as incoming:
            sources = sources or self._holders(job)
            asked = {contact.node: contact for contact in random.sample(sources, len(sources))}
            waiting = deque(asked.values())
            while waiting:
                peer = waiting.popleft()
                try:
                    channel = self.peers.channel(peer)
                except ConnectionCut:
                    continue
                try:
                    self._go_on(job, incoming, channel, False)
                    return True
                except AskElsewhere as answer:
                    for contact in read_all(answer.contacts):
                        if contact.node not in asked and len(asked) < MOST_SOURCES:
                            asked[contact.node] = contact
                            waiting.appendleft(contact)
                except (ConnectionCut, ContentAbsent, AskLater):
                    continue
                finally:
                    self.peers.give_back(peer, channel)
        return False

    def _holders(self, job: Fetch) -> Sequence[Contact]:
        """Those are searched for that have it now; but not for every second that we wait for our turn."""
        now = time.monotonic()
        if now < job.search_at:
            return ()
        job.search_at = now + SEARCH_S
        return self.peers.find(job.digest)

    @staticmethod
    def _pause(job: Fetch, seconds: float) -> None:
        if job.stopped.wait(seconds):
            raise Stopped

    def _elsewhere_here(self, job: Fetch) -> List[str]:
        paths = [job.path] if job.path else []
        for directory in (*self._storage, *([self._home] if self._home else [])):
            paths.append(content_path(directory, job.digest))
            if job.path:
                paths.append(os.path.join(directory, os.path.basename(job.path)))
        return paths

    # --- outwards -----------------------------------------------------------------------------------------------------------------------

    def _stow_all(self) -> None:
        master = MasterTransferConnection(self._credentials_path, self._worker)
        while True:
            number, payload = self._stows.get()
            pinned: List[str] = []
            failure: Optional[Failure] = None
            made: List[List[Any]] = []
            body = b""
            try:
                report = OutputReport(payload, self._outbox)
                body = report.without_files()
                contents, made = self._stow(number, report, master, pinned)
                body = report.stowed(contents)
            except Stopped:
                failure = ["result", "worker", "nobody wanted its files"]
            except TooLarge as error:
                failure = ["result", "site", str(error)]
            except NoRoom as error:
                failure, body = ["disk", "worker", str(error)], b""
            except (ContentAbsent, OSError) as error:
                failure = ["result", "worker", "the output files cannot be kept: %s" % error]
            except Exception as error:  # noqa: BLE001 - the edge of a thread: somebody waits for its answer
                failure = ["result", "worker", "the output files cannot be kept: %r" % error]
            self._unwanted.pop(number, None)
            self._tell("stowed", number, failure, body, made)
            for digest in pinned:
                self.cache.unpin(digest)
            self.discard(payload)

    def _stow(
        self, number: int, report: OutputReport, master: MasterTransferConnection, pinned: List[str]
    ) -> Tuple[List[Tuple[str, int]], List[List[Any]]]:
        contents: List[Tuple[str, int]] = []
        made: List[List[Any]] = []
        for name, mode, path, stays in report.files():
            at_home = None if stays else self._move_home(path)
            if at_home is not None:
                contents.append(at_home)
                made.append([*at_home, True, False, name, mode])
                continue
            digest, size = self._adopt(path)
            self.cache.pin(digest)
            pinned.append(digest)
            contents.append((digest, size))
            self.peers.publish([digest])
            made.append([digest, size, not stays, True, name, mode])
            if stays:
                self.cache.hold(digest)
            else:
                self._push(number, digest, size, master)
        return contents, made

    def _adopt(self, path: str) -> Tuple[str, int]:
        """Take it into the cache. What is in the way may be needed no more in a moment."""
        deadline = time.monotonic() + ROOM_S
        while True:
            try:
                return self.cache.adopt(path)
            except InUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(ROOM_AGAIN_S)

    def _move_home(self, path: str) -> Optional[Tuple[str, int]]:
        """On the master's own machine it is put into the master's store at once: digest and size. It must not be the same file as one in
        the cache, to which tasks have links. None if that is another disk: the master must see to the room there."""
        try:
            if self._store is None or os.stat(self._home).st_dev != os.stat(path).st_dev:
                return None
            return self._store.adopt(path)
        except (OSError, ValueError, NoRoom):
            return None

    def _push(self, number: int, digest: str, size: int, master: MasterTransferConnection) -> None:
        """Until the master has it, for without that the task has no result; or until nobody wants it."""
        pushing = self._pushes[number] = Upload(digest, size)
        wait_s = AGAIN_S
        reached = 0
        try:
            while number not in self._unwanted:
                try:
                    pushing.channel = master.channel()
                    push(pushing.channel, digest, size, content_path(self.cache.directory, digest), pushing.progress)
                    return
                except AskLater as answer:
                    time.sleep(answer.seconds)
                except (ConnectionCut, DigestMismatch, NoRoom) as error:  # a full disk at the master is waited for
                    if isinstance(error, DigestMismatch) and self.cache.take(digest, size) is None:
                        raise ContentAbsent("%s was damaged on this disk" % digest, "worker") from None
                    wait_s = AGAIN_S if pushing.progress.offset > reached else min(2 * wait_s, AGAIN_MOST_S)
                    reached = pushing.progress.offset
                    time.sleep(wait_s)
            raise Stopped
        finally:
            del self._pushes[number]


def _open_store(home: str) -> Optional[ContentCache]:
    try:
        return ContentCache(home, 1 << 62, lambda digest: True, durable=True) if home else None
    except (CacheError, OSError):
        return None  # then the master keeps what it is sent


# A thread's own bulk connection to the master.


class MasterTransferConnection:
    """Dialled when it is needed, and again after a cut."""

    def __init__(self, credentials_path: str, worker: str) -> None:
        self._credentials_path = credentials_path
        self._worker = worker
        self._channel: Optional[TransferChannel] = None

    def channel(self) -> TransferChannel:
        if self._channel is not None and self._channel.fileno() >= 0:
            if not has_ended(self._channel):
                return self._channel
            self._channel.close()
        try:
            self._channel = dial_bulk(read_credentials(self._credentials_path), self._worker)
        except (LinkLost, Rejected, BadCredentials, OSError) as error:
            raise ConnectionCut(str(error)) from None
        return self._channel
