"""Makes the private directory of an attempt, collects its output files and removes the directory.

Users and tasks choose the names of files, so a name could lead out of the directory. Therefore each component of a path is opened
separately, relative to its parent and without following links. This is safe even if a task replaces a directory by a link at any time.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
from contextlib import contextmanager
from typing import Any, Callable, Container, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ...portable.failures import AttemptError, Failure, describe_limit, is_limit
from ...portable.transfer.cache_directory import content_path
from ...portable.transfer.file_copy import clone, copy

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_DEPTH = 64
MAX_INLINE_BYTES = 64 * 1024
MAX_INLINE_TOTAL_BYTES = 1024 * 1024
LINK_BYTES = 64 * 1024 * 1024
"""Minimum size of an input that is linked instead of copied."""
MAX_LEVELS = 50
"""Deeper directories are removed in several passes, because each level needs an open descriptor."""
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MISSING_OUTPUT = "missing-output"
MAX_LISTED = 5
"""Maximum number of files that the message about a missing output names."""
MAX_COMPARED = 1000
"""Maximum number of files in a sandbox among which a name similar to that of a missing output is searched."""
_MAGIC = frozenset("*?[")
_KINDS = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


class Collected(NamedTuple):
    """The output files of a task. See ``Sandbox.collect``. ``failure``: why a file is not among them, or None if all are."""

    entries: List[List[Any]]
    contents: List[bytes]
    failure: Optional[Failure]


class Sandbox:
    """One private directory. The constructor creates it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._inputs: Set[str] = set()
        try:
            os.makedirs(path, 0o700)
        except OSError as error:
            if is_limit(error):
                raise
            raise AttemptError("disk", "worker", "cannot make a directory for the task: %s" % error.strerror) from None

    def write_file(self, name: str, mode: int, content: Any) -> None:
        """Writes the bytes ``content`` to a new file."""
        with self._entry(name) as (directory, last):
            file = os.open(last, _NEW, 0o600, dir_fd=directory)
            try:
                write_all(file, content)
                os.fchmod(file, mode & 0o777)
            finally:
                os.close(file)

    def add_cached_file(self, name: str, mode: int, content: str) -> None:
        """Adds the cached file at the path ``content``, as a copy. If the file is large and cannot be cloned, adds a hard link instead.
        Never adds a link if ``mode`` is executable, or if the task could write to the file through the link."""
        try:
            source = os.open(content, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if is_limit(error):
                raise
            message = "the input file %r is not in the cache any more: %s" % (name, error.strerror)
            raise AttemptError("missing-input", "worker", message) from None
        try:
            with self._entry(name) as (directory, last):
                self._write_cached(directory, last, mode & 0o777, source, content)
        finally:
            os.close(source)

    @staticmethod
    def _write_cached(directory: int, last: str, mode: int, source: int, content: str) -> None:
        size = os.fstat(source).st_size
        file = os.open(last, _NEW, 0o600, dir_fd=directory)
        try:
            if not clone(source, file):
                # All links of a file share its mode, and files of other tasks must not become executable.
                if size >= LINK_BYTES and not mode & 0o111 and _replace_by_link(directory, last, content):
                    return
                copy(source, file, size)
            os.fchmod(file, mode)
        finally:
            os.close(file)

    def make_directory(self, name: str, mode: int) -> None:
        """Makes a directory if it does not exist. Gives the owner all permissions, so that the agent can add files."""
        with self._entry(name) as (directory, last):
            below = _open_directory(directory, last, 0o700)
            try:
                os.fchmod(below, mode & 0o777 | 0o700)
            finally:
                os.close(below)

    def make_link(self, name: str, target: str) -> None:
        """Makes a symbolic link to a target in the sandbox. The task has not started, so it cannot have replaced a directory by a link."""
        check_target(len(name_parts(name)) - 1, target)
        with self._entry(name) as (directory, last):
            os.symlink(target, last, dir_fd=directory)

    @contextmanager
    def _entry(self, name: str) -> Iterator[Tuple[int, str]]:
        """Yields the open parent directory of a name, and the last component of the name. Makes missing parent directories."""
        parts = name_parts(name)
        self._inputs.add(name)
        directory = -1
        try:
            directory = os.open(self.path, DIRECTORY)
            for part in parts[:-1]:
                below = _open_directory(directory, part, 0o755)
                os.close(directory)
                directory = below
            yield directory, parts[-1]
        except OSError as error:
            if is_limit(error):
                raise
            raise disk_error("cannot write the input file %r" % name, error) from None
        finally:
            if directory >= 0:
                os.close(directory)

    def collect(self, patterns: Sequence[str], max_bytes: int, outbox: str = "", separate: Container[str] = ()) -> Collected:
        """Collects the regular files that the patterns match. A pattern without wildcards must match a file.

        - A file that is read has the entry [name, mode], and its bytes are in ``contents``.
        - A file that is moved to the outbox has the entry [name, mode, size, path].

        Without an outbox, all files are read; the task fails if they have more than ``max_bytes`` in all. With an outbox, small files are
        read and large files are moved. Files in ``separate`` are always moved, and all files are moved if ``max_bytes`` is 0.

        If a file is missing or cannot be collected, returns the failure and the other files.
        """
        entries: List[List[Any]] = []
        contents: List[bytes] = []
        left = min(max_bytes, MAX_INLINE_TOTAL_BYTES) if outbox else max_bytes
        failure: Optional[Failure] = None
        try:
            for output in outputs_in(self.path, patterns, self._inputs):
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
                    raise AttemptError("result", "task", message % (output.name, output.status().st_size, left))
        except AttemptError as error:
            failure = error.failure
        except BaseException:
            for entry in entries:
                if len(entry) > 2:
                    os.unlink(entry[3])
            raise
        return Collected(entries, contents, failure)

    def names(self, patterns: Sequence[str]) -> Dict[str, None]:
        """Returns the names of the regular files that the patterns match. A pattern without wildcards must match a file."""
        return {output.name: None for output in outputs_in(self.path, patterns, self._inputs)}

    def remove(self) -> None:
        """Deletes the directory, also if it is very deep or has parts that are not readable."""
        try:
            os.unlink(self.path)  # this succeeds if the task has replaced the directory, for example by a link
        except FileNotFoundError:
            pass
        except OSError:
            _remove_tree(self.path)


def make_sandbox(path: str, entries: Sequence[Any], inline: Sequence[Any], cache: str) -> Sandbox:
    """Makes the directory of an attempt, with its inputs. Each item of ``entries`` describes one input:

    - [name, mode]: a file. Its bytes are the next item of ``inline``.
    - [name, mode, digest, size]: a file. Its bytes are in the directory ``cache``.
    - [name, "directory"]: a directory.
    - [name, "link", target]: a symbolic link.
    """
    named = sum(1 for entry in entries if len(entry) == 2 and entry[1] != "directory")
    if named != len(inline):
        raise ValueError("%d input files are named and %d were sent" % (named, len(inline)))
    sandbox = Sandbox(path)
    try:
        _add_inputs(sandbox, entries, iter(inline), cache)
    except BaseException:
        sandbox.remove()
        raise
    return sandbox


def _add_inputs(sandbox: Sandbox, entries: Sequence[Any], inline: Iterator[Any], cache: str) -> None:
    for entry in entries:
        if entry[1] == "directory":
            sandbox.make_directory(entry[0], 0o755)
        elif entry[1] == "link":
            sandbox.make_link(entry[0], entry[2])
        elif len(entry) > 2 and not entry[2]:
            raise AttemptError("missing-input", "user", "the task that should leave %r for it did not" % (entry[0],))
        elif len(entry) > 2:
            sandbox.add_cached_file(entry[0], entry[1], content_path(cache, entry[2]))
        else:
            sandbox.write_file(entry[0], entry[1], next(inline))


def write_all(descriptor: int, content: Any) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _open_directory(directory: int, name: str, mode: int) -> int:
    try:
        os.mkdir(name, mode, dir_fd=directory)
    except FileExistsError:
        pass
    return os.open(name, DIRECTORY, dir_fd=directory)


def _replace_by_link(directory: int, name: str, content: str) -> bool:
    """Replaces a file by a hard link to ``content``. Returns False if that fails, or if this user can write to ``content``, as root can."""
    if os.access(content, os.W_OK):
        return False
    temporary = ".link-" + os.urandom(8).hex()
    try:
        os.link(content, temporary, dst_dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    return True


def _remove_tree(path: str) -> None:
    """Deletes a directory and its entries. Does not follow links."""
    try:
        root = _open_unreadable(path)
    except OSError:
        return
    try:
        left: List[str] = []
        while left != (left := sorted(os.listdir(root))):
            for name in left:
                _remove_below(root, name, root, MAX_LEVELS)
        os.rmdir(path)
    except OSError:
        pass
    finally:
        os.close(root)


def _remove_below(directory: int, name: str, root: int, levels: int) -> None:
    """Deletes one entry, if possible. If a directory is too deep, moves it to ``root``, where ``_remove_tree``
    finds it later."""
    try:
        os.unlink(name, dir_fd=directory)
        return
    except OSError:
        pass  # the entry is a directory
    try:
        below = _open_unreadable(name, directory)
        try:
            if not levels:
                os.rename(name, os.urandom(16).hex(), src_dir_fd=directory, dst_dir_fd=root)
                return
            for inner in os.listdir(below):
                _remove_below(below, inner, root, levels - 1)
        finally:
            os.close(below)
        os.rmdir(name, dir_fd=directory)
    except OSError:
        pass


def _open_unreadable(name: str, above: Optional[int] = None) -> int:
    """Opens a directory, and makes it readable if necessary. Changes the mode through a descriptor. So if a task replaces the directory by
    another file at this moment, the mode of the other file does not change."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        if os.fstat(handle).st_mode & 0o700 != 0o700:
            os.chmod("/proc/self/fd/%d" % handle, 0o700)
        return os.open(".", DIRECTORY, dir_fd=handle)
    finally:
        os.close(handle)


# --- names ----------------------------------------------------------------------------------------------------------------------------


def name_parts(name: Any) -> List[str]:
    """Returns the components of a relative path. Raises AttemptError if the path could leave its directory."""
    parts = name.split("/") if isinstance(name, str) and _is_valid(name, 4095) else [""]
    if any(part in ("", ".", "..") or not _is_valid(part, 255) for part in parts):
        raise AttemptError("missing-input", "user", "%r is no name of a file below the task's directory" % (name,))
    return parts


def check_target(depth: int, target: Any) -> None:
    """Raises AttemptError if the link target ``target`` could lead out of the sandbox. ``depth``: number of directories between sandbox and
    link.

    The target is allowed to have ".." only at the beginning. In a target such as "a/..", the name "a" can itself be a link, so ".." could
    lead anywhere.
    """
    good = isinstance(target, str) and target != "" and not target.startswith("/") and _is_valid(target, 4095)
    named = False
    for part in target.split("/") if good else ():
        if part == "..":
            depth -= 1
            good = good and depth >= 0 and not named
        named = named or part not in ("", ".", "..")
    if not good:
        message = "%r is no target of a link below the task's directory: it must be relative and lead to nothing outside of it"
        raise AttemptError("missing-input", "user", message % (target,))


def _is_valid(text: str, max_bytes: int) -> bool:
    try:
        return "\0" not in text and len(os.fsencode(text)) <= max_bytes
    except UnicodeEncodeError:
        return False


def disk_error(what: str, error: OSError) -> AttemptError:
    """Returns the failure for an error of the file system. If the disk is full or broken, the worker is to blame, otherwise the user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
        return AttemptError("disk", "worker", "%s: %s" % (what, error.strerror))
    return AttemptError("missing-input", "user", "%s: %s" % (what, error.strerror))


def missing_output(name: str, instead: str = "", others: str = "") -> AttemptError:
    """Returns the failure for a missing output. ``instead``: the message if an entry has this name but is no readable regular file.
    ``others``: a description of the other files."""
    message = instead or "the task did not leave the file %r, which was declared as its output%s" % (name, others)
    return AttemptError(MISSING_OUTPUT, "task", message)


# --- output files ---------------------------------------------------------------------------------------------------------------------


class OutputFile(NamedTuple):
    """An open regular file. ``directory``: descriptor of the directory that contains the file."""

    name: str
    mode: int
    descriptor: int
    directory: int

    def status(self) -> os.stat_result:
        return os.fstat(self.descriptor)


def outputs_in(path: str, patterns: Sequence[str], inputs: Container[str] = ()) -> Iterator[OutputFile]:
    """Yields each matching file once. Closes it when the next file is requested. A pattern without wildcards must match a file: if it does
    not, raises AttemptError after the last file of the other patterns. The message names files that are no ``inputs``."""
    seen: Set[str] = set()
    missing: Dict[str, str] = {}
    for pattern in patterns:
        found = False
        for output in _walk_directory(path, None, "", name_parts(pattern)):
            try:
                found = True
                if output.name not in seen:
                    seen.add(output.name)
                    yield output
            finally:
                os.close(output.descriptor)
        if not found and not _MAGIC.intersection(pattern):
            missing[pattern] = _describe_entry(path, name_parts(pattern))
    for name, instead in missing.items():
        others = "" if instead else _describe_others(path, name, lambda left: left not in seen and left not in inputs)
        raise missing_output(name, instead, others)


def _describe_others(path: str, missing: str, counts: Callable[[str], bool]) -> str:
    """Describes the files that a task left instead of the output ``missing``. ``counts``: returns whether to describe a file."""
    left: List[str] = []
    try:
        for number, output in enumerate(_walk_directory(path, None, "", ["**"]), 1):
            os.close(output.descriptor)
            if counts(output.name):
                left.append(output.name)
            if number == MAX_COMPARED:
                break
    except (AttemptError, OSError):
        pass  # the other files are only a help
    if not left:
        return ""
    import difflib

    near = difflib.get_close_matches(missing, left, 1, 0.75)
    shown = [*near, *(name for name in left if name not in near)][:MAX_LISTED]
    more = ", ..." if len(left) > len(shown) else ""
    return "; it left %s%s%s" % (", ".join(map(repr, shown)), more, "; did you mean %r?" % near[0] if near else "")


def _walk(directory: int, prefix: str, parts: List[str]) -> Iterator[OutputFile]:
    """Yields the regular files that match a pattern, given as its ``parts``. If a directory matches, yields all regular files below it."""
    part, rest = parts[0], parts[1:]
    if part == "**" and rest:
        yield from _walk(directory, prefix, rest)
        for name in sorted(os.listdir(directory)):
            if rest[1:] or not fnmatch.fnmatchcase(name, rest[0]):  # otherwise its files were yielded already
                yield from _walk_directory(name, directory, prefix + name + "/", parts)
        return
    plain = not _MAGIC.intersection(part)
    for name in [part] if plain else [name for name in sorted(os.listdir(directory)) if fnmatch.fnmatchcase(name, part)]:
        if rest:
            yield from _walk_directory(name, directory, prefix + name + "/", rest)
            continue
        output = _open_regular(directory, prefix, name)
        if output is not None:
            yield output
        else:
            yield from _walk_directory(name, directory, prefix + name + "/", ["**"])


def _walk_directory(path: str, above: Optional[int], prefix: str, parts: List[str]) -> Iterator[OutputFile]:
    """Opens a directory and calls ``_walk``. ``prefix``: path of the directory in the sandbox, such as "a/b/". It is "" for the sandbox."""
    if prefix.count("/") > MAX_DEPTH:
        message = "there may be output files below %r, more than %d directories deep: that is too deep"
        raise AttemptError("result", "task", message % (os.path.dirname(prefix.rstrip("/")), MAX_DEPTH))
    try:
        directory = os.open(path, DIRECTORY, dir_fd=above)
    except OSError as error:
        # The path is no directory, or the task has removed it. Other errors are raised.
        _check_absent(error, prefix.rstrip("/") or path)
        return
    try:
        yield from _walk(directory, prefix, parts)
    finally:
        os.close(directory)


def _open_regular(directory: int, prefix: str, name: str) -> Optional[OutputFile]:
    """Opens a regular file. Returns None if it does not exist or is no regular file."""
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
    """Returns a message about an entry that is no readable regular file, or "" if there is no entry."""
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
    """Raises AttemptError if a file possibly exists but could not be opened. Does nothing if ``error`` means that there is no file."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise AttemptError("result", "worker", "cannot read the output files: %s" % describe_limit(error))
    if error.errno in (errno.EACCES, errno.EPERM):
        raise AttemptError("result", "task", "the output file %r may not be read" % name)
    if error.errno in (errno.EIO, errno.ESTALE):
        raise AttemptError("result", "worker", "the output file %r cannot be read: %s" % (name, error.strerror))


def _read(output: OutputFile, max_bytes: int) -> Optional[bytes]:
    """Reads a file. Returns None if it is larger than ``max_bytes``."""
    if output.status().st_size > max_bytes:
        return None
    with open(output.descriptor, "rb", closefd=False) as file:
        content = file.read(max_bytes + 1)
    return content if len(content) <= max_bytes else None


def _move_out(output: OutputFile, outbox: str) -> List[Any]:
    """Moves a file to the outbox, or copies it if it has other hard links or cannot be moved. Returns [name, mode, size, new path]."""
    target_path = os.path.join(outbox, os.urandom(16).hex())
    try:
        if output.status().st_nlink != 1 or not _rename(output, target_path):
            _copy_out(output, target_path)
    except OSError as error:
        if is_limit(error):
            raise
        raise AttemptError("disk", "worker", "cannot take the output file %r out: %s" % (output.name, error.strerror)) from None
    return [output.name, output.mode, os.lstat(target_path).st_size, target_path]


def _rename(output: OutputFile, target_path: str) -> bool:
    """Moves the file to ``target_path``. Returns False if that fails, or if the task has put another file in its place."""
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
