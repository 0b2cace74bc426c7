"""Brings contents to this node and away from it, in threads of its own: the event loop must never wait for a disk or for bulk data.

Where a content is looked for, in order: the cache, peers, the site's storage and files that are there already, the master. A cut costs
nothing but time: what has come is kept, and asked for from there on.
"""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections import deque
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .bulk import Absent, AskLater, Channel, Cut, Elsewhere, is_digest
from .bulk_asking import Progress, dial_bulk, fetch, push
from .cache import Busy, Cache, Damaged, NoRoom
from .cache_directory import content_path
from .failure import Failure
from .incoming import Incoming
from .limits import describe_limit, is_limit
from .link import BadCredentials, Credentials, LinkLost, Refused
from .overlay.contacts import Contact
from .peers import Peers, read_all
from .stowing import Report

FETCHES = 4
STOWS = 2
AGAIN_S = 0.2
AGAIN_MOST_S = 5.0
BUSY_S = 0.2
DAMAGED_TIMES = 3
MOST_SOURCES = 16
HERE, PEERS, STORAGE, MASTER = range(4)
"""Where contents are found."""

Answer = Callable[..., None]


class Stopped(Exception):
    """Nobody needs it any more."""


class Job:
    """One content that is wanted here."""

    def __init__(self, content: Sequence[Any]) -> None:
        self.digest, self.size, self.path = str(content[0]), int(content[1]), str(content[2])
        self.stopped = threading.Event()
        self.incoming: Optional[Incoming] = None
        self.channel: Optional[Channel] = None
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


class Carrier:
    """``tell(what, *arguments)`` is called from any thread with an input of the machine: fetched, not_fetched or stowed."""

    def __init__(self, cache: Cache, credentials_path: str, settings: Dict[str, Any], peers: Peers, tell: Answer) -> None:
        self.cache = cache
        self.peers = peers
        self._worker: str = settings["worker"]
        self._credentials_path = credentials_path
        self._outbox: str = settings["outbox"]
        self._home: str = settings.get("home", "")
        """Where the master keeps contents, if that is on this machine."""
        self._storage: Sequence[str] = settings.get("storage", ())
        self._tell = tell
        self._jobs: Dict[str, Job] = {}
        self._pushes: Dict[str, Tuple[Progress, int]] = {}
        self._fetches: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._stows: queue.SimpleQueue[Tuple[int, Any]] = queue.SimpleQueue()
        self._threads = [0, 0]
        self._got = [0] * 8
        self._counting = threading.Lock()

    # --- called by the agent's own thread -----------------------------------------------------------------------------------------------

    def fetch(self, content: Sequence[Any]) -> None:
        job = self._jobs[content[0]] = Job(content)
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

    def discard(self, payload: Any) -> None:
        """Nobody wants these files."""
        for _, path, _ in Report(payload, self._outbox).files():
            _remove(path)

    def let_go(self, header: Sequence[Any], body: Any) -> None:
        """No run needs these contents any more."""
        self.cache.let_go([digest for digest in header[1] if is_digest(digest)])

    def moving(self) -> List[List[Any]]:
        """[digest, bytes so far, bytes in all] of what is under way."""
        moving: List[List[Any]] = [[job.digest, job.done, job.size] for job in list(self._jobs.values())]
        moving.extend([digest, progress.offset, size] for digest, (progress, size) in list(self._pushes.items()))
        return moving

    def got(self) -> List[int]:
        return list(self._got)

    def _count(self, source: int, size: int) -> None:
        with self._counting:
            self._got[2 * source] += 1
            self._got[2 * source + 1] += size

    def _start(self, which: int, wanted: int, work: Callable[[], None]) -> None:
        while self._threads[which] < wanted:
            self._threads[which] += 1
            threading.Thread(target=work, daemon=True).start()

    # --- inwards ------------------------------------------------------------------------------------------------------------------------

    def _fetch_all(self) -> None:
        master = MasterLine(self._credentials_path, self._worker)
        while True:
            job = self._fetches.get()
            try:
                self._fetch(job, master)
            except Stopped:
                continue
            except NoRoom as error:
                self._failed(job, ["disk", "worker", str(error)])
            except Absent as error:
                self._failed(job, ["missing-input", error.blame, error.reason])
            except Damaged as error:
                self._failed(job, ["missing-input", "site", "its input came damaged %d times: %s" % (DAMAGED_TIMES, error)])
            except OSError as error:
                what = describe_limit(error) if is_limit(error) else error.strerror
                self._failed(job, ["missing-input", "worker", "an input cannot be put into the cache: %s" % what])
            else:
                if self._jobs.get(job.digest) is job:
                    del self._jobs[job.digest]
                self._tell("fetched", job.digest)

    def _failed(self, job: Job, failure: Failure) -> None:
        if self._jobs.get(job.digest) is job:
            del self._jobs[job.digest]
        if not job.stopped.is_set():
            self._tell("not_fetched", job.digest, failure)

    def _fetch(self, job: Job, master: MasterLine) -> None:
        damaged = 0
        wait_s = AGAIN_S
        reached = 0
        sources: Sequence[Contact] = ()
        insist = False
        while not self._is_here(job, sources):
            try:
                self._fetch_from(job, master.channel(), insist)
                self._count(MASTER, job.size)
                return
            except Busy:
                self._pause(job, BUSY_S)
            except Damaged:
                damaged += 1
                if damaged >= DAMAGED_TIMES:
                    raise
            except AskLater as answer:
                self._pause(job, answer.seconds)
            except Elsewhere as answer:
                sources, insist = list(read_all(answer.contacts)), True
            except Cut:
                sources = ()
                wait_s = AGAIN_S if job.reached > reached else min(2 * wait_s, AGAIN_MOST_S)
                reached = job.reached
                self._pause(job, wait_s)

    def _fetch_from(self, job: Job, channel: Channel, insist: bool) -> None:
        job.channel = channel
        try:
            with self.cache.incoming(job.digest, job.size) as job.incoming:
                self.peers.publish([job.digest])  # whoever asks us for it meanwhile gets what has come, and the rest as it comes
                if job.stopped.is_set():
                    raise Stopped
                fetch(channel, job.digest, job.size, job.incoming, insist)
        finally:
            job.reached = max(job.reached, job.done)
            job.channel = job.incoming = None

    def _came_from_peers(self, job: Job, sources: Sequence[Contact]) -> bool:
        """Try those that should have it, and those that they name instead. What one of them has damaged is got from the master."""
        asked = {contact.node: contact for contact in random.sample(sources, len(sources))}
        waiting = deque(asked.values())
        while waiting:
            try:
                channel = self.peers.channel(waiting.popleft())
            except Cut:
                continue
            try:
                self._fetch_from(job, channel, False)
                return True
            except Elsewhere as answer:
                for contact in read_all(answer.contacts):
                    if contact.node not in asked and len(asked) < MOST_SOURCES:
                        asked[contact.node] = contact
                        waiting.appendleft(contact)
            except (Cut, Absent, AskLater):
                continue
            except (Busy, Damaged):
                break
            finally:
                channel.close()
        return False

    @staticmethod
    def _pause(job: Job, seconds: float) -> None:
        if job.stopped.wait(seconds):
            raise Stopped

    def _is_here(self, job: Job, sources: Sequence[Contact]) -> bool:
        """In the cache, with peers, in the site's storage, or on a disk that we share with whoever has it."""
        if job.stopped.is_set():
            raise Stopped
        if self.cache.take(job.digest, job.size) is not None:
            self._count(HERE, job.size)
            return True
        if self._came_from_peers(job, sources or self.peers.find(job.digest)):
            self._count(PEERS, job.size)
            return True
        if any(self.cache.adopt_copy(job.digest, job.size, path, job.noted) for path in self._elsewhere_here(job)):
            self._count(STORAGE, job.size)
            self.peers.publish([job.digest])
            return True
        return False

    def _elsewhere_here(self, job: Job) -> List[str]:
        paths = [job.path] if job.path else []
        for directory in (*self._storage, *([self._home] if self._home else [])):
            paths.append(content_path(directory, job.digest))
            if job.path:
                paths.append(os.path.join(directory, os.path.basename(job.path)))
        return paths

    # --- outwards -----------------------------------------------------------------------------------------------------------------------

    def _stow_all(self) -> None:
        master = MasterLine(self._credentials_path, self._worker)
        while True:
            number, payload = self._stows.get()
            report = Report(payload, self._outbox)
            try:
                contents, made = self._stow(report, master)
            except NoRoom as error:
                self._tell("stowed", number, ["disk", "worker", str(error)], b"", [])
            except (OSError, ValueError, Absent) as error:
                failure = ["result", "worker", "the output files cannot be kept: %s" % error]
                self._tell("stowed", number, failure, report.without_files(), [])
            else:
                self._tell("stowed", number, None, report.stowed(contents), made)
            finally:
                self.discard(payload)

    def _stow(self, report: Report, master: MasterLine) -> Tuple[List[Tuple[str, int]], List[List[Any]]]:
        contents: List[Tuple[str, int]] = []
        made: List[List[Any]] = []
        for _, path, stays in report.files():
            digest, size = self.cache.adopt(path)
            contents.append((digest, size))
            self.peers.publish([digest])
            made.append([digest, size, not stays])
            if stays:
                self.cache.hold(digest)
            if not stays and not self._link_home(digest):
                self._push(digest, size, master)
        return contents, made

    def _link_home(self, digest: str) -> bool:
        """On the master's own machine both have the same file."""
        if not self._home:
            return False
        place = content_path(self._home, digest)
        try:
            os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
            try:
                os.link(content_path(self.cache.directory, digest), place)
            except FileExistsError:
                pass
            for path, flags in ((place, os.O_RDONLY), (os.path.dirname(place), os.O_RDONLY | os.O_DIRECTORY)):
                descriptor = os.open(path, flags | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        except OSError:
            return False
        return True

    def _push(self, digest: str, size: int, master: MasterLine) -> None:
        """Until the master has it: without that, the task has no result."""
        progress = Progress()
        self._pushes[digest] = (progress, size)
        wait_s = AGAIN_S
        reached = 0
        try:
            while True:
                try:
                    push(master.channel(), digest, size, content_path(self.cache.directory, digest), progress)
                    return
                except AskLater as answer:
                    time.sleep(answer.seconds)
                except (Cut, Damaged, NoRoom):
                    # A full disk at the master is waited for; what is damaged here is found when it is read again.
                    wait_s = AGAIN_S if progress.offset > reached else min(2 * wait_s, AGAIN_MOST_S)
                    reached = progress.offset
                    time.sleep(wait_s)
        finally:
            del self._pushes[digest]


class MasterLine:
    """One thread's bulk connection to the master, dialled when it is needed and again after a cut."""

    def __init__(self, credentials_path: str, worker: str) -> None:
        self._credentials_path = credentials_path
        self._worker = worker
        self._channel: Optional[Channel] = None

    def channel(self) -> Channel:
        if self._channel is not None and self._channel.fileno() >= 0:
            return self._channel
        try:
            self._channel = dial_bulk(Credentials(self._credentials_path), self._worker)
        except (LinkLost, Refused, BadCredentials, OSError) as error:
            raise Cut(str(error)) from None
        return self._channel


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
