"""Writes a large payload to a shared file, makes its 24-byte reference, and finds the payload of a reference.

Client, master and slots of one machine share a directory. A payload in that directory does not pass through the master: its writer sends a
reference instead. The master checks that the file exists and syncs it to disk. The master also counts the references to each file, and
removes a file without references.
"""

from __future__ import annotations

import mmap
import os
from typing import List, Sequence, Union

from .payload_format import Buffer, is_reference, pack_reference, unpack_reference

SHARE_BYTES = 128 * 1024
"""A payload with more bytes than this gets its own file."""
PARTS_PER_CALL = 512

Directory = Union[str, "os.PathLike[str]"]


def shared_path(directory: Directory, number: int) -> str:
    return os.path.join(directory, "%016x" % number)


def write_payload(directory: Directory, parts: Sequence[Buffer]) -> bytes:
    """Writes a payload to a new file and returns its reference. The master syncs the file to disk."""
    number = int.from_bytes(os.urandom(8), "big") >> 1
    path = shared_path(directory, number)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        views: List[memoryview] = [memoryview(part).cast("B") for part in parts if len(part)]
        length = sum(map(len, views))
        while views:
            written = os.writev(descriptor, views[:PARTS_PER_CALL])
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
    return pack_reference(number, length)


def read_payload(directory: Directory, payload: memoryview) -> memoryview:
    """Returns a payload. If ``payload`` is a reference, returns the content of the file. Raises OSError if the file does not exist. The
    file is mapped privately, so the caller is allowed to change the returned bytes. If there is no shared directory, returns a reference
    unchanged.
    """
    if not is_reference(payload) or not directory:
        return payload
    number, length = unpack_reference(payload)
    descriptor = os.open(shared_path(directory, number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return memoryview(mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY)) if length else memoryview(b"")
    finally:
        os.close(descriptor)


def resolve(directory: Directory, payload: memoryview) -> memoryview:
    """Returns the payload as ``read_payload`` does. If the file does not exist, returns the reference, which ``unpack`` rejects."""
    try:
        return read_payload(directory, payload)
    except OSError:
        return payload
