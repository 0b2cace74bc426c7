"""Copies files. If the file system supports it, blocks are shared and holes are kept."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Callable, Iterator, List, Optional, Tuple

BLOCK_BYTES = 1 << 20
HOLE_BYTES = 64 * 1024
"""Bytes of a block. Each call of ``write_sparsely`` divides its bytes into blocks. A block of zeros becomes a hole."""
_ZEROS = bytes(HOLE_BYTES)
_FICLONE = 0x40049409


def clone(source: int, target: int) -> bool:
    """Copies a file to an empty file by sharing its blocks, which is fast and needs no space. Returns False if that is not supported."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def copy(source: int, target: int, size: int, on_progress: Optional[Callable[[int], None]] = None) -> None:
    """Copies ``size`` bytes into an empty file. If the source is shorter, the copy is shorter too. ``on_progress`` gets the offset up to
    which bytes are copied."""
    block = memoryview(bytearray(BLOCK_BYTES))
    for offset, extent_length, is_hole in extents(source, 0, size):
        if is_hole:
            continue
        end = offset + extent_length
        while offset < end:
            length = os.preadv(source, [block[: min(BLOCK_BYTES, end - offset)]], offset)
            if not length:
                return
            write_sparsely(target, block[:length], offset)
            offset += length
            if on_progress is not None:
                on_progress(offset)
    if os.fstat(source).st_size >= size:
        os.ftruncate(target, size)


def extents(descriptor: int, offset: int, limit: int, min_hole_bytes: int = 1) -> Iterator[Tuple[int, int, bool]]:
    """Yields offset and length of each extent in a range, and True if it is a hole. A hole shorter than ``min_hole_bytes`` counts as data,
    except at the end of the range."""
    while offset < limit:
        data = _seek(descriptor, offset, limit, os.SEEK_DATA)
        if data - offset >= min_hole_bytes or data == limit:
            yield offset, data - offset, True
            offset = data
            continue
        hole = _seek(descriptor, data, limit, os.SEEK_HOLE)
        yield offset, hole - offset, False
        offset = hole


def _seek(descriptor: int, offset: int, limit: int, whence: int) -> int:
    try:
        return min(os.lseek(descriptor, offset, whence), limit)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return limit
        return offset if whence == os.SEEK_DATA else limit  # the file system does not report holes


def write_sparsely(descriptor: int, view: memoryview, offset: int) -> None:
    """Writes bytes at an offset that is at or beyond the end of the file. Blocks of zeros become holes."""
    at = 0
    for start, end in _nonzero_extents(view):
        at = start
        while at < end:
            at += os.pwrite(descriptor, view[at:end], offset + at)
    if at < len(view):
        os.ftruncate(descriptor, offset + len(view))


def _nonzero_extents(view: memoryview) -> List[Tuple[int, int]]:
    """Returns start and end of each extent that is not a block of zeros."""
    found: List[Tuple[int, int]] = []
    for start in range(0, len(view), HOLE_BYTES):
        end = min(start + HOLE_BYTES, len(view))
        if _is_zero(view[start:end]):
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def _is_zero(view: memoryview) -> bool:
    # For most blocks, three bytes are enough to decide. All other blocks are compared, which needs a copy.
    return not (view[0] or view[-1] or view[len(view) // 2]) and bytes(view) == _ZEROS[: len(view)]
