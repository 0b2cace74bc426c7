"""Reading a journal while its master writes it, or after: nothing on the disk is changed."""

from __future__ import annotations

import os

from pilotfish.errors import JournalError
from pilotfish.store.disk import Disk
from pilotfish.store.files import find_pool, list_files
from pilotfish.store.recovery import Recovery, Tail


class Onlooker(Disk):
    """A disk that one may look at. What recovery would mend there is left to the master."""

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, directory: str) -> None:
        pass

    def truncate(self, descriptor: int, size: int) -> None:
        pass

    def remove(self, path: str) -> None:
        pass


def look_at(directory: str | os.PathLike[str]) -> Recovery:
    """What is written so far. A record that is just being written is not part of it."""
    path, disk = os.fspath(directory), Onlooker()
    try:
        listing = list_files(disk, path)
        pool = find_pool(disk, path, listing)
    except OSError as error:
        raise JournalError(f"the journal in {path} cannot be read: {error.strerror or error}.") from error
    if pool is None:
        raise JournalError(f"there is no journal in {path}.")
    return Recovery(disk, path, pool, listing, lambda tail: _close(disk, tail))


def _close(disk: Disk, tail: Tail) -> None:
    if tail.descriptor >= 0:
        disk.close(tail.descriptor)
