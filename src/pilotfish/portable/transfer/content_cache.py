"""Keeps contents on a node by digest. All agents of the node share the contents. The contents remain when this process ends.

A content is hashed before it is renamed to its final name. It is hashed again from time to time, because disks fail, and because tasks can
have links to it. Only the files in its directory determine what the cache contains. Data in memory only save reads of the directory.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
import time
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple, Union

from ..failures import is_limit
from .cache_directory import (
    PRIVATE,
    CachedFile,
    DirectoryUsers,
    content_path,
    held_path,
    hold_marks,
    incoming_directory,
    list_files,
    make_private,
    remove,
    remove_unused,
)
from .content_digest import StreamingDigest, digest_of
from .file_copy import clone, copy
from .file_locks import READ, Stamp, WriterBusy, has_no_writer, is_named, is_regular, lock, opened, stamp, stamp_of, sync_directory
from .incoming_content import COMPLETE, IncomingContent, InUse, NoSpace, TooLarge, with_space

VERIFY_S = 600.0
"""Seconds after which a content is hashed again when it is used."""
JUST_USED_S = 60.0
"""A content is not evicted during this many seconds after its last use, if other processes use the cache, too."""
ABANDONED_S = 3600.0
"""Seconds after the last write until an incomplete content can be evicted."""
STUCK_S = 60.0
"""Another writer counts as stuck if it makes no progress for this many seconds."""
STALE_S = 86400.0
"""Seconds after the last write until an incomplete content is removed even if its lock cannot be checked."""
HOLD_EXPIRES_S = 30 * 86400.0
"""Seconds until a hold expires if its pool does not renew it."""
RESCAN_S = 300.0
MAX_FOREIGN = 10000
_CREATE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_TOO_LARGE = (
    "the content cache in %r is limited to %d bytes; %d are available now, and %d are needed: "
    "raise its size, or wait until tasks that use it have ended"
)

_NEVER_FITS = "a file of %d bytes does not fit into the content cache in %r, which is limited to %d: raise the site's cache_size"


class _Checked(NamedTuple):
    """The state of a content when it was hashed, and the time of the hashing."""

    stamp: Stamp
    at: float


class ContentCache:
    """The cache in one directory. All methods are thread-safe. ``is_needed``: function that returns True if this process needs a content.
    This function must not call methods of the cache."""

    def __init__(
        self,
        directory: str,
        max_bytes: int,
        is_needed: Callable[[str], bool] = lambda digest: False,
        clock: Callable[[], float] = time.time,
        *,
        verify_s: float = VERIFY_S,
        durable: bool = False,
    ) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self.strict = True
        """Whether the cache obeys ``max_bytes`` even if a task needs more and the disk has space."""
        self.verify_s = verify_s
        self.damaged = 0
        """Number of contents found damaged."""
        self.used_bytes = 0
        """Number of bytes that the cache used when its directory was last read, corrected by what this process has added and removed since
        then."""
        self.evicted: Callable[[str], None] = lambda digest: None
        """Called with the digest of each removed content, from any thread."""
        self._is_needed = is_needed
        self._clock = clock
        self._durable = durable
        self._pool = ""
        self._scanned_at = 0.0
        self._changed = threading.Condition()
        self._space_lock = threading.RLock()
        self._checked: Dict[str, _Checked] = {}
        self._checking: Set[str] = set()
        self._arriving: Dict[str, IncomingContent] = {}
        self._stuck: Dict[str, Tuple[int, float]] = {}
        """For each content that another process writes: the number of its bytes, and since when this number has not changed."""
        self._pinned: Dict[str, int] = {}
        self._foreign_digests: Dict[Tuple[str, Stamp], str] = {}
        make_private(directory)
        self._users = DirectoryUsers(directory)
        self._scan()

    def has(self, digest: str, size: int) -> bool:
        """Returns True if the content is complete and has this size. The content is not read."""
        try:
            status = os.lstat(content_path(self.directory, digest))
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == size

    def is_unchanged(self, digest: str) -> bool:
        """Returns True if the content is unchanged since it was hashed. The content is not read."""
        known = self._checked.get(digest)
        try:
            return known is not None and known.stamp == stamp_of(os.lstat(content_path(self.directory, digest)))
        except OSError:
            return False

    def contents(self) -> Dict[str, int]:
        """Returns the size of each complete content, by digest."""
        return {found.digest: found.size for found in list_files(self.directory) if found.digest}

    def arriving(self, digest: str) -> Optional[IncomingContent]:
        """Returns the content with this digest if this process is writing it now."""
        with self._changed:
            return self._arriving.get(digest)

    def touch(self, digests: Iterable[str]) -> None:
        """Marks these contents and all pinned contents as used. For the next minute, no other process removes them."""
        with self._changed:
            used = [*digests, *self._pinned]
        for digest in used:
            try:
                self._note_use(content_path(self.directory, digest))
            except OSError:
                continue

    def _note_use(self, file: Union[str, int]) -> None:
        os.utime(file, ns=(int(self._clock() * 1e9), os.stat(file).st_mtime_ns))

    def pin(self, digest: str) -> None:
        """Protects the content from eviction until ``unpin`` was called as often as ``pin``."""
        with self._changed:
            self._pinned[digest] = self._pinned.get(digest, 0) + 1

    def unpin(self, digest: str) -> None:
        self.touch(())  # gives the next user time to pin the content
        with self._changed:
            self._pinned[digest] -= 1
            if not self._pinned[digest]:
                del self._pinned[digest]

    def serve(self, pool: str) -> None:
        """Sets the pool for which the method ``hold`` marks contents. Renews the marks that this pool already has."""
        self._pool = pool
        for digest in self.held():
            self.hold(digest)

    def hold(self, digest: str) -> None:
        """Marks the content for the pool of this cache, so that no process evicts the content before ``release``."""
        final_path = held_path(self.directory, digest, self._pool)
        os.makedirs(os.path.dirname(final_path), 0o700, exist_ok=True)
        os.close(os.open(final_path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.utime(final_path)

    def held(self) -> List[str]:
        """Returns the digests of the contents that the pool of this cache holds."""
        return [digest for digest, pool in hold_marks(self.directory) if pool == self._pool]

    def release(self, digests: Iterable[str]) -> None:
        """Removes the marks that ``hold`` set for the pool of this cache."""
        for digest in digests:
            remove(held_path(self.directory, digest, self._pool))

    # --- reading --------------------------------------------------------------------------------------------------------------------

    def verified_path(self, digest: str, size: int) -> Optional[str]:
        """Returns the path of an undamaged content of this size. Returns None if the content is absent, is damaged or has another size.
        Marks the content as used, so that no other process removes it during the next minute."""
        path = content_path(self.directory, digest)
        try:
            descriptor = os.open(path, READ)
        except OSError as error:
            if is_limit(error):
                raise
            return None
        try:
            if not self._is_sound(digest, descriptor):
                self._discard(path, descriptor)
                return None
            self._note_use(descriptor)
            return path if os.fstat(descriptor).st_size == size else None
        finally:
            os.close(descriptor)

    def _is_sound(self, digest: str, descriptor: int) -> bool:
        """Returns True if the content is undamaged. Hashes the content if a check is due. Other threads that need the content wait."""
        with self._changed:
            while digest in self._checking:
                self._changed.wait()
            before = stamp(descriptor)
            known = self._checked.get(digest)
            if known is not None and known.stamp == before and abs(self._clock() - known.at) < self.verify_s:
                return True
            self._checked.pop(digest, None)
            self._checking.add(digest)
        sound = False
        try:
            sound = is_regular(descriptor) and digest_of(descriptor) == digest and stamp(descriptor) == before
            if sound and stat.S_IMODE(os.fstat(descriptor).st_mode) != 0o444:
                os.fchmod(descriptor, 0o444)  # a task changed the mode through its link
        except OSError as error:
            if is_limit(error):
                raise
        finally:
            with self._changed:
                self._checking.discard(digest)
                if sound:
                    self._checked[digest] = _Checked(stamp(descriptor), self._clock())
                self._changed.notify_all()
        return sound

    def _discard(self, path: str, descriptor: int) -> None:
        with self._changed:
            self.damaged += 1
        if is_named(path, descriptor):  # another process has possibly replaced it by an undamaged content
            remove(path)
            self.release([os.path.basename(path)])
            self.evicted(os.path.basename(path))

    # --- writing --------------------------------------------------------------------------------------------------------------------

    def incoming(self, digest: str, size: int) -> IncomingContent:
        """Begins or resumes the writing of a content. Raises WriterBusy if another writer is active, or if the content is complete."""
        content_path(self.directory, digest)
        descriptor, path = self._open_incoming(digest, size)
        try:
            if self.has(digest, size):
                os.ftruncate(descriptor, 0)
                raise WriterBusy(size)
            if os.fstat(descriptor).st_size > size:
                os.ftruncate(descriptor, 0)
            self._reserve(size - os.fstat(descriptor).st_size)
            incoming = IncomingContent(self, descriptor, path, digest, size)
        except BaseException:
            if not os.fstat(descriptor).st_size:
                remove(path)
            os.close(descriptor)
            raise
        with self._changed:
            self._arriving[digest] = incoming
        return incoming

    def _open_incoming(self, digest: str, size: int) -> Tuple[int, str]:
        path = os.path.join(incoming_directory(self.directory), digest)
        while True:
            descriptor = with_space(self, size, lambda: self._create(path, 0))
            try:
                locked = lock(descriptor)
                if locked and is_named(path, descriptor):
                    self._stuck.pop(digest, None)
                    return descriptor, path
            except WriterBusy as busy:
                os.close(descriptor)
                if not self._is_stuck(digest, busy.available):
                    raise
                return self._private_file()
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            if not locked:
                return self._private_file()  # without locks, others could write to the shared file
            # Another process completed or removed the file before we had the lock: try again.

    def _is_stuck(self, digest: str, available: int) -> bool:
        """Returns True if the process that has locked a content hangs: ``available``, its written bytes, has not changed for long."""
        now = self._clock()
        before, since = self._stuck.get(digest, (-1, now))
        if before != available:
            self._stuck[digest] = (available, now)
            return False
        return now - since > STUCK_S

    def writer_closed(self, incoming: IncomingContent) -> None:
        with self._changed:
            if self._arriving.get(incoming.digest) is incoming:
                del self._arriving[incoming.digest]
        if incoming.state != COMPLETE:
            with self._space_lock:
                self.used_bytes -= incoming.size - incoming.offset

    def adopt(self, path: str) -> Tuple[str, int]:
        """Moves a finished file into the cache. Returns digest and size. Keeps a copy instead if a process could still write to it."""
        with opened(path) as source:
            if not is_regular(source):
                raise ValueError("%r is no regular file" % path)
            size = os.fstat(source).st_size
            self._reserve(size)
            kept = self._move_in(source, path)
            if kept is None:
                kept = with_space(self, size, lambda: self._copy_in(source, size))
                remove(path)
            return kept

    def adopt_copy(self, digest: str, size: int, path: str, on_progress: Callable[[int], None] = lambda offset: None) -> bool:
        """Copies a user's file into the cache if the file has this digest and size. Returns True if it was copied."""
        content_path(self.directory, digest)
        try:
            with opened(path, READ & ~os.O_NOFOLLOW) as source:
                before = stamp(source)
                known = self._foreign_digests.get((path, before), digest)
                if not is_regular(source) or os.fstat(source).st_size != size or known != digest:
                    return False
                self._reserve(size)
                found, _ = with_space(self, size, lambda: self._copy_in(source, size, digest, on_progress))
                if stamp(source) == before:
                    if len(self._foreign_digests) >= MAX_FOREIGN:
                        self._foreign_digests.clear()
                    self._foreign_digests[path, before] = found
                return found == digest
        except OSError as error:
            if is_limit(error):
                raise
            return False

    def _move_in(self, source: int, path: str) -> Optional[Tuple[str, int]]:
        """Renames the file ``path`` into the cache. Returns digest and size of the file. Returns None if renaming fails, if the file has
        another link, if a process has the file open for writing, or if the file changes meanwhile. ``source``: descriptor of the file."""
        private = self._private_name()
        try:
            os.rename(path, private)
        except OSError:
            return None
        try:
            os.utime(source)  # an old file could count as abandoned
            before = stamp(source)
            if os.fstat(source).st_nlink == 1 and has_no_writer(source) and is_named(private, source):
                found = digest_of(source)
                if stamp(source) == before:
                    self.keep(source, private, found)
                    return found, os.fstat(source).st_size
            return None
        finally:
            if os.path.lexists(private):
                os.rename(private, path)

    def _copy_in(
        self, source: int, size: int, digest: Optional[str] = None, on_progress: Callable[[int], None] = lambda offset: None
    ) -> Tuple[str, int]:
        """Copies a file, and keeps the copy if it has the expected digest. Returns digest and size. ``on_progress`` gets the number of
        bytes copied so far."""
        target, path = self._private_file()
        following = StreamingDigest(target)

        def grown(offset: int) -> None:
            following.grow(offset)
            on_progress(offset)

        try:
            if not clone(source, target):
                copy(source, target, size, grown)
            size = os.fstat(target).st_size
            found = following.result(size)
            if digest in (None, found):
                self.keep(target, path, found)
            return found, size
        finally:
            following.stop()
            remove(path)  # has no effect if the copy was kept, because a kept copy has a new path
            os.close(target)

    def _private_name(self) -> str:
        return os.path.join(incoming_directory(self.directory), PRIVATE + os.urandom(16).hex())

    def _private_file(self) -> Tuple[int, str]:
        path = self._private_name()
        descriptor = self._create(path, os.O_EXCL)
        lock(descriptor)  # shows that the file is in use
        return descriptor, path

    def _create(self, path: str, flags: int) -> int:
        try:
            return os.open(path, _CREATE | flags, 0o600)
        except FileNotFoundError:
            make_private(self.directory)  # somebody removed the directory
            return os.open(path, _CREATE | flags, 0o600)

    def keep(self, descriptor: int, path: str, digest: str) -> str:
        """Moves a file to its final path and returns this path. The caller has just hashed the file."""
        final_path = content_path(self.directory, digest)
        os.makedirs(os.path.dirname(final_path), 0o700, exist_ok=True)
        os.fchmod(descriptor, 0o444)
        if self._durable:
            os.fsync(descriptor)
        self._note_use(descriptor)
        os.rename(path, final_path)
        if self._durable:
            sync_directory(os.path.dirname(final_path))
        with self._changed:
            self._checked[digest] = _Checked(stamp(descriptor), self._clock())
        return final_path

    # --- space ----------------------------------------------------------------------------------------------------------------------

    def incoming_bytes(self) -> int:
        """Returns the number of missing bytes of all contents that this process is writing."""
        with self._changed:
            return sum(incoming.size - incoming.offset for incoming in self._arriving.values())

    def free_space(self, length: int) -> bool:
        """Evicts contents because the disk is full. Returns True if this freed space. Keeps contents that have hard links outside of the
        cache, because their removal would free no space."""
        with self._space_lock:
            return self._evict([found for found in self._scan() if found.links == 1], max(length, 1)) > 0

    def _reserve(self, length: int) -> None:
        with self._space_lock:
            if self.used_bytes + length > self.max_bytes or abs(self._clock() - self._scanned_at) > RESCAN_S:
                self.make_space(length)
            self.used_bytes += length

    def make_space(self, length: int) -> None:
        """Evicts the least recently used contents until this many bytes fit. Raises NoSpace if contents in use leave too little space."""
        with self._space_lock:
            evictable = self._scan()
            excess = self.used_bytes + length - self.max_bytes
            evictable_bytes = sum(found.size for found in evictable)
            if self.strict and length > self.max_bytes:
                raise TooLarge(_NEVER_FITS % (length, self.directory, self.max_bytes))
            if not self.strict and excess > evictable_bytes:
                free = shutil.disk_usage(self.directory).free
                if length > free + self.used_bytes:
                    raise NoSpace(_TOO_LARGE % (self.directory, free + self.used_bytes, free, length))
                excess = evictable_bytes if length <= free + evictable_bytes else excess
            if excess > evictable_bytes or self._evict(evictable, excess) < excess:
                raise InUse(_TOO_LARGE % (self.directory, self.max_bytes, max(0, evictable_bytes + length - excess), length))

    def _scan(self) -> List[CachedFile]:
        """Returns the evictable files and updates ``used_bytes``."""
        self._scanned_at = now = self._clock()
        with self._changed:
            arriving = {incoming.path: incoming.size for incoming in self._arriving.values()}
            pinned = list(self._pinned)
        kept = {*pinned, *(digest for digest, _ in hold_marks(self.directory, now - HOLD_EXPIRES_S))}
        self.used_bytes = 0
        just_used_s = 0.0 if self._users.is_alone() else JUST_USED_S  # pins and ``is_needed`` protect our own contents
        evictable = []
        for found in list_files(self.directory):
            unused_s = now - found.used_at
            if not found.digest and unused_s > STALE_S and remove_unused(found, stale=True):
                continue
            is_private = not found.digest and os.path.basename(found.path).startswith(PRIVATE)
            if is_private and unused_s > JUST_USED_S and remove_unused(found):
                continue  # its writer has ended, and no other process can continue it
            self.used_bytes += arriving.get(found.path, found.size)
            if found.digest:
                is_kept = unused_s < just_used_s or found.digest in kept or self._is_needed(found.digest)
            else:
                is_kept = unused_s < ABANDONED_S
            if not is_kept:
                evictable.append(found)
        return evictable

    def _evict(self, evictable: List[CachedFile], length: int) -> int:
        freed = 0
        for found in evictable:
            if freed >= length:
                break
            if remove_unused(found):
                freed += found.size
                self.used_bytes -= found.size
                with self._changed:
                    self._checked.pop(found.digest, None)
                if found.digest:
                    self.evicted(found.digest)
        return freed
