"""Makes a sandbox among other files, which are checked one by one before and after."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pilotfish.agent.slots.sandbox import Collected, Sandbox
from pilotfish.portable.failures import AttemptError

SECRET = b"secret of somebody else\n"
CONTENT = b"content" * 10000
LONG_AGO_NS = 10**18


class World:
    """Files outside the sandbox, a sandbox among them, an outbox and a content of the cache."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.box = root / "box"
        self.outbox = root / "outbox"
        self.decoy = root / "decoy"
        for directory in (self.outbox, self.decoy / "etc" / "empty", root / "cache"):
            directory.mkdir(parents=True)
        for name in ("passwd", "x", "a", "f", "etc/passwd", "etc/shadow", "etc/x"):
            self._write(self.decoy / name, SECRET)
        self._write(root / "passwd", SECRET)
        self._write(self.decoy / "large", SECRET * 5000)
        (self.decoy / "link").symlink_to("etc/passwd")
        self.content = root / "cache" / "content"
        self._write(self.content, CONTENT)
        self.content.chmod(0o444)
        self.sandbox = Sandbox(str(self.box))

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        path.write_bytes(content)
        # Read before it was written, so that the file system records the next read.
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS + 10**9))

    def everything(self) -> dict[str, tuple[Any, ...]]:
        """State of all files outside the sandbox and the outbox."""
        found: dict[str, tuple[Any, ...]] = {}
        for directory, names, files in os.walk(self.root):
            if directory == str(self.root):
                names[:] = [name for name in names if name not in ("box", "outbox", "box.aside")]
                files = [name for name in files if name != "box"]
            for name in [*names, *files]:
                path = os.path.join(directory, name)
                status = os.lstat(path)
                what: Any = os.readlink(path) if stat.S_ISLNK(status.st_mode) else None
                if stat.S_ISREG(status.st_mode):
                    what = (status.st_atime_ns if path != str(self.content) else 0, _read_unnoticed(path))
                found[path] = (status.st_mode, status.st_ino, status.st_uid, status.st_size, status.st_mtime_ns, what)
        return found

    @contextmanager
    def untouched(self) -> Iterator[None]:
        before = self.everything()
        yield
        assert self.everything() == before

    def fresh(self) -> Sandbox:
        self.sandbox.remove()
        assert not os.path.lexists(self.box)
        self.sandbox = Sandbox(str(self.box))
        return self.sandbox

    def start_again(self) -> None:
        """Recreate the sandbox, even if it was replaced."""
        for place in (self.box, self.root / "box.aside"):
            if place.is_symlink():
                place.unlink()
            elif place.exists():
                shutil.rmtree(place)
        self.sandbox = Sandbox(str(self.box))

    def taken_out(self, *patterns: str) -> list[bytes]:
        """All collected bytes, inline and moved."""
        read = _checked(self.sandbox.collect(patterns, 1 << 30)).contents
        entries, small, _ = _checked(self.sandbox.collect(patterns, 1 << 30, str(self.outbox)))
        assert all(entry[1] & ~0o777 == 0 for entry in entries)
        for entry in entries:
            if len(entry) > 2:
                status = os.lstat(entry[3])
                assert stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o600 and status.st_nlink == 1
                small.append(Path(entry[3]).read_bytes())
        return [*read, *small]


def _read_unnoticed(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOATIME | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        return file.read()


def _checked(found: Collected) -> Collected:
    if found.failure is not None:
        raise AttemptError(*found.failure)
    return found


ACTS: dict[str, Callable[[World, str], Any]] = {
    "write_file": lambda world, name: world.sandbox.write_file(name, 0o6777, b"x"),
    "add_cached_file": lambda world, name: world.sandbox.add_cached_file(name, 0o6777, str(world.content)),
    "make_directory": lambda world, name: world.sandbox.make_directory(name, 0o7777),
    "make_link": lambda world, name: world.sandbox.make_link(name, "somewhere"),
    "collect": lambda world, name: _checked(world.sandbox.collect([name], 1 << 20)),
    "move": lambda world, name: _checked(world.sandbox.collect([name], 0, str(world.outbox))),
}
