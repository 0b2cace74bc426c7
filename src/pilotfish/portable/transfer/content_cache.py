"""Contents on this node, by digest: they outlive us, and other agents use them at the same time.

What is complete got its name by a rename after its bytes were hashed, and is hashed again now and then, because disks forget and tasks
may have links to it. The directory is the truth: what we remember of it only saves looking.
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
    held_marks,
    held_path,
    incoming_directory,
    look_through,
    make_private,
    remove,
    remove_unused,
)
from .content_digest import StreamingDigest, digest_of
from .file_copy import clone, copy
from .file_locks import READ, Stamp, WriterBusy, is_regular, lock, names, nobody_writes, stamp, stamp_of, sync_directory
from .incoming_content import COMPLETE, IncomingContent, InUse, NoRoom, TooLarge, with_room

VERIFY_S = 600.0
JUST_USED_S = 60.0
ABANDONED_S = 3600.0
STUCK_S = 60.0
STALE_S = 86400.0
FORGOTTEN_S = 30 * 86400.0
"""What nobody of a pool has come for in so long is not held for it any more."""
LOOK_AGAIN_S = 300.0
MOST_FOREIGN = 10000
_CREATE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_TOO_LARGE = (
    "the cache of contents in %r may hold %d bytes, of which %d can be had now, and %d are needed: "
    "let it be larger, or wait until tasks that use it have ended"
)

_NEVER_FITS = "a file of %d bytes does not fit into the cache in %r, which may hold %d: raise the site's cache_size"


class _Checked(NamedTuple):
    """What a content was like when it was hashed."""

    stamp: Stamp
    at: float


class ContentCache:
    """``wanted`` says what this process may not lose; it must not call back. Any thread may call any method."""

    def __init__(
        self,
        directory: str,
        most_bytes: int,
        wanted: Callable[[str], bool] = lambda digest: False,
        clock: Callable[[], float] = time.time,
        *,
        verify_s: float = VERIFY_S,
        durable: bool = False,
    ) -> None:
        self.directory = directory
        self.most_bytes = most_bytes
        self.strict = True
        """It may not be larger, even if a task needs more and the disk has room."""
        self.verify_s = verify_s
        self.damaged = 0
        """How many contents were found to be damaged."""
        self.used_bytes = 0
        """As far as is known without looking."""
        self.went: Callable[[str], None] = lambda digest: None
        """Told of contents that we removed, in whatever thread that happened."""
        self._wanted = wanted
        self._clock = clock
        self._durable = durable
        self._pool = ""
        self._looked_at = 0.0
        self._changed = threading.Condition()
        self._room = threading.RLock()
        self._checked: Dict[str, _Checked] = {}
        self._checking: Set[str] = set()
        self._coming: Dict[str, IncomingContent] = {}
        self._stuck: Dict[str, Tuple[int, float]] = {}
        """What others are bringing: how far it was, and since when."""
        self._pinned: Dict[str, int] = {}
        self._foreign: Dict[Tuple[str, Stamp], str] = {}
        make_private(directory)
        self._users = DirectoryUsers(directory)
        self._look()

    def has(self, digest: str, size: int) -> bool:
        """Complete and of this size, as far as can be told without reading it."""
        try:
            status = os.lstat(content_path(self.directory, digest))
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == size

    def is_unchanged(self, digest: str) -> bool:
        """It is as it was when it was hashed, as far as can be told without reading it."""
        known = self._checked.get(digest)
        try:
            return known is not None and known.stamp == stamp_of(os.lstat(content_path(self.directory, digest)))
        except OSError:
            return False

    def contents(self) -> Dict[str, int]:
        """Digest and size of all that is complete."""
        return {found.digest: found.size for found in look_through(self.directory) if found.digest}

    def coming(self, digest: str) -> Optional[IncomingContent]:
        """What this process is writing just now."""
        with self._changed:
            return self._coming.get(digest)

    def touch(self, digests: Iterable[str]) -> None:
        """These are in use, as are those that are pinned: no other process shall remove them for the next minute."""
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
        """This process needs it until ``unpin``, which must be said as often."""
        with self._changed:
            self._pinned[digest] = self._pinned.get(digest, 0) + 1

    def unpin(self, digest: str) -> None:
        self.touch(())  # whoever is to pin it next has some time
        with self._changed:
            self._pinned[digest] -= 1
            if not self._pinned[digest]:
                del self._pinned[digest]

    def serve(self, pool: str) -> None:
        """What is held from now on is held for this pool, and what was held for it before still is."""
        self._pool = pool
        for digest in self.held():
            self.hold(digest)

    def hold(self, digest: str) -> None:
        """Somebody counts on this one: a mark keeps it from being evicted, whoever looks, until ``let_go``."""
        place = held_path(self.directory, digest, self._pool)
        os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.utime(place)

    def held(self) -> List[str]:
        """Those that somebody of our pool counts on."""
        return [digest for digest, pool in held_marks(self.directory) if pool == self._pool]

    def let_go(self, digests: Iterable[str]) -> None:
        """Nobody of our pool counts on these any more."""
        for digest in digests:
            remove(held_path(self.directory, digest, self._pool))

    # --- what is taken out ------------------------------------------------------------------------------------------------------------

    def take(self, digest: str, size: int) -> Optional[str]:
        """The path of a content that is sound, and counts as used now. If not ``wanted`` here, others may remove it after a minute."""
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
        """Hash it if that is due. Others who ask for the same one meanwhile wait for the answer."""
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
                os.fchmod(descriptor, 0o444)  # a task changed it through its link
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
        if names(path, descriptor):  # somebody may have put a sound one there
            remove(path)
            self.let_go([os.path.basename(path)])
            self.went(os.path.basename(path))

    # --- what comes in ----------------------------------------------------------------------------------------------------------------

    def incoming(self, digest: str, size: int) -> IncomingContent:
        """Write it, from where the last one stopped. WriterBusy if somebody else does, or if it is complete by now."""
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
            self._coming[digest] = incoming
        return incoming

    def _open_incoming(self, digest: str, size: int) -> Tuple[int, str]:
        path = os.path.join(incoming_directory(self.directory), digest)
        while True:
            descriptor = with_room(self, size, lambda: self._create(path, 0))
            try:
                locked = lock(descriptor)
                if locked and names(path, descriptor):
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
                return self._private_file()  # nobody can be kept from writing to the one that all know
            # It was completed or removed before we had the lock.

    def _is_stuck(self, digest: str, available: int) -> bool:
        """Whoever writes it has got no further for a while: it may hang, and its lock with it."""
        now = self._clock()
        before, since = self._stuck.get(digest, (-1, now))
        if before != available:
            self._stuck[digest] = (available, now)
            return False
        return now - since > STUCK_S

    def left(self, incoming: IncomingContent) -> None:
        with self._changed:
            if self._coming.get(incoming.digest) is incoming:
                del self._coming[incoming.digest]
        if incoming.state != COMPLETE:
            with self._room:
                self.used_bytes -= incoming.size - incoming.offset

    def adopt(self, path: str) -> Tuple[str, int]:
        """Take over a finished file: its digest and size. Whoever may still write to it, what is kept is what was hashed."""
        source = os.open(path, READ)
        try:
            if not is_regular(source):
                raise ValueError("%r is no regular file" % path)
            size = os.fstat(source).st_size
            self._reserve(size)
            kept = self._move_in(source, path)
            if kept is None:
                kept = self._copy_in(source, size)
                remove(path)
            return kept
        finally:
            os.close(source)

    def adopt_copy(self, digest: str, size: int, path: str, noted: Callable[[int], None] = lambda offset: None) -> bool:
        """If the file there, which is somebody's own, has these bytes, have a copy of them."""
        content_path(self.directory, digest)
        try:
            source = os.open(path, READ & ~os.O_NOFOLLOW)
        except OSError as error:
            if is_limit(error):
                raise
            return False
        try:
            before = stamp(source)
            if not is_regular(source) or os.fstat(source).st_size != size or self._foreign.get((path, before), digest) != digest:
                return False
            self._reserve(size)
            found, _ = self._copy_in(source, size, digest, noted)
            if stamp(source) == before:
                if len(self._foreign) >= MOST_FOREIGN:
                    self._foreign.clear()
                self._foreign[path, before] = found
            return found == digest
        except OSError as error:
            if is_limit(error):
                raise
            return False
        finally:
            os.close(source)

    def _move_in(self, source: int, path: str) -> Optional[Tuple[str, int]]:
        """None if that is not possible, or if somebody else has a hand on the file: a link to it, or an open descriptor."""
        private = self._private_name()
        try:
            os.rename(path, private)
        except OSError:
            return None
        try:
            os.utime(source)  # so that it is not taken for one that was left behind
            before = stamp(source)
            if os.fstat(source).st_nlink == 1 and nobody_writes(source) and names(private, source):
                found = digest_of(source)
                if stamp(source) == before:
                    self.keep(source, private, found)
                    return found, os.fstat(source).st_size
            return None
        finally:
            if os.path.lexists(private):
                os.rename(private, path)

    def _copy_in(
        self, source: int, size: int, digest: Optional[str] = None, noted: Callable[[int], None] = lambda offset: None
    ) -> Tuple[str, int]:
        """Keep a copy, but only if it is what is expected; digest and size of what it is. ``noted`` is told how far it is."""
        return with_room(self, size, lambda: self._try_to_copy_in(source, size, digest, noted))

    def _try_to_copy_in(self, source: int, size: int, digest: Optional[str], noted: Callable[[int], None]) -> Tuple[str, int]:
        target, path = self._private_file()
        following = StreamingDigest(target)

        def grown(offset: int) -> None:
            following.grow(offset)
            noted(offset)

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
            remove(path)  # unless it has its place
            os.close(target)

    def _private_name(self) -> str:
        return os.path.join(incoming_directory(self.directory), PRIVATE + os.urandom(16).hex())

    def _private_file(self) -> Tuple[int, str]:
        path = self._private_name()
        descriptor = self._create(path, os.O_EXCL)
        lock(descriptor)  # so that it is seen to be in use
        return descriptor, path

    def _create(self, path: str, flags: int) -> int:
        try:
            return os.open(path, _CREATE | flags, 0o600)
        except FileNotFoundError:
            make_private(self.directory)  # those who tidy up took it away
            return os.open(path, _CREATE | flags, 0o600)

    def keep(self, descriptor: int, path: str, digest: str) -> str:
        """Give a file of ours, whose bytes were just hashed, its place."""
        place = content_path(self.directory, digest)
        os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
        os.fchmod(descriptor, 0o444)
        if self._durable:
            os.fsync(descriptor)
        self._note_use(descriptor)
        os.rename(path, place)
        if self._durable:
            sync_directory(os.path.dirname(place))
        with self._changed:
            self._checked[digest] = _Checked(stamp(descriptor), self._clock())
        return place

    # --- room -------------------------------------------------------------------------------------------------------------------------

    def promised(self) -> int:
        """So many bytes are still to come of what this process is writing."""
        with self._changed:
            return sum(incoming.size - incoming.offset for incoming in self._coming.values())

    def give_way(self, length: int) -> bool:
        """The disk is full, whatever we may hold. What has other names is of no use for that: its bytes stay where they are."""
        with self._room:
            return self._evict([found for found in self._look() if found.links == 1], max(length, 1)) > 0

    def _reserve(self, length: int) -> None:
        with self._room:
            if self.used_bytes + length > self.most_bytes or abs(self._clock() - self._looked_at) > LOOK_AGAIN_S:
                self.make_room(length)
            self.used_bytes += length

    def make_room(self, length: int) -> None:
        """Remove what was used longest ago until so much more may come. NoRoom if what is in use leaves too little."""
        with self._room:
            evictable = self._look()
            excess = self.used_bytes + length - self.most_bytes
            most = sum(found.size for found in evictable)
            if self.strict and length > self.most_bytes:
                raise TooLarge(_NEVER_FITS % (length, self.directory, self.most_bytes))
            if not self.strict and excess > most:
                free = shutil.disk_usage(self.directory).free
                if length > free + self.used_bytes:
                    raise NoRoom(_TOO_LARGE % (self.directory, free + self.used_bytes, free, length))
                excess = most if length <= free + most else excess
            if excess > most or self._evict(evictable, excess) < excess:
                raise InUse(_TOO_LARGE % (self.directory, self.most_bytes, max(0, most + length - excess), length))

    def _look(self) -> List[CachedFile]:
        """What may be removed, and how much there is in all."""
        self._looked_at = now = self._clock()
        with self._changed:
            coming = {incoming.path: incoming.size for incoming in self._coming.values()}
            pinned = list(self._pinned)
        kept = {*pinned, *(digest for digest, _ in held_marks(self.directory, now - FORGOTTEN_S))}
        self.used_bytes = 0
        just_used_s = 0.0 if self._users.is_alone() else JUST_USED_S  # what we need ourselves is pinned or wanted
        evictable = []
        for found in look_through(self.directory):
            unused_s = now - found.used_at
            if not found.digest and unused_s > STALE_S and remove_unused(found, stale=True):
                continue
            if found.is_private and unused_s > JUST_USED_S and remove_unused(found):
                continue  # whoever made that copy is gone, and nobody can go on with it
            self.used_bytes += coming.get(found.path, found.size)
            if found.digest:
                spared = unused_s < just_used_s or found.digest in kept or self._wanted(found.digest)
            else:
                spared = unused_s < ABANDONED_S
            if not spared:
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
                    self.went(found.digest)
        return freed
