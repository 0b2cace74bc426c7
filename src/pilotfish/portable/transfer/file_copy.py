"""Copies of files: blocks are shared where the file system can, holes stay holes."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Callable, Iterator, List, Optional, Tuple

BLOCK = 1 << 20
HOLE = 64 * 1024
"""Zeros of this length, at a multiple of it within what is written, are left out."""
_ZEROS = bytes(HOLE)
_FICLONE = 0x40049409


def clone(source: int, target: int) -> bool:
    """Let an empty file share the blocks of another one until one of them is written to: quick, and takes no room."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def copy(source: int, target: int, size: int, grown: Optional[Callable[[int], None]] = None) -> None:
    """Copy so many bytes into an empty file. ``grown`` is told how far it is. The copy is shorter if the source is."""
    block = memoryview(bytearray(BLOCK))
    for start, end in _data(source, size):
        offset = start
        while offset < end:
            length = os.preadv(source, [block[: min(BLOCK, end - offset)]], offset)
            if not length:
                return
            write_sparsely(target, block[:length], offset)
            offset += length
            if grown is not None:
                grown(offset)
    if os.fstat(source).st_size >= size:
        os.ftruncate(target, size)


def _data(descriptor: int, size: int) -> Iterator[Tuple[int, int]]:
    """The stretches of a file that are no holes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
            end = min(size, os.lseek(descriptor, start, os.SEEK_HOLE))
        except OSError as error:
            if error.errno != errno.ENXIO:  # holes are not known here
                yield end, size
            return
        if start < end:
            yield start, end


def write_sparsely(descriptor: int, view: memoryview, offset: int) -> None:
    """Append to a file that ends at the offset, or before it; zeros become holes."""
    at = 0
    for start, end in _solid(view):
        at = start
        while at < end:
            at += os.pwrite(descriptor, view[at:end], offset + at)
    if at < len(view):
        os.ftruncate(descriptor, offset + len(view))


def _solid(view: memoryview) -> List[Tuple[int, int]]:
    """The stretches that are to be written."""
    found: List[Tuple[int, int]] = []
    for start in range(0, len(view), HOLE):
        end = min(start + HOLE, len(view))
        if _is_zero(view[start:end]):
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def _is_zero(view: memoryview) -> bool:
    # Most blocks are told by one look; only the others are worth a comparison, which needs a copy.
    return not (view[0] or view[-1] or view[len(view) // 2]) and bytes(view) == _ZEROS[: len(view)]
