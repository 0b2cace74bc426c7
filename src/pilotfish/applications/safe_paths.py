"""Writes files below a directory without following links.

The names of the files are not trusted: no name can lead out of the directory. Each component of a name is opened relative to the component
before it, without following links. So if another process replaces a component by a link during the write, the write fails.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pilotfish.errors import BadInput, Correction

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_COMPONENT_BYTES = 255
_BLOCK_BYTES = 1 << 20
_LINK_IN_THE_WAY = (errno.ELOOP, errno.ENOTDIR)
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


def check_name(name: object, field: str) -> tuple[str, ...]:
    """Checks that a name is relative and does not lead out of its directory. Returns its components."""
    if not isinstance(name, str):
        raise BadInput(f"{field}: {name!r} is not a file name", f"give {field} as text")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if not parts or "\0" in name or name.startswith("/") or ".." in parts or name.endswith("/"):
        fix = Correction("use a relative name without ..", name, parts[-1] if parts and parts[-1] != ".." else "result.dat")
        raise BadInput(f"{field}: {name!r} does not name a file inside the task's directory", fix)
    if any(len(os.fsencode(part)) > _MAX_COMPONENT_BYTES for part in parts):
        raise BadInput(f"{field}: {name[:40]!r}… has a part of more than {_MAX_COMPONENT_BYTES} bytes", "use a shorter name")
    return parts


def _copy_all(target: int, source: Path) -> None:
    """Copies the bytes of a file. Does not write blocks of zeros, so the copy of a sparse file is sparse, too."""
    with open(source, "rb", buffering=0) as stream:
        done = 0
        while block := stream.read(_BLOCK_BYTES):
            if block.count(0) != len(block):
                os.pwrite(target, block, done)
            done += len(block)
    os.ftruncate(target, done)


def write_below(
    directory: str | os.PathLike[str],
    name: str,
    content: bytes | Path,
    mode: int,
    new: bool = False,
    note: Callable[[os.stat_result], None] | None = None,
) -> Path:
    """Writes bytes to the file ``name`` below ``directory``, or copies a file to this place. Creates missing directories. The new file gets
    its name only when it is complete.

    ``new``: if True, a file that already has this name raises BadInput. If False, the file is replaced. ``note``: a function that gets the
    status of the complete file before the file gets its name.
    """
    *folders, last = check_name(name, "files")
    os.makedirs(directory, exist_ok=True)
    try:
        with _folder(directory, folders, make=True) as place:
            _write_here(place, last, mode, content, new, note)
    except OSError as error:
        where = os.fspath(directory)
        reason = error.strerror
        hint = "look for links in the way" if error.errno in _LINK_IN_THE_WAY else f"see the directory and its disk: df -h {where}"
        if error.errno == errno.EISDIR:
            reason, hint = f"there is a directory {name!r}", "move this directory away, or name another destination"
        raise BadInput(f"files: {name!r} cannot be written below {where!r}: {reason}", hint) from error
    return Path(directory, *folders, last)


def status_below(directory: str | os.PathLike[str], name: str) -> os.stat_result | None:
    """Returns the status of a file below a directory. Returns None if the file does not exist. Raises BadInput if a link is in the way."""
    *folders, last = check_name(name, "files")
    try:
        with _folder(directory, folders) as place:
            return os.stat(last, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        folder = "/".join(folders)
        text = f"files: {name!r} cannot be below {os.fspath(directory)!r}: {folder!r} is a link or no directory"
        raise BadInput(text, "name another destination; --into DIR may be a link") from error


@contextmanager
def _folder(directory: str | os.PathLike[str], folders: Sequence[str], make: bool = False) -> Iterator[int]:
    """Opens a folder below a directory without following links. ``make``: whether to create missing folders."""
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(folder, 0o755, dir_fd=place)
            inner = os.open(folder, _DIRECTORY, dir_fd=place)
            os.close(place)
            place = inner
        yield place
    finally:
        os.close(place)


def _write_here(place: int, last: str, mode: int, content: bytes | Path, new: bool, note: Callable[[os.stat_result], None] | None) -> None:
    temporary = f".{secrets.token_hex(8)}.part"
    target = os.open(temporary, _NEW_FILE, 0o600, dir_fd=place)
    try:
        if isinstance(content, Path):
            _copy_all(target, content)
        else:
            with open(target, "wb", closefd=False) as stream:
                stream.write(content)
        os.fchmod(target, mode & 0o755)
        if note is not None:
            note(os.fstat(target))
        (_name_new if new else _replace)(place, temporary, last)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=place)
        raise
    finally:
        os.close(target)


def _replace(place: int, temporary: str, last: str) -> None:
    os.replace(temporary, last, src_dir_fd=place, dst_dir_fd=place)


def _name_new(place: int, temporary: str, last: str) -> None:
    """Gives a file its name. Raises FileExistsError if a different file has this name. This is certain only with hard links. On a file
    system without hard links, a file that another process creates at the same moment is replaced."""
    try:
        os.link(temporary, last, src_dir_fd=place, dst_dir_fd=place, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # Without hard links, the check of the name and the renaming are two steps.
        with suppress(FileNotFoundError):
            os.stat(last, dir_fd=place, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), last) from error
        _replace(place, temporary, last)
    else:
        os.unlink(temporary, dir_fd=place)
