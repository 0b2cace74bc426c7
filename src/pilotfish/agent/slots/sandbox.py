"""Makes and removes the private directory of an attempt. Names come from outside: no path may lead out of it, whatever the task does
meanwhile.

Every component is opened by itself, relative to its parent and without following links, so that replacing a directory with a link between
two steps gains nothing.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any, Container, Dict, Iterator, List, Optional, Sequence, Tuple

from ...portable.failures import is_limit
from ...portable.transfer.file_copy import clone, copy
from .output_files import DIRECTORY, collect_outputs, outputs_in
from .sandbox_names import SandboxError, check_target, disk_error, name_parts

LINK_BYTES = 64 * 1024 * 1024
"""Minimum size of an input that is linked rather than copied."""
MAX_LEVELS = 50
"""Deeper directories are removed in several passes: each level takes a descriptor."""
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Sandbox:
    """One private directory, created by the constructor; ``remove`` deletes it, unreadable parts included."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            os.makedirs(path, 0o700)
        except OSError as error:
            if is_limit(error):
                raise
            raise SandboxError("disk", "worker", "cannot make a directory for the task: %s" % error.strerror) from None

    def put(self, name: str, mode: int, content: Any) -> None:
        """Write a file with these bytes."""
        with self._entry(name) as (directory, last):
            file = os.open(last, _NEW, 0o600, dir_fd=directory)
            try:
                write_all(file, content)
                os.fchmod(file, mode & 0o777)
            finally:
                os.close(file)

    def place(self, name: str, mode: int, content: str) -> None:
        """Add a file from the cache, which must not be changed: a copy, or a read-only link if it is large."""
        try:
            source = os.open(content, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if is_limit(error):
                raise
            message = "the input file %r is not in the cache any more: %s" % (name, error.strerror)
            raise SandboxError("missing-input", "worker", message) from None
        try:
            with self._entry(name) as (directory, last):
                self._fill(directory, last, mode & 0o777, source, content)
        finally:
            os.close(source)

    @staticmethod
    def _fill(directory: int, last: str, mode: int, source: int, content: str) -> None:
        size = os.fstat(source).st_size
        file = os.open(last, _NEW, 0o600, dir_fd=directory)
        try:
            if not clone(source, file):
                # A link shares its mode, and other tasks' copies must not become executable.
                if size >= LINK_BYTES and not mode & 0o111 and _replace_by_link(directory, last, content):
                    return
                copy(source, file, size)
            os.fchmod(file, mode)
        finally:
            os.close(file)

    def make_directory(self, name: str, mode: int) -> None:
        """Make a directory, which may exist. We can always write to it."""
        with self._entry(name) as (directory, last):
            below = _enter(directory, last, 0o700)
            try:
                os.fchmod(below, mode & 0o777 | 0o700)
            finally:
                os.close(below)

    def make_link(self, name: str, target: str) -> None:
        """Make a symbolic link that stays inside, as long as only these methods made the directories on its way."""
        check_target(len(name_parts(name)) - 1, target)
        with self._entry(name) as (directory, last):
            os.symlink(target, last, dir_fd=directory)

    @contextmanager
    def _entry(self, name: str) -> Iterator[Tuple[int, str]]:
        """Open the parent directory of a name, made if needed, and yield it with the last component."""
        parts = name_parts(name)
        directory = -1
        try:
            directory = os.open(self.path, DIRECTORY)
            for part in parts[:-1]:
                below = _enter(directory, part, 0o755)
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

    def collect(
        self, patterns: Sequence[str], max_bytes: int, outbox: str = "", separate: Container[str] = ()
    ) -> Tuple[List[List[Any]], List[bytes]]:
        """[name, mode] and content of the regular files that the patterns match; a name without a pattern must exist.

        If there is an outbox, files that are not small, or whose names are in ``separate``, are moved to it: [name, mode, size, path],
        without content.
        """
        return collect_outputs(self.path, patterns, max_bytes, outbox, separate)

    def names(self, patterns: Sequence[str]) -> Dict[str, None]:
        """Names of the regular files that the patterns match; a name without a pattern must exist."""
        return {output.name: None for output in outputs_in(self.path, patterns)}

    def remove(self) -> None:
        """Delete the directory, however deep it is and whatever its modes are."""
        try:
            os.unlink(self.path)  # the task replaced it, for example by a link
        except FileNotFoundError:
            pass
        except OSError:
            _remove_tree(self.path)


def write_all(descriptor: int, content: Any) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _enter(directory: int, name: str, mode: int) -> int:
    try:
        os.mkdir(name, mode, dir_fd=directory)
    except FileExistsError:
        pass
    return os.open(name, DIRECTORY, dir_fd=directory)


def _replace_by_link(directory: int, name: str, content: str) -> bool:
    """Replace the file by a link; False if that fails, or if a task could change the target: for root, nothing is read-only."""
    if os.access(content, os.W_OK):
        return False
    beside = ".link-" + os.urandom(8).hex()
    try:
        os.link(content, beside, dst_dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    os.rename(beside, name, src_dir_fd=directory, dst_dir_fd=directory)
    return True


def _remove_tree(path: str) -> None:
    """Delete a tree. Links are never followed: they would lead elsewhere."""
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
    """Delete one entry. Directories too deep are moved up to the root, where the next pass finds them. What cannot be deleted stays."""
    try:
        os.unlink(name, dir_fd=directory)
        return
    except OSError:
        pass  # it is a directory
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
    """Open a directory without reading it, because that may be forbidden; the mode is changed on the opened directory, whatever has its
    name by then."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        if os.fstat(handle).st_mode & 0o700 != 0o700:
            os.chmod("/proc/self/fd/%d" % handle, 0o700)
        return os.open(".", DIRECTORY, dir_fd=handle)
    finally:
        os.close(handle)
