"""Writes files below a directory without following links.

The names are not trusted: no name can lead out of the directory. Each component of a name is opened relative to the component above it, and
without following links. So a link that another process creates meanwhile causes an error.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from pilotfish.errors import BadInput

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_COMPONENT_BYTES = 255
_BLOCK_BYTES = 1 << 20


def check_name(name: object, field: str) -> tuple[str, ...]:
    """Checks that a name is relative and does not lead out of its directory. Returns its components."""
    if not isinstance(name, str):
        raise BadInput(f"{field}: {name!r} is not a file name", f"give {field} as text")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if not parts or "\0" in name or name.startswith("/") or ".." in parts or name.endswith("/"):
        raise BadInput(f"{field}: {name!r} does not name a file inside the task's directory", "use a relative name without ..")
    if any(len(os.fsencode(part)) > _MAX_COMPONENT_BYTES for part in parts):
        raise BadInput(f"{field}: {name[:40]!r}… has a part of more than {_MAX_COMPONENT_BYTES} bytes", "use a shorter name")
    return parts


def _copy_all(target: int, source: Path) -> None:
    """Copies the bytes. Does not write blocks of zeros, so that the copy has holes where the source has them."""
    with open(source, "rb", buffering=0) as stream:
        done = 0
        while block := stream.read(_BLOCK_BYTES):
            if block.count(0) != len(block):
                os.pwrite(target, block, done)
            done += len(block)
    os.ftruncate(target, done)


def write_below(directory: str | os.PathLike[str], name: str, content: bytes | Path, mode: int) -> Path:
    """Writes bytes to a file, or copies a file. The new file gets its name only when it is complete."""
    *folders, last = check_name(name, "files")
    os.makedirs(directory, exist_ok=True)
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o755, dir_fd=place)
            inner = os.open(folder, _DIRECTORY, dir_fd=place)
            os.close(place)
            place = inner
        _write_here(place, last, mode, content)
    except OSError as error:
        where = os.fspath(directory)
        raise BadInput(f"files: {name!r} cannot be written below {where!r}: {error.strerror}", "look for links in the way") from error
    finally:
        os.close(place)
    return Path(directory, *folders, last)


def _write_here(place: int, last: str, mode: int, content: bytes | Path) -> None:
    temporary = f".{secrets.token_hex(8)}.part"
    target = os.open(temporary, _NEW_FILE, 0o600, dir_fd=place)
    try:
        if isinstance(content, Path):
            _copy_all(target, content)
        else:
            with open(target, "wb", closefd=False) as stream:
                stream.write(content)
        os.fchmod(target, mode & 0o755)
        os.replace(temporary, last, src_dir_fd=place, dst_dir_fd=place)
    except OSError:
        os.unlink(temporary, dir_fd=place)
        raise
    finally:
        os.close(target)
