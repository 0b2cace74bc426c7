"""What a task left in its directory: found by patterns, read, or moved out. Links are never followed, whatever the task does meanwhile."""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
from typing import Any, Container, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ...portable.failures import describe_limit, is_limit
from ...portable.transfer.file_copy import clone, copy
from .sandbox_names import SandboxError, missing_output, name_parts

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
DEEPEST = 64
INLINE_BYTES = 64 * 1024
INLINE_BYTES_IN_ALL = 1024 * 1024
_MAGIC = frozenset("*?[")
_KINDS = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


class OutputFile(NamedTuple):
    """A regular file, open; ``directory`` is that in which it has its last name."""

    name: str
    mode: int
    descriptor: int
    directory: int

    def status(self) -> os.stat_result:
        return os.fstat(self.descriptor)


def outputs_in(path: str, patterns: Sequence[str]) -> Iterator[OutputFile]:
    """Those that the patterns name, each once, open until the next is asked for; a plain name that is not there is a failure."""
    seen = set()
    for pattern in patterns:
        found = False
        for output in _matches(path, name_parts(pattern)):
            try:
                found = True
                if output.name not in seen:
                    seen.add(output.name)
                    yield output
            finally:
                os.close(output.descriptor)
        if not found and not _MAGIC.intersection(pattern):
            raise missing_output(pattern, _what_is_there(path, name_parts(pattern)))


def _matches(path: str, parts: List[str]) -> Iterator[OutputFile]:
    try:
        root = os.open(path, DIRECTORY)
    except OSError as error:
        # If not for a limit: the task removed its own directory, or put something else in its place.
        _insist_on_absence(error, path)
        return
    try:
        yield from _walk(root, "", parts)
    finally:
        os.close(root)


def _walk(directory: int, prefix: str, parts: List[str]) -> Iterator[OutputFile]:
    """The regular files below this directory that match, and those in directories that do."""
    part, rest = parts[0], parts[1:]
    if part == "**" and rest:
        yield from _walk(directory, prefix, rest)
        for name in sorted(os.listdir(directory)):
            if rest[1:] or not fnmatch.fnmatchcase(name, rest[0]):  # otherwise all that is in it has come already
                yield from _walk_below(directory, prefix, name, parts)
        return
    plain = not _MAGIC.intersection(part)
    for name in [part] if plain else [name for name in sorted(os.listdir(directory)) if fnmatch.fnmatchcase(name, part)]:
        if rest:
            yield from _walk_below(directory, prefix, name, rest)
            continue
        output = _open_regular(directory, prefix, name)
        if output is not None:
            yield output
        else:
            yield from _walk_below(directory, prefix, name, ["**"])


def _walk_below(directory: int, prefix: str, name: str, parts: List[str]) -> Iterator[OutputFile]:
    if prefix.count("/") >= DEEPEST:
        message = "there may be output files below %r, more than %d directories deep: that is too deep"
        raise SandboxError("result", "task", message % (prefix.rstrip("/"), DEEPEST))
    try:
        below = os.open(name, DIRECTORY, dir_fd=directory)
    except OSError as error:
        _insist_on_absence(error, prefix + name)
        return
    try:
        yield from _walk(below, prefix + name + "/", parts)
    finally:
        os.close(below)


def _open_regular(directory: int, prefix: str, name: str) -> Optional[OutputFile]:
    """None if there is none, or if it is something else."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        _insist_on_absence(error, prefix + name)
        return None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return OutputFile(prefix + name, mode & 0o777, descriptor, directory)
    os.close(descriptor)
    return None


def _what_is_there(path: str, parts: List[str]) -> str:
    """In words, where no regular file was found; nothing if nothing is there."""
    name = ""
    mode = 0
    for part in parts:
        name += "/" + part if name else part
        try:
            mode = os.lstat(os.path.join(path, name)).st_mode
        except OSError:
            return ""
        if stat.S_ISLNK(mode):
            return "%r is a link: only regular files and directories come back" % name
    if stat.S_ISREG(mode):
        return "%r may not be read" % name
    if stat.S_ISDIR(mode):
        return "%r is a directory with no file in it that could come back" % name
    return "%r is a %s: only regular files and directories come back" % (name, _KINDS.get(stat.S_IFMT(mode), "device"))


def _insist_on_absence(error: OSError, name: str) -> None:
    """What could not be opened for another reason than that it is not there, or is no file, may well be there."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise SandboxError("result", "worker", "cannot read the output files: %s" % describe_limit(error))
    if error.errno in (errno.EACCES, errno.EPERM):
        raise SandboxError("result", "task", "the output file %r may not be read" % name)
    if error.errno in (errno.EIO, errno.ESTALE):
        raise SandboxError("result", "worker", "the output file %r cannot be read: %s" % (name, error.strerror))


def take_out(
    path: str, patterns: Sequence[str], most_bytes: int, outbox: str, apart: Container[str] = ()
) -> Tuple[List[List[Any]], List[bytes]]:
    """[name, mode] of those that are read, with their contents, and [name, mode, size, path] of those that lie in the outbox afterwards.

    Without an outbox all are read, and too much is a failure; with one only small ones are that are not in ``apart``, and none if nothing
    may be read.
    """
    entries: List[List[Any]] = []
    contents: List[bytes] = []
    room = min(most_bytes, INLINE_BYTES_IN_ALL) if outbox else most_bytes
    try:
        for output in outputs_in(path, patterns):
            readable = not outbox or (most_bytes > 0 and output.name not in apart)
            content = _read(output, min(INLINE_BYTES, room) if outbox else room) if readable else None
            if content is not None:
                room -= len(content)
                entries.append([output.name, output.mode])
                contents.append(content)
            elif outbox:
                entries.append(_move_out(output, outbox))
            else:
                message = "the output files are too large to be sent: %r has %d bytes, there is room for %d"
                raise SandboxError("result", "task", message % (output.name, output.status().st_size, room))
    except BaseException:
        for entry in entries:
            if len(entry) > 2:
                os.unlink(entry[3])
        raise
    return entries, contents


def _read(output: OutputFile, most_bytes: int) -> Optional[bytes]:
    """None if it is larger than that."""
    if output.status().st_size > most_bytes:
        return None
    with open(output.descriptor, "rb", closefd=False) as file:
        content = file.read(most_bytes + 1)
    return content if len(content) <= most_bytes else None


def _move_out(output: OutputFile, outbox: str) -> List[Any]:
    place = os.path.join(outbox, os.urandom(16).hex())
    try:
        if output.status().st_nlink != 1 or not _rename(output, place):
            _copy_out(output, place)
    except OSError as error:
        if is_limit(error):
            raise
        raise SandboxError("disk", "worker", "cannot take the output file %r out: %s" % (output.name, error.strerror)) from None
    return [output.name, output.mode, os.lstat(place).st_size, place]


def _rename(output: OutputFile, place: str) -> bool:
    """False if that is not possible, or if the task has put something else there meanwhile."""
    try:
        os.rename(output.name.rpartition("/")[2], place, src_dir_fd=output.directory)
    except OSError:
        return False
    status = os.lstat(place)
    if os.path.samestat(status, output.status()):
        os.fchmod(output.descriptor, 0o600)
        return True
    if stat.S_ISDIR(status.st_mode):
        import shutil

        shutil.rmtree(place, ignore_errors=True)
    else:
        os.unlink(place)
    return False


def _copy_out(output: OutputFile, place: str) -> None:
    target = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not clone(output.descriptor, target):
            copy(output.descriptor, target, output.status().st_size)
    except BaseException:
        os.unlink(place)
        raise
    finally:
        os.close(target)
