"""The directory of a cache: whose it is, what lies in it, and how something is taken away that another process may want.

ab/abcdef...       a complete content, named by its digest; read-only
incoming/abcdef... one that is on its way; private-... are copies that are being made
users              an empty file: who uses the directory has a lock on it
held/abcdef...POOL an empty file: this content must not be evicted, because that pool counts on it
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from typing import Iterator, List, NamedTuple, Tuple

from .file_locks import WriterBusy, lock, names

PRIVATE = "private-"
_DIGEST = re.compile("[0-9a-f]{64}")


class CacheError(Exception):
    """The directory cannot be used; the message is for a person."""


class CachedFile(NamedTuple):
    """One file of the directory; ``digest`` is empty if it is not complete."""

    used_at: float
    size: int
    links: int
    path: str
    digest: str

    @property
    def is_private(self) -> bool:
        return not self.digest and os.path.basename(self.path).startswith(PRIVATE)


class DirectoryUsers:
    """All processes that use a directory share a lock there; whoever can have it alone for a moment is alone."""

    def __init__(self, directory: str) -> None:
        self._descriptor = -1
        self._descriptor = os.open(os.path.join(directory, "users"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._share()

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def is_alone(self) -> bool:
        """False if that cannot be told."""
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
            pass  # there are no locks, and nobody is ever alone; or somebody is just looking, and we are seen the next time


def content_path(directory: str, digest: str) -> str:
    """Digests come from outside: what is none has no path."""
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError("%.80r is no digest: 64 lower-case hexadecimal digits" % (digest,))
    return os.path.join(directory, digest[:2], digest)


def held_path(directory: str, digest: str, pool: str) -> str:
    return os.path.join(directory, "held", os.path.basename(content_path(directory, digest)) + pool)


def held_marks(directory: str, since: float = 0.0) -> List[Tuple[str, str]]:
    """(digest, pool) of contents that somebody counts on. Older ones are removed."""
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
    """Have it, for us alone. Its name may be one that anybody can guess and take first, such as one in /tmp."""
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        trouble = "it is a link" if os.path.islink(directory) else error.strerror
        raise CacheError("contents cannot be kept in %r: %s; name another directory for them" % (directory, trouble)) from None
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise CacheError("contents cannot be kept in %r: it belongs to user %d; name another directory" % (directory, status.st_uid))
        if status.st_mode & 0o022:
            message = "contents cannot be kept in %r: others may write there; name another directory, or empty it and type chmod 700 %s"
            raise CacheError(message % (directory, directory))
        if status.st_mode & 0o077:
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)
    os.makedirs(incoming_directory(directory), 0o700, exist_ok=True)


def look_through(directory: str) -> List[CachedFile]:
    """All files of it, those first that were used longest ago. Other processes may change it meanwhile."""
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
            elif _DIGEST.fullmatch(file.name) and file.name.startswith(entry.name):
                found.append(CachedFile(status.st_atime, status.st_size, status.st_nlink, file.path, file.name))
    return sorted(found)


def _entries(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except OSError:
        return


def remove_unused(found: CachedFile, stale: bool = False) -> bool:
    """Unless somebody used it since we looked, or is writing it (if that can be told, or it is stale). Links in sandboxes remain."""
    try:
        if not found.digest:
            return _remove_unlocked(found.path, stale)
        if os.lstat(found.path).st_atime != found.used_at:
            return False
        os.unlink(found.path)
    except OSError:
        return False
    return True


def _remove_unlocked(path: str, stale: bool) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not (lock(descriptor) or stale) or not names(path, descriptor):
            return False
        os.unlink(path)
    except WriterBusy:
        return False
    finally:
        os.close(descriptor)
    return True


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
