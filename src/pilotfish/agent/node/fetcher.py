"""Fetches inputs and uploads outputs in threads, because the event loop must never wait for a disk or a transfer.

A content is looked for in four places, in this order: the cache, the peers, files that this node can read (the user's own file or the
storage of the site), the master. After a lost connection, a transfer continues where it stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import threading
import time
from collections import deque
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ...portable.failures import AttemptError, Failure, describe_limit, is_limit
from ...portable.output_marks import FULL_DISK
from ...portable.payload_format import begins_with, pack, unpack
from ...portable.transfer.cache_directory import CacheError, content_path, is_digest, remove
from ...portable.transfer.content_cache import ContentCache
from ...portable.transfer.file_locks import WriterBusy
from ...portable.transfer.incoming_content import DigestMismatch, IncomingContent, InUse, NoSpace, TooLarge
from ...portable.transfer.transfer_client import UploadProgress, dial_transfer, fetch, has_ended, push
from ...portable.transfer.transfer_protocol import AskElsewhere, AskLater, ConnectionCut, ContentAbsent, TransferChannel
from ...portable.wire.frame_link import LinkLost, Rejected
from ...portable.wire.handshake import BadCredentials, read_credentials
from ..peers.contacts import Contact
from ..slots.sandbox import name_parts
from ..slots.shared_page import UPLOAD_MARK
from .peer_network import PeerNetwork, valid_contacts

FETCH_THREADS = 4
UPLOAD_THREADS = 2
RETRY_S = 0.2
MAX_RETRY_S = 5.0
WRITER_BUSY_RETRY_S = 0.2
PEER_SEARCH_APART_S = 5.0
CACHE_FULL_TIMEOUT_S = 120.0
"""If the cache is full and all its contents are in use for this many seconds, the disk counts as full."""
CACHE_FULL_RETRY_S = 0.5
MAX_DAMAGED = 3
MAX_SOURCES = 16
MAX_NAMES_BYTES = 4 * 1024 * 1024
"""Maximum bytes of file names in the header of a result. Files whose names do not fit cannot be passed to other tasks."""
RESULT = "/result"
"""Name of the content that is the result of a call. See ``model/contents.py``."""
STREAMS = ("stdout", "stderr")
HERE, PEERS, STORAGE, MASTER = range(4)
"""Sources of a content."""

Notify = Callable[..., None]


class TransferCancelled(Exception):
    """The transfer is no longer needed."""


class Fetch:
    """One content that is being fetched."""

    def __init__(self, content: Sequence[Any]) -> None:
        self.digest, self.size, self.path = str(content[0]), int(content[1]), str(content[2])
        self.stopped = threading.Event()
        self.incoming: Optional[IncomingContent] = None
        self.channel: Optional[TransferChannel] = None
        self.published = False
        self.next_search_at = 0.0
        self.started_at = time.monotonic()
        self.received_bytes = 0
        """Bytes that had been received when the last connection ended."""
        self.copied = 0
        """Bytes that have been copied from a local disk."""

    def on_progress(self, offset: int) -> None:
        self.copied = offset

    @property
    def done(self) -> int:
        incoming = self.incoming
        return self.copied if incoming is None else incoming.offset


class Upload:
    """One content that is being sent to the master."""

    def __init__(self, digest: str, size: int) -> None:
        self.digest, self.size = digest, size
        self.progress = UploadProgress()
        self.channel: Optional[TransferChannel] = None


class OutputReport:
    """The report of a task whose large output files and streams (standard output and error) are in the outbox: the directory for outputs to
    upload.

    A file in the outbox is listed as [name, mode, size, path]; if the file stays with this worker, as [name, mode, size, path, true]. A
    stream in the outbox is listed as [stdout or stderr, size, path]. In the payload of the result, the digest replaces the path: a file is
    listed as [name, mode, digest, size], and a stream as [stdout or stderr, digest, size].

    User code can forge a report, so only the last component of a path is used.
    """

    def __init__(self, payload: Any, outbox: str) -> None:
        self._parts: List[Any] = list(unpack(payload))
        self._summary = json.loads(bytes(self._parts[0]))
        self._outbox = outbox

    def files(self) -> Iterator[Tuple[str, int, str, bool]]:
        """Yields name, mode and path of each file in the outbox, and whether the file stays with this worker."""
        left = MAX_NAMES_BYTES
        for entry in self._summary.get("files", ()):
            if len(entry) > 2:
                name, path = _usable_name(entry[0]), os.path.join(self._outbox, os.path.basename(entry[3]))
                left -= 6 * len(name)
                yield name if left >= 0 else "", int(entry[1]) & 0o777, path, len(entry) > 4

    def streams(self) -> Iterator[Tuple[str, str]]:
        """Yields the name and the path of each stream in the outbox."""
        for name, _, path in self._summary.get("streams", ()):
            if name in STREAMS:
                yield name, os.path.join(self._outbox, os.path.basename(path))

    def paths(self) -> Iterator[str]:
        """Yields the paths of everything that this report has in the outbox."""
        for _, _, path, _ in self.files():
            yield path
        for _, path in self.streams():
            yield path

    def keep_streams(self, contents: Dict[str, Tuple[str, int]]) -> None:
        """Sets digest and size of the streams that were stored. If a stream could not be stored, the result has only its head and tail, and
        the rest of the stream is lost."""
        for name, _, _ in self._summary.pop("streams", ()):
            if name in STREAMS and name not in contents:
                self._summary[name + "_dropped"] = self._summary.get(name + "_omitted", 0)
                self._summary[name + "_reason"] = FULL_DISK
        if contents:
            self._summary["streams"] = [[name, *content] for name, content in contents.items()]

    def left_out(self) -> int:
        """Returns how many bytes of the streams are stored nowhere."""
        return sum(max(0, int(self._summary.get(name + "_dropped", 0))) for name in STREAMS)

    def with_contents(self, contents: Sequence[Tuple[str, int]]) -> bytes:
        """Returns the payload of the result. ``contents``: digest and size of each file of ``files()``, in the same order."""
        stored = iter(contents)
        files = self._summary.get("files")
        if files:
            files = [[*entry[:2], *next(stored)] if len(entry) > 2 else entry for entry in files]
        return self._packed(files, self._parts[1:])

    def without_files(self) -> bytes:
        """Returns the payload of the result without its files. It is reported if the files cannot be stored."""
        return self._packed([], self._parts[1:3])

    def _packed(self, files: Any, parts: List[Any]) -> bytes:
        summary = {**self._summary, "files": files} if files is not None else dict(self._summary)
        del summary["stow"]
        return pack([json.dumps(summary).encode(), *parts])


class MasterTransferConnection:
    """The transfer connection of one thread to the master. The thread dials when it needs the connection, and again after the connection
    was lost."""

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
            self._channel = dial_transfer(read_credentials(self._credentials_path), self._worker)
        except (LinkLost, Rejected, BadCredentials, OSError) as error:
            raise ConnectionCut(str(error)) from None
        return self._channel


class Fetcher:
    """Fetches inputs and uploads outputs. The threads of the fetcher call ``notify`` with the name and the arguments of an input of the
    machine: fetched, not_fetched, left_out or uploaded."""

    def __init__(self, cache: ContentCache, credentials_path: str, settings: Dict[str, Any], peers: PeerNetwork, notify: Notify) -> None:
        self.cache = cache
        self.peers = peers
        self._worker: str = settings["worker"]
        self._credentials_path = credentials_path
        self._outbox: str = settings["outbox"]
        self._master_store: str = settings.get("home", "")
        """Directory of the content store of the master, if the master is on this node."""
        self._store = _open_store(self._master_store)
        self._storage: Sequence[str] = settings.get("storage", ())
        self._notify = notify
        self._active: Dict[str, Fetch] = {}
        self._uploads: Dict[int, Upload] = {}
        self._cancelled: Dict[int, None] = {}
        """Numbers of cancelled uploads."""
        self._fetch_queue: queue.SimpleQueue[Fetch] = queue.SimpleQueue()
        self._upload_queue: queue.SimpleQueue[Tuple[int, Any]] = queue.SimpleQueue()
        self._threads = [0, 0]
        self._fetch_totals = [0] * 8
        self._counting = threading.Lock()

    # --- called by the agent's thread ---------------------------------------------------------------------------------------------------

    def fetch(self, content: Sequence[Any]) -> None:
        fetching = self._active[content[0]] = Fetch(content)
        self._fetch_queue.put(fetching)
        self._start(0, min(FETCH_THREADS, len(self._active)), self._fetch_loop)

    def cancel_fetch(self, digest: str) -> None:
        fetching = self._active.pop(digest, None)
        if fetching is not None:
            fetching.stopped.set()
            channel = fetching.channel
            if channel is not None:
                channel.abort()

    def upload(self, number: int, payload: Any) -> None:
        self._upload_queue.put((number, payload))
        self._start(1, UPLOAD_THREADS, self._upload_loop)

    def cancel_upload(self, number: int) -> None:
        self._cancelled[number] = None
        uploading = self._uploads.get(number)
        if uploading is not None and uploading.channel is not None:
            uploading.channel.abort()

    def discard(self, payload: Any) -> None:
        """Deletes the files in the outbox that a report lists."""
        try:
            for path in OutputReport(payload, self._outbox).paths():
                remove(path)
        except (ValueError, LookupError, TypeError):
            pass  # user code can forge a report; a forged report possibly lists no files

    def release(self, header: Sequence[Any], body: Any) -> None:
        """Allows the cache to evict contents that no run needs any more."""
        self.cache.release([digest for digest in header[1] if is_digest(digest)])

    def transfers(self) -> List[List[Any]]:
        """Returns [digest, bytes so far, total bytes] of running transfers."""
        transfers: List[List[Any]] = [[fetching.digest, fetching.done, fetching.size] for fetching in list(self._active.values())]
        transfers.extend([uploading.digest, uploading.progress.offset, uploading.size] for uploading in list(self._uploads.values()))
        return transfers

    def fetch_totals(self) -> List[int]:
        """Returns two numbers for each source: the number of fetched contents, and their bytes."""
        return list(self._fetch_totals)

    def _count(self, source: int, size: int) -> None:
        with self._counting:
            self._fetch_totals[2 * source] += 1
            self._fetch_totals[2 * source + 1] += size

    def _start(self, group: int, count: int, loop: Callable[[], None]) -> None:
        while self._threads[group] < count:
            try:
                threading.Thread(target=loop, daemon=True).start()
            except RuntimeError:
                if not self._threads[group]:
                    raise
                return  # this node allows no more threads
            self._threads[group] += 1

    # --- fetching -----------------------------------------------------------------------------------------------------------------------

    def _fetch_loop(self) -> None:
        master = MasterTransferConnection(self._credentials_path, self._worker)
        while True:
            fetching = self._fetch_queue.get()
            failure: Optional[Failure] = None
            try:
                self._fetch(fetching, master)
            except TransferCancelled:
                pass
            except TooLarge as error:
                failure = ["missing-input", "site", str(error)]
            except NoSpace as error:
                failure = ["disk", "worker", str(error)]
            except ContentAbsent as error:
                failure = ["missing-input", error.blame, error.reason]
            except DigestMismatch as error:
                failure = ["missing-input", "site", "its input came damaged %d times: %s" % (MAX_DAMAGED, error)]
            except OSError as error:
                what = describe_limit(error) if is_limit(error) else error.strerror
                failure = ["missing-input", "worker", "an input cannot be put into the cache: %s" % what]
            except Exception as error:  # noqa: BLE001 - edge of a thread: the machine waits for an answer
                failure = ["missing-input", "worker", "an input cannot be put into the cache: %r" % error]
            self._fetched(fetching, failure)

    def _fetched(self, fetching: Fetch, failure: Optional[Failure]) -> None:
        stopped = fetching.stopped.is_set()
        if (stopped or failure is not None) and fetching.published and not self.cache.has(fetching.digest, fetching.size):
            self.peers.withdraw(fetching.digest)
        if stopped:
            return
        if self._active.get(fetching.digest) is fetching:
            self._active.pop(fetching.digest, None)
        if failure is None:
            self._notify("fetched", fetching.digest)
        else:
            self._notify("not_fetched", fetching.digest, failure)

    def _fetch(self, fetching: Fetch, master: MasterTransferConnection) -> None:
        """Fetches a content from the first source that has it, and retries. After damaged bytes have arrived once, asks no peer again."""
        damaged = 0
        wait_s = RETRY_S
        received_before = 0
        sources: Sequence[Contact] = ()
        no_redirect = False
        while True:
            self._pause(fetching, 0.0)
            try:
                source = self._fetch_nearby(fetching, sources, bool(damaged))
                if source is None:
                    channel = master.channel()
                    with self._writing(fetching) as incoming:
                        self._receive(fetching, incoming, channel, no_redirect)
                    source = MASTER
                self._count(source, fetching.size)
                return
            except WriterBusy:
                self._pause(fetching, WRITER_BUSY_RETRY_S)
            except InUse:
                if time.monotonic() > fetching.started_at + CACHE_FULL_TIMEOUT_S:
                    raise
                self._pause(fetching, CACHE_FULL_RETRY_S)
            except DigestMismatch:
                damaged += 1
                if damaged >= MAX_DAMAGED:
                    raise
            except AskLater as answer:
                self._pause(fetching, answer.seconds)
            except AskElsewhere as answer:
                sources, no_redirect = list(valid_contacts(answer.contacts)), True
            except ConnectionCut:
                sources = ()
                wait_s = RETRY_S if fetching.received_bytes > received_before else min(2 * wait_s, MAX_RETRY_S)
                received_before = fetching.received_bytes
                self._pause(fetching, wait_s)

    def _fetch_nearby(self, fetching: Fetch, sources: Sequence[Contact], skip_peers: bool) -> Optional[int]:
        """Gets a content from the cache, a peer or a local file. Returns HERE, PEERS or STORAGE, or None if the content is in none of these
        places."""
        if self.cache.verified_path(fetching.digest, fetching.size) is not None:
            return HERE
        if not skip_peers and self._fetch_from_peers(fetching, sources):
            return PEERS
        if any(self.cache.adopt_copy(fetching.digest, fetching.size, path, fetching.on_progress) for path in self._local_paths(fetching)):
            self.peers.publish(fetching.digest)
            return STORAGE
        return None

    @contextlib.contextmanager
    def _writing(self, fetching: Fetch) -> Iterator[IncomingContent]:
        """Opens the content in the cache for writing. Raises WriterBusy if another agent of this node writes it now."""
        try:
            with self.cache.incoming(fetching.digest, fetching.size) as fetching.incoming:
                yield fetching.incoming
        finally:
            fetching.received_bytes = max(fetching.received_bytes, fetching.done)
            fetching.incoming = None

    def _receive(self, fetching: Fetch, incoming: IncomingContent, channel: TransferChannel, no_redirect: bool) -> None:
        def on_progress(length: int) -> None:
            if not fetching.published:  # from now on, peers can fetch from here what has arrived
                fetching.published = True
                self.peers.publish(fetching.digest)

        fetching.channel = channel
        try:
            self._pause(fetching, 0.0)
            fetch(channel, fetching.digest, fetching.size, incoming, no_redirect, on_progress)
            on_progress(0)
        finally:
            fetching.channel = None

    def _fetch_from_peers(self, fetching: Fetch, sources: Sequence[Contact]) -> bool:
        """Fetches a content from ``sources``. If there are no sources, fetches it from the holders of the content. A peer can answer with
        the contacts of other peers; these are tried, too. Returns False if no peer sent the content."""
        with self._writing(fetching) as incoming:
            sources = sources or self._holders(fetching)
            asked = {contact.node: contact for contact in random.sample(sources, len(sources))}
            waiting = deque(asked.values())
            while waiting:
                peer = waiting.popleft()
                try:
                    channel = self.peers.channel(peer)
                except ConnectionCut:
                    continue
                try:
                    self._receive(fetching, incoming, channel, False)
                    return True
                except AskElsewhere as answer:
                    for contact in valid_contacts(answer.contacts):
                        if contact.node not in asked and len(asked) < MAX_SOURCES:
                            asked[contact.node] = contact
                            waiting.appendleft(contact)
                except (ConnectionCut, ContentAbsent, AskLater):
                    continue
                finally:
                    self.peers.release_channel(peer, channel)
        return False

    def _holders(self, fetching: Fetch) -> Sequence[Contact]:
        """Searches for holders of the content. Returns no holders if the last search began less than PEER_SEARCH_APART_S seconds ago."""
        now = time.monotonic()
        if now < fetching.next_search_at:
            return ()
        fetching.next_search_at = now + PEER_SEARCH_APART_S
        return self.peers.find(fetching.digest)

    @staticmethod
    def _pause(fetching: Fetch, seconds: float) -> None:
        if fetching.stopped.wait(seconds):
            raise TransferCancelled

    def _local_paths(self, fetching: Fetch) -> List[str]:
        paths = [fetching.path] if fetching.path else []
        for directory in (*self._storage, *([self._master_store] if self._master_store else [])):
            paths.append(content_path(directory, fetching.digest))
            if fetching.path:
                paths.append(os.path.join(directory, os.path.basename(fetching.path)))
        return paths

    # --- uploading ----------------------------------------------------------------------------------------------------------------------

    def _upload_loop(self) -> None:
        master = MasterTransferConnection(self._credentials_path, self._worker)
        while True:
            number, payload = self._upload_queue.get()
            pinned: List[str] = []
            failure: Optional[Failure] = None
            produced: List[List[Any]] = []
            body = b""
            try:
                if begins_with(payload, UPLOAD_MARK):
                    report = OutputReport(payload, self._outbox)
                    produced = self._upload_streams(number, report, master, pinned)
                    if report.left_out():
                        self._notify("left_out", number, report.left_out())
                    body = report.without_files()
                    contents, files = self._upload_outputs(number, report, master, pinned)
                    body = report.with_contents(contents)
                    produced += files
                else:
                    body, produced = payload, self._keep_result(payload, pinned)
            except TransferCancelled:
                failure = ["result", "worker", "its output files are not needed any more"]
            except TooLarge as error:
                failure = ["result", "site", str(error)]
            except NoSpace as error:
                failure = ["disk", "worker", str(error)]
            except (ContentAbsent, OSError) as error:
                failure = ["result", "worker", "the output files cannot be kept: %s" % error]
            except Exception as error:  # noqa: BLE001 - edge of a thread: the machine waits for an answer
                failure = ["result", "worker", "the output files cannot be kept: %r" % error]
            self._cancelled.pop(number, None)
            self._notify("uploaded", number, failure, body, produced)
            for digest in pinned:
                self.cache.unpin(digest)
            self.discard(payload)

    def _keep_result(self, payload: Any, pinned: List[str]) -> List[List[Any]]:
        """Puts the result of a call into the cache, for later calls that have the result as an argument. Returns a list with the produced
        content (see ``pending_results.Item``).

        Returns an empty list if the result cannot be stored in the cache. Nothing is lost, because the result is also sent to the master.
        """
        path = os.path.join(self._outbox, "result-" + os.urandom(16).hex())
        try:
            with open(path, "xb", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, 0o600)) as file:
                file.write(payload)
            digest, size = self.cache.adopt(path)
            self.cache.pin(digest)
            pinned.append(digest)
            self.peers.publish(digest)
            return [[digest, size, True, True, RESULT, 0]]
        except (OSError, NoSpace, InUse, TooLarge, CacheError, ValueError):
            remove(path)
            return []

    def _upload_outputs(
        self, number: int, report: OutputReport, master: MasterTransferConnection, pinned: List[str]
    ) -> Tuple[List[Tuple[str, int]], List[List[Any]]]:
        contents: List[Tuple[str, int]] = []
        produced: List[List[Any]] = []
        for name, mode, path, stays in report.files():
            stored = None if stays else self._store_at_master(path)
            if stored is not None:
                contents.append(stored)
                produced.append([*stored, True, False, name, mode])
                continue
            digest, size = self._publish(path, pinned)
            contents.append((digest, size))
            produced.append([digest, size, not stays, True, name, mode])
            if stays:
                self.cache.hold(digest)
            else:
                self._upload_content(number, digest, size, master)
        return contents, produced

    def _publish(self, path: str, pinned: List[str]) -> Tuple[str, int]:
        """Moves a file into the cache, pins it there and announces it to peers; returns digest and size."""
        digest, size = self._adopt(path)
        self.cache.pin(digest)
        pinned.append(digest)
        self.peers.publish(digest)
        return digest, size

    def _upload_streams(self, number: int, report: OutputReport, master: MasterTransferConnection, pinned: List[str]) -> List[List[Any]]:
        """Stores the streams of a report at the master. Returns the produced contents.

        If a stream cannot be stored, the task does not fail: its result says how much of the stream is missing.
        """
        produced: List[List[Any]] = []
        contents: Dict[str, Tuple[str, int]] = {}
        for name, path in report.streams():
            try:
                stored = self._store_at_master(path)
                if stored is None:
                    contents[name] = self._publish(path, pinned)
                    self._upload_content(number, *contents[name], master)
                else:
                    contents[name] = stored
                produced.append([*contents[name], True, stored is None, "", 0])
            except (TooLarge, NoSpace, InUse, ContentAbsent, OSError):
                contents.pop(name, None)
        report.keep_streams(contents)
        return produced

    def _adopt(self, path: str) -> Tuple[str, int]:
        """Moves a file into the cache; returns digest and size. While the cache is full, waits until contents are released; gives up after
        ``CACHE_FULL_TIMEOUT_S``."""
        deadline = time.monotonic() + CACHE_FULL_TIMEOUT_S
        while True:
            try:
                return self.cache.adopt(path)
            except InUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(CACHE_FULL_RETRY_S)

    def _store_at_master(self, path: str) -> Optional[Tuple[str, int]]:
        """Moves a file into the content store of the master. Returns digest and size of the file. Returns None if that is impossible: for
        example, the master is on a different node, or the store is on a different disk. The caller must then send the file to the master.

        The moved file is not linked into the cache. The reason: tasks get links to files of the cache, but a task must not get a link to a
        file of the store.
        """
        try:
            if self._store is None or os.stat(self._master_store).st_dev != os.stat(path).st_dev:
                return None
            return self._store.adopt(path)
        except (OSError, ValueError, NoSpace):
            return None

    def _upload_content(self, number: int, digest: str, size: int, master: MasterTransferConnection) -> None:
        """Sends a content to the master. Retries until the master has the content or the upload is cancelled, because the result refers to
        the content."""
        uploading = self._uploads[number] = Upload(digest, size)
        wait_s = RETRY_S
        received_before = 0
        try:
            while number not in self._cancelled:
                try:
                    uploading.channel = master.channel()
                    push(uploading.channel, digest, size, content_path(self.cache.directory, digest), uploading.progress)
                    return
                except AskLater as answer:
                    time.sleep(answer.seconds)
                except (ConnectionCut, DigestMismatch, NoSpace) as error:  # NoSpace means that the disk of the master is full
                    if isinstance(error, DigestMismatch) and self.cache.verified_path(digest, size) is None:
                        raise ContentAbsent("%s was damaged on this disk" % digest, "worker") from None
                    wait_s = RETRY_S if uploading.progress.offset > received_before else min(2 * wait_s, MAX_RETRY_S)
                    received_before = uploading.progress.offset
                    time.sleep(wait_s)
            raise TransferCancelled
        finally:
            del self._uploads[number]


def _usable_name(name: Any) -> str:
    """Returns ``name``, or "" if it is no valid file name or cannot be encoded for the master."""
    try:
        name_parts(name)
        name.encode()
    except (AttemptError, UnicodeEncodeError):
        return ""
    return str(name)


def _open_store(directory: str) -> Optional[ContentCache]:
    try:
        return ContentCache(directory, 1 << 62, lambda digest: True, durable=True) if directory else None
    except (CacheError, OSError):
        return None  # contents are sent to the master instead
