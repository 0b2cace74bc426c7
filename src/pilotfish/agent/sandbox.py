"""A fresh directory for one attempt. Names come from outside: no path of theirs leads out of it, whatever the task does in the meantime.

Every component is opened by itself, relative to its parent and without following links, so that swapping a directory for a link between
two steps gains nothing.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
from typing import Any, Iterator, List, Sequence, Tuple

from .limits import describe_limit, is_limit

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAGIC = frozenset("*?[")
DEEPEST = 64
MOST_LEVELS = 200


class SandboxError(Exception):
    """Cause, blame and message of the failure that this is."""

    def __init__(self, cause: str, blame: str, message: str) -> None:
        super().__init__(message)
        self.failure = [cause, blame, message]


def name_parts(name: str) -> List[str]:
    """The components of a relative name that stays below."""
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") or len(os.fsencode(part)) > 255 for part in parts):
        raise SandboxError("missing-input", "user", "%r is no name of a file below the task's directory" % name)
    return parts


class Sandbox:
    """Made at once; ``remove`` takes it away, unreadable corners included."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            os.makedirs(path, 0o700)
        except OSError as error:
            if is_limit(error):
                raise
            raise SandboxError("disk", "worker", "cannot make a directory for the task: %s" % error.strerror) from None

    def put(self, name: str, mode: int, content: Any) -> None:
        parts = name_parts(name)
        directory = os.open(self.path, _DIRECTORY)
        try:
            for part in parts[:-1]:
                try:
                    os.mkdir(part, 0o755, dir_fd=directory)
                except FileExistsError:
                    pass
                below = os.open(part, _DIRECTORY, dir_fd=directory)
                os.close(directory)
                directory = below
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(parts[-1], flags, 0o600, dir_fd=directory)
            try:
                write_all(file, content)
                os.fchmod(file, mode & 0o777)
            finally:
                os.close(file)
        except OSError as error:
            if is_limit(error):
                raise
            raise disk_error("cannot write the input file %r" % name, error) from None
        finally:
            os.close(directory)

    def collect(self, patterns: Sequence[str], most_bytes: int) -> Tuple[List[List[Any]], List[bytes]]:
        """[name, mode] and content of the regular files that the patterns name; a plain name that is not there is a failure."""
        names: List[List[Any]] = []
        contents: List[bytes] = []
        seen = set()
        for pattern in patterns:
            found = False
            for name, mode, descriptor in self._matches(name_parts(pattern)):
                try:
                    found = True
                    if name in seen:
                        continue
                    seen.add(name)
                    content = _read_regular(name, descriptor, most_bytes)
                finally:
                    os.close(descriptor)
                most_bytes -= len(content)
                names.append([name, mode])
                contents.append(content)
            if not found and not _MAGIC.intersection(pattern):
                raise missing_output(pattern)
        return names, contents

    def _matches(self, parts: List[str]) -> Iterator[Tuple[str, int, int]]:
        try:
            root = os.open(self.path, _DIRECTORY)
        except OSError as error:
            # If not for a limit: the task removed its own directory, or put something else in its place.
            _insist_on_absence(error)
            return
        try:
            yield from _walk(root, "", parts)
        finally:
            os.close(root)

    def remove(self) -> None:
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)
        try:
            os.unlink(self.path)  # the task put something else in its place, such as a link
        except FileNotFoundError:
            return
        except OSError:
            parent, name = os.path.split(self.path)
            _open_up(parent, name)
            shutil.rmtree(self.path, ignore_errors=True)


def _walk(directory: int, prefix: str, parts: List[str]) -> Iterator[Tuple[str, int, int]]:
    """(name, mode, open descriptor) of the regular files below this directory that match; links are never followed."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _walk(directory, prefix, rest or ["*"])
        for name in sorted(os.listdir(directory)):
            yield from _walk_below(directory, prefix, name, parts)
        return
    if _MAGIC.intersection(part):
        names = [name for name in sorted(os.listdir(directory)) if fnmatch.fnmatchcase(name, part)]
    else:
        names = [part]
    for name in names:
        if rest:
            yield from _walk_below(directory, prefix, name, rest)
            continue
        opened = _open_regular(directory, name)
        if opened is not None:
            yield (prefix + name, *opened)


def _walk_below(directory: int, prefix: str, name: str, parts: List[str]) -> Iterator[Tuple[str, int, int]]:
    if prefix.count("/") >= DEEPEST:
        return
    try:
        below = os.open(name, _DIRECTORY, dir_fd=directory)
    except OSError as error:
        _insist_on_absence(error)
        return
    try:
        yield from _walk(below, prefix + name + "/", parts)
    finally:
        os.close(below)


def _open_regular(directory: int, name: str) -> Any:
    """(mode, descriptor) if the name is that of a regular file; None if not, or if there is none."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        _insist_on_absence(error)
        return None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return mode & 0o777, descriptor
    os.close(descriptor)
    return None


def _insist_on_absence(error: OSError) -> None:
    """What could not be opened for want of a descriptor may well be there."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise SandboxError("disk", "worker", "cannot read the output files: %s" % describe_limit(error))


def _read_regular(name: str, descriptor: int, most_bytes: int) -> bytes:
    size = os.fstat(descriptor).st_size
    if size > most_bytes:
        message = "the output files are too large to be sent: %r has %d bytes, there is room for %d"
        raise SandboxError("result", "task", message % (name, size, most_bytes))
    with open(descriptor, "rb", closefd=False) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise SandboxError("result", "task", "the output files are too large to be sent (%r)" % name)
    return content


def missing_output(name: str) -> SandboxError:
    return SandboxError("missing-output", "task", "the task did not leave the file %r, which was declared as its output" % name)


def write_all(descriptor: int, content: Any) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def disk_error(what: str, error: OSError) -> SandboxError:
    """Full and broken disks are the worker's fault; everything else about names is the user's."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
        return SandboxError("disk", "worker", "%s: %s" % (what, error.strerror))
    return SandboxError("missing-input", "user", "%s: %s" % (what, error.strerror))


def _open_up(parent: str, name: str) -> None:
    """Make every directory of a tree listable again. A link is never followed: it would open up what lies elsewhere."""
    try:
        above = os.open(parent, _DIRECTORY)
    except OSError:
        return
    try:
        _open_up_below(above, name, MOST_LEVELS)
    finally:
        os.close(above)


def _open_up_below(above: int, name: str, levels: int) -> None:
    try:
        # Without reading it, because that is what may be forbidden; what is changed is what was opened, whatever has its name by then.
        place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except OSError:
        return
    try:
        os.chmod("/proc/self/fd/%d" % place, 0o700)
        directory = os.open(".", _DIRECTORY, dir_fd=place)
        try:
            for below in os.listdir(directory) if levels else ():
                _open_up_below(directory, below, levels - 1)
        finally:
            os.close(directory)
    except OSError:
        pass
    finally:
        os.close(place)
