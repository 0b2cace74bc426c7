"""Moves the middle of long outputs of running calls from memory to files on disk. The middle is all bytes except the first and the last
``OUTPUT_CAP`` bytes. The slot completes the files when the call ends."""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat
from typing import TYPE_CHECKING, Tuple

from ...portable.processes import libc
from ..slots.output_capture import OUTPUT_CAP
from ..slots.shared_page import FREED
from ..slots.spooled_stream import MAX_OUTPUT, check_space, spool_path

if TYPE_CHECKING:
    from .slot_process import SlotProcess

MOVE_ABOVE = 2 * OUTPUT_CAP
"""The middle of an output is moved to a file when more than this number of its bytes are in memory."""
MOVE_AT_ONCE = 64 * 1024 * 1024
PEEK_BYTES = 1 << 20
FALLOC_KEEP_SIZE_PUNCH_HOLE = 3


def bound_output(process: SlotProcess) -> bool:
    """Moves the middle of each long output of a call to a file. Returns True if an output was long: then the caller must check again
    soon."""
    flooded = False
    for stream, memory in enumerate(process.outputs, 1):
        if os.fstat(memory).st_size - max(OUTPUT_CAP, int(process.page.words64[FREED + stream])) - OUTPUT_CAP > MOVE_ABOVE:
            _move(process, stream, memory)
            flooded = True
    return flooded


def _move(process: SlotProcess, stream: int, memory: int) -> None:
    try:
        fcntl.lockf(memory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # the call has ended, and the slot is taking its output now
    try:
        freed = int(process.page.words64[FREED + stream])
        first = max(OUTPUT_CAP, freed)
        last = min((os.fstat(memory).st_size - OUTPUT_CAP) & ~4095, first + MOVE_AT_ONCE)
        if last - first > MOVE_ABOVE:
            cap = int(process.assigned[0][1].spec.launch.get("max_output") or MAX_OUTPUT)
            _append(spool_path(process.scratch, stream), memory, (first, min(last, cap - OUTPUT_CAP // 2)), not freed)
            libc().fallocate(memory, FALLOC_KEEP_SIZE_PUNCH_HOLE, ctypes.c_long(first), ctypes.c_long(last - first))
            process.page.words64[FREED + stream] = last
    finally:
        fcntl.lockf(memory, fcntl.LOCK_UN)


def _append(path: str, memory: int, part: Tuple[int, int], is_new: bool) -> None:
    """Copies a part of the memory file to the same offsets of the disk file. ``part``: first offset, and offset after the last byte. Does
    nothing if the disk was full before, so that earlier bytes are missing in the disk file."""
    first, last = part
    if first >= last:
        return
    try:
        if is_new and os.path.lexists(path):
            os.unlink(path)
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(path, flags | (os.O_CREAT | os.O_EXCL if is_new else 0), 0o600)
    except OSError:
        return
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or not (is_new or status.st_size == first):
            return
        check_space(file)
        os.lseek(file, first, os.SEEK_SET)
        while first < last:
            count = os.sendfile(file, memory, first, last - first)
            if count <= 0:
                return
            first += count
    except OSError:
        pass  # the disk is full
    finally:
        os.close(file)


def peek_at_call(process: SlotProcess, stream: int, offset: int) -> Tuple[int, bytes]:
    """Returns (start, bytes): a part of the output of the running call, and the position at which this part starts. The position is
    ``offset``, or larger if the bytes at ``offset`` are missing in the file.

    A negative ``offset`` counts from the end of the output.
    """
    memory, freed = process.outputs[stream != 1], int(process.page.words64[FREED + (1 if stream == 1 else 2)])
    if offset < 0:
        offset = max(0, os.fstat(memory).st_size + offset)
    if offset < OUTPUT_CAP:
        return offset, os.pread(memory, min(PEEK_BYTES, OUTPUT_CAP - offset), offset)
    if offset >= freed:
        return offset, os.pread(memory, PEEK_BYTES, offset)
    try:
        file = os.open(spool_path(process.scratch, 1 if stream == 1 else 2), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        file = -1
    data = b""
    if file >= 0:
        try:
            data = os.pread(file, min(PEEK_BYTES, freed - offset), offset) if stat.S_ISREG(os.fstat(file).st_mode) else b""
        finally:
            os.close(file)
    return (offset, data) if data else (freed, os.pread(memory, PEEK_BYTES, freed))
