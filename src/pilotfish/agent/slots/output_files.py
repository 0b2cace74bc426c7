"""Finds output files by pattern and reads or moves them. Links are never followed, whatever the task does meanwhile."""

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
MAX_DEPTH = 64
MAX_INLINE_BYTES = 64 * 1024
MAX_INLINE_TOTAL_BYTES = 1024 * 1024
_MAGIC = frozenset("*?[")
_KINDS = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


class OutputFile(NamedTuple):
    """An open regular file; ``directory`` is the descriptor of the directory that contains it."""

    name: str
    mode: int
    descriptor: int
    directory: int

    def status(self) -> os.stat_result:
        return os.fstat(self.descriptor)


def outputs_in(path: str, patterns: Sequence[str]) -> Iterator[OutputFile]:
    """The files that the patterns match, each once, open until the next is requested. A name without a pattern must exist."""
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
            raise missing_output(pattern, _describe_entry(path, name_parts(pattern)))


def _matches(path: str, parts: List[str]) -> Iterator[OutputFile]:
    try:
        root = os.open(path, DIRECTORY)
    except OSError as error:
        # Unless a limit was met, the task removed its own directory or replaced it.
        _check_absent(error, path)
        return
    try:
        yield from _walk(root, "", parts)
    finally:
        os.close(root)


def _walk(directory: int, prefix: str, parts: List[str]) -> Iterator[OutputFile]:
    """The regular files below this directory that match, and all files in directories that match."""
    part, rest = parts[0], parts[1:]
    if part == "**" and rest:
        yield from _walk(directory, prefix, rest)
        for name in sorted(os.listdir(directory)):
            if rest[1:] or not fnmatch.fnmatchcase(name, rest[0]):  # otherwise all its files were yielded already
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
    if prefix.count("/") >= MAX_DEPTH:
        message = "there may be output files below %r, more than %d directories deep: that is too deep"
        raise SandboxError("result", "task", message % (prefix.rstrip("/"), MAX_DEPTH))
    try:
        below = os.open(name, DIRECTORY, dir_fd=directory)
    except OSError as error:
        _check_absent(error, prefix + name)
        return
    try:
        yield from _walk(below, prefix + name + "/", parts)
    finally:
        os.close(below)


def _open_regular(directory: int, prefix: str, name: str) -> Optional[OutputFile]:
    """Open a regular file; None if it does not exist or is something else."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        _check_absent(error, prefix + name)
        return None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return OutputFile(prefix + name, mode & 0o777, descriptor, directory)
    os.close(descriptor)
    return None


def _describe_entry(path: str, parts: List[str]) -> str:
    """Describe what is there instead of a regular file; empty if nothing is."""
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


def _check_absent(error: OSError, name: str) -> None:
    """Raise if a file could not be opened although it may exist."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise SandboxError("result", "worker", "cannot read the output files: %s" % describe_limit(error))
    if error.errno in (errno.EACCES, errno.EPERM):
        raise SandboxError("result", "task", "the output file %r may not be read" % name)
    if error.errno in (errno.EIO, errno.ESTALE):
        raise SandboxError("result", "worker", "the output file %r cannot be read: %s" % (name, error.strerror))


def collect_outputs(
    path: str, patterns: Sequence[str], max_bytes: int, outbox: str, separate: Container[str] = ()
) -> Tuple[List[List[Any]], List[bytes]]:
    """Collect outputs: [name, mode] with content for files that are read, [name, mode, size, path] for files moved to the outbox.

    Without an outbox all are read, and too much is a failure. With one, only small files are read that are not in ``separate``, and none if
    ``max_bytes`` is 0.
    """
    entries: List[List[Any]] = []
    contents: List[bytes] = []
    left = min(max_bytes, MAX_INLINE_TOTAL_BYTES) if outbox else max_bytes
    try:
        for output in outputs_in(path, patterns):
            readable = not outbox or (max_bytes > 0 and output.name not in separate)
            content = _read(output, min(MAX_INLINE_BYTES, left) if outbox else left) if readable else None
            if content is not None:
                left -= len(content)
                entries.append([output.name, output.mode])
                contents.append(content)
            elif outbox:
                entries.append(_move_out(output, outbox))
            else:
                message = "the output files are too large to be sent: %r has %d bytes, %d more fit"
                raise SandboxError("result", "task", message % (output.name, output.status().st_size, left))
    except BaseException:
        for entry in entries:
            if len(entry) > 2:
                os.unlink(entry[3])
        raise
    return entries, contents


def _read(output: OutputFile, max_bytes: int) -> Optional[bytes]:
    """Read a file; None if it is larger than ``max_bytes``."""
    if output.status().st_size > max_bytes:
        return None
    with open(output.descriptor, "rb", closefd=False) as file:
        content = file.read(max_bytes + 1)
    return content if len(content) <= max_bytes else None


def _move_out(output: OutputFile, outbox: str) -> List[Any]:
    target_path = os.path.join(outbox, os.urandom(16).hex())
    try:
        if output.status().st_nlink != 1 or not _rename(output, target_path):
            _copy_out(output, target_path)
    except OSError as error:
        if is_limit(error):
            raise
        raise SandboxError("disk", "worker", "cannot take the output file %r out: %s" % (output.name, error.strerror)) from None
    return [output.name, output.mode, os.lstat(target_path).st_size, target_path]


def _rename(output: OutputFile, target_path: str) -> bool:
    """Rename the file; False if that fails, or if the task replaced it meanwhile."""
    try:
        os.rename(output.name.rpartition("/")[2], target_path, src_dir_fd=output.directory)
    except OSError:
        return False
    status = os.lstat(target_path)
    if os.path.samestat(status, output.status()):
        os.fchmod(output.descriptor, 0o600)
        return True
    if stat.S_ISDIR(status.st_mode):
        import shutil

        shutil.rmtree(target_path, ignore_errors=True)
    else:
        os.unlink(target_path)
    return False


def _copy_out(output: OutputFile, target_path: str) -> None:
    target = os.open(target_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not clone(output.descriptor, target):
            copy(output.descriptor, target, output.status().st_size)
    except BaseException:
        os.unlink(target_path)
        raise
    finally:
        os.close(target)
