"""Locks a pool, so that no second master serves it. This works on one machine, and also if several machines share the directory of the
pool.

The lock is a file ``lock-N`` that names the owner. If the owner is dead, a new master creates ``lock-(N+1)``. The file system lets only one
master create this file. A lock file is removed only after a lock file with a higher number exists. After a master has created its lock
file, it looks for a lock file with a higher number. If it finds one, a different master was faster and has the lock.

The file locks of the operating system are not used. On network file systems, such locks can be missing, can hang, or can be lost after a
restart of the server.

An owner on this machine is dead if its process has ended. An owner on a different machine is dead if its lease has expired: its lock file
was not renewed for too long. Its time is compared with the time of a new file in the same directory. So both times come from the clock of
the file server.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from pilotfish.errors import AlreadyRunning, JournalError, JournalFull
from pilotfish.portable.processes import started_at
from pilotfish.store.disk import FULL

LEASE_S = 30.0
ATTEMPTS = 100
_NAME = re.compile(r"lock-(\d{8,})\Z")
_DRAFT = "lock-draft-"
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


class LockOwner(msgspec.Struct, frozen=True):
    """Present or former owner of a pool."""

    pid: int
    host: str
    boot: str
    """Boot id of the kernel, and process namespace of the owner. If they differ from those of this process, ``pid`` has no meaning here."""
    started: str
    """Start time of the owner's process in kernel ticks. A later process with the same pid has a different start time."""
    lease_s: float
    token: str
    released: bool = False


class PoolLock:
    """The lock of a pool, from ``acquire`` to ``release``. Call ``renew`` at least three times per lease."""

    def __init__(self, directory: str, generation: int, owner: LockOwner) -> None:
        self.directory = directory
        self.generation = generation
        """Number of the lock file. Each new owner has a larger number."""
        self.owner = owner

    @classmethod
    def acquire(cls, directory: str | os.PathLike[str], lease_s: float = LEASE_S) -> PoolLock:
        """Takes the lock. Raises AlreadyRunning if a different master has the lock. The error names this master."""
        path = os.fspath(directory)
        owner = this_process(lease_s)
        try:
            with _draft(path, owner) as draft:
                return cls(path, _take(path, draft), owner)
        except OSError as error:
            message = f"the pool in {path} cannot be locked: {error.strerror or error}."
            if error.errno in FULL:
                raise JournalFull(message, "Free some space (or quota).") from error
            raise JournalError(message, "Check that the directory is there and is yours.") from error

    def renew(self) -> None:
        """Renews the lease. Raises AlreadyRunning if a different master has taken the lock. The caller must then end at once and write
        nothing more."""
        try:
            top = max(_generations(self.directory), default=0)
            if top < self.generation:
                self._put_back()
            elif top > self.generation or not self._is_ours():
                raise self._lost()
            else:
                os.utime(self._path)
        except OSError as error:
            raise JournalError(f"the lock of the pool in {self.directory} cannot be renewed: {error.strerror or error}.") from error

    def release(self) -> None:
        """Marks the lock as released. The lock file stays, because the next owner needs the number in its name."""
        try:
            if self._is_ours():
                with _draft(self.directory, msgspec.structs.replace(self.owner, released=True)) as draft:
                    os.rename(draft, self._path)
        except OSError:
            # Nothing to do: the next owner will see that this process has ended or that the lease has expired.
            return

    @property
    def _path(self) -> str:
        return _lock_path(self.directory, self.generation)

    def _is_ours(self) -> bool:
        owner = _read(self._path)[0]
        return owner is not None and owner.token == self.owner.token

    def _put_back(self) -> None:
        """Creates the lock file again after somebody removed it. Raises AlreadyRunning if a different master has taken the lock."""
        with _draft(self.directory, self.owner) as draft:
            if not _create(draft, self._path):
                raise self._lost()

    def _lost(self) -> AlreadyRunning:
        with suppress(OSError, ValueError):
            top = max(_generations(self.directory))
            other = _read(_lock_path(self.directory, top))[0]
            if other is not None and other.token != self.owner.token:
                return _already_running(self.directory, other, 0.0, "has taken over")
        return AlreadyRunning(f"another master has taken over the pool in {self.directory}.", "This one must stop.")


def this_process(lease_s: float) -> LockOwner:
    pid = os.getpid()
    return LockOwner(pid, socket.gethostname(), _boot_id(), started_at(pid), lease_s, secrets.token_hex(8))


def _take(directory: str, draft: str) -> int:
    for _ in range(ATTEMPTS):
        top = max(_generations(directory), default=0)
        if top:
            with suppress(FileNotFoundError):
                _require_free(directory, top, draft)
        own = top + 1
        if not _create(draft, _lock_path(directory, own)):
            continue
        if max(_generations(directory), default=own) > own:
            # A faster master has created a lock file with a higher number and removed the other lock files.
            with suppress(FileNotFoundError):
                os.unlink(_lock_path(directory, own))
            continue
        _sweep(directory, own, draft)
        return own
    raise AlreadyRunning(f"many are trying to start a master for the pool in {directory}.", "Try again in a moment.")


def _require_free(directory: str, generation: int, draft: str) -> None:
    owner, renewed = _read(_lock_path(directory, generation))
    age = os.stat(draft).st_mtime - renewed
    if owner is None:
        if age <= LEASE_S:
            hint = f"If none runs, remove {_lock_path(directory, generation)} or wait {LEASE_S - age:.0f} s."
            raise AlreadyRunning(f"the lock of the pool in {directory} is unreadable, so a master may be running.", hint)
    elif not owner.released and _lives(owner, age):
        raise _already_running(directory, owner, age, "already runs")


def _lives(owner: LockOwner, age: float) -> bool:
    if (owner.host, owner.boot) == (socket.gethostname(), _boot_id()):
        return _process_lives(owner.pid, owner.started)
    return age <= owner.lease_s


def _already_running(directory: str, owner: LockOwner, age: float, what: str) -> AlreadyRunning:
    hint = "Look at it with `pilotfish status`, end it with `pilotfish stop`."
    if owner.host != socket.gethostname() or owner.boot != _boot_id():
        hint += f" If that machine is gone, try again in {max(1, owner.lease_s - age):.0f} s."
    return AlreadyRunning(f"process {owner.pid} on {owner.host} {what} the pool in {directory}.", hint)


def _generations(directory: str) -> list[int]:
    return [int(found[1]) for name in os.listdir(directory) if (found := _NAME.match(name))]


def _lock_path(directory: str, generation: int) -> str:
    return os.path.join(directory, f"lock-{generation:08d}")


def _read(path: str) -> tuple[LockOwner | None, float]:
    """Reads the owner and the time of the last renewal. This time is the modification time of the lock file.

    The file is opened before its modification time is read, because a network file system asks the server for the current value only when a
    file is opened.
    """
    with open(path, "rb") as file:
        renewed = os.fstat(file.fileno()).st_mtime
        content = file.read(4096)
    try:
        return msgspec.json.decode(content, type=LockOwner), renewed
    except msgspec.DecodeError:
        return None, renewed


@contextmanager
def _draft(directory: str, owner: LockOwner) -> Iterator[str]:
    """Writes a draft: a complete lock file with a temporary name. The temporary name is removed at the end of the ``with`` block."""
    draft = os.path.join(directory, f"{_DRAFT}{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(owner))
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


def _create(draft: str, path: str) -> bool:
    """Gives a draft the name of a lock file, by a link if possible. So no process reads an incomplete lock file. Returns False if a file
    with this name exists."""
    try:
        os.link(draft, path)
    except FileExistsError:
        # A network file system can make the link, lose the answer and repeat the call. The link of this draft then exists.
        return os.stat(draft).st_nlink == 2
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_without_links(draft, path)
    return True


def _create_without_links(draft: str, path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    with open(draft, "rb") as file, open(descriptor, "wb") as copy:
        copy.write(file.read())
    return True


def _sweep(directory: str, own: int, draft: str) -> None:
    """Removes lock files with a number below ``own``, and old drafts of killed masters."""
    now = os.stat(draft).st_mtime
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        with suppress(FileNotFoundError):
            found = _NAME.match(name)
            if (found and int(found[1]) < own) or (name.startswith(_DRAFT) and now - os.stat(path).st_mtime > 10 * LEASE_S):
                os.unlink(path)


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process_lives(pid: int, started: str) -> bool:
    if started and os.path.exists(f"/proc/{os.getpid()}/stat"):
        found = started_at(pid)
        # On some systems, users see only their own processes in /proc. So an existing process can be hidden.
        if found or os.path.exists(f"/proc/{pid}") or not _exists(pid):
            return found == started
    return _exists(pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
