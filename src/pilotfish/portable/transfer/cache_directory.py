"""Defines the layout of the cache directory and removes unused files.

ab/abcdef...       a complete content, named by its digest; read-only
incoming/abcdef... a content that is arriving
incoming/private-… a copy that is being made
users              an empty file, locked by the processes that use the directory
held/abcdef...POOL an empty file: the content ``abcdef...`` must not be evicted, because the pool ``POOL`` depends on this content
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from typing import Any, Iterator, List, NamedTuple, Tuple

from .file_locks import WriterBusy, is_named, lock, opened

PRIVATE = "private-"
_DIGEST = re.compile("[0-9a-f]{64}")


class CacheError(Exception):
    """The directory cannot be used; the message is for users."""


class CachedFile(NamedTuple):
    """One file of the directory. ``digest`` is empty if the file is incomplete."""

    used_at: float
    size: int
    links: int
    path: str
    digest: str


class DirectoryUsers:
    """A lock that all users of a directory share. A process that can get the exclusive lock is the only user."""

    def __init__(self, directory: str) -> None:
        self._descriptor = -1
        self._descriptor = os.open(os.path.join(directory, "users"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._share()

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def is_alone(self) -> bool:
        """Returns True if no other process uses the directory; False if this is unknown."""
        try:
            return lock(self._descriptor)
        except WriterBusy:
            return False
        finally:
            self._share()

    def _share(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            pass  # the file system has no locks, or another process has the exclusive lock for a moment and will see us at its next check


def is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def content_path(directory: str, digest: str) -> str:
    """Returns the path of a content. Digests come from other machines, so ValueError is raised if ``digest`` is no digest."""
    if not is_digest(digest):
        raise ValueError("%.80r is no digest: 64 lower-case hexadecimal digits" % (digest,))
    return os.path.join(directory, digest[:2], digest)


def held_path(directory: str, digest: str, pool: str) -> str:
    return os.path.join(directory, "held", os.path.basename(content_path(directory, digest)) + pool)


def hold_marks(directory: str, since: float = 0.0) -> List[Tuple[str, str]]:
    """Returns (digest, pool) for each mark of a held content: a file in ``held/``. Removes marks that are older than ``since``."""
    marks = []
    for entry in _entries(os.path.join(directory, "held")):
        try:
            if entry.stat(follow_symlinks=False).st_mtime < since:
                os.unlink(entry.path)
                continue
        except OSError:
            continue
        marks.append((entry.name[:64], entry.name[64:]))
    return marks


def incoming_directory(directory: str) -> str:
    return os.path.join(directory, "incoming")


def make_private(directory: str) -> None:
    """Creates a directory to which only this user can write. If the directory exists, checks that no other user can write to it: in /tmp,
    another user has possibly created it."""
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        problem = "it is a link" if os.path.islink(directory) else error.strerror
        raise CacheError("contents cannot be kept in %r: %s; name another directory for them" % (directory, problem)) from None
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise CacheError("contents cannot be kept in %r: it belongs to user %d; name another directory" % (directory, status.st_uid))
        if status.st_mode & 0o022:
            message = "contents cannot be kept in %r: others may write there; name a directory of your own, such as %s/pilotfish-cache"
            raise CacheError(message % (directory, directory.rstrip("/")))
        if status.st_mode & 0o077:
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)
    os.makedirs(incoming_directory(directory), 0o700, exist_ok=True)


def list_files(directory: str) -> List[CachedFile]:
    """Returns all files of the cache, the least recently used first. Other processes can change the cache at the same time."""
    found = []
    for entry in _entries(directory):
        if entry.name != "incoming" and len(entry.name) != 2:
            continue
        for file in _entries(entry.path):
            try:
                status = file.stat(follow_symlinks=False)
            except OSError:
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            if entry.name == "incoming":
                found.append(CachedFile(status.st_mtime, status.st_size, status.st_nlink, file.path, ""))
            elif is_digest(file.name) and file.name.startswith(entry.name):
                found.append(CachedFile(status.st_atime, status.st_size, status.st_nlink, file.path, file.name))
    return sorted(found)


def _entries(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except OSError:
        return


def remove_unused(file: CachedFile, stale: bool = False) -> bool:
    """Removes a file of the cache. Returns True if it was removed. Links to the file in sandboxes remain.

    A complete content is kept if it was used after it was listed. An incomplete content is kept if a process writes it. If the file system
    has no locks, it is unknown whether a process writes the content; then an incomplete content is removed only if ``stale`` is true.
    """
    try:
        if not file.digest:
            return _remove_unlocked(file.path, stale)
        if os.lstat(file.path).st_atime != file.used_at:
            return False
        os.unlink(file.path)
    except (OSError, WriterBusy):
        return False
    return True


def _remove_unlocked(path: str, stale: bool) -> bool:
    with opened(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC) as descriptor:
        if not (lock(descriptor) or stale) or not is_named(path, descriptor):
            return False
        os.unlink(path)
    return True


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
