"""Captures the output of calls. A long output goes to a file.

The streams of a slot are files in memory. While a call writes a lot, the agent moves the middle of such a memory file to a file on disk
(see ``agent/node/output_spool.py``). A lock on the memory file ensures that agent and slot do not use it at the same time.
"""

from __future__ import annotations

import sys
from fcntl import LOCK_EX, LOCK_UN, lockf
from os import dup2, ftruncate, lseek, pread, unlink
from typing import Any, Dict, Tuple

from ...portable.output_marks import CAP, FULL_DISK
from .output_capture import OUTPUT_CAP, read_head_and_tail
from .shared_page import FREED, SharedPage
from .spooled_stream import NOTHING, KeptStream, StreamFile, describe, excerpt, spool_path

PIECE_BYTES = 1 << 20


class StreamCapture:
    """Captures standard output and standard error of calls in this process. Descriptors 1 and 2 are files, which are read after each call.

    User code can close or replace descriptors 1 and 2, so this object keeps duplicates of both.
    """

    def __init__(self, out_duplicate: int, error_duplicate: int, page: SharedPage, scratch: str, outbox: str) -> None:
        self._duplicates = {1: out_duplicate, 2: error_duplicate}
        self._streams: Tuple[Any, Any] = (sys.stdout, sys.stderr)
        self._freed = page.words64
        self._scratch = scratch
        self._outbox = outbox

    def collect(self, cap: int) -> Tuple[bytes, bytes, Dict[str, Any]]:
        """Returns what was written since the previous ``collect``: the bytes of stdout, the bytes of stderr, and a description of each
        stream whose bytes are not complete. ``cap``: maximum bytes that are kept of each stream."""
        streams = self._streams
        try:
            streams[0].flush()
            streams[1].flush()
            out_size, error_size = lseek(1, 0, 2), lseek(2, 0, 2)
        except (OSError, ValueError):
            self._restore()
            return b"", b"", {}
        if sys.stdout is not streams[0] or sys.stderr is not streams[1]:
            sys.stdout, sys.stderr = streams
        if not out_size and not error_size:
            return b"", b"", {}
        out, error = self._take(1, out_size, cap), self._take(2, error_size, cap)
        return out.data, error.data, describe({"stdout": out, "stderr": error})

    def _take(self, stream: int, size: int, cap: int) -> KeptStream:
        if not size:
            return NOTHING
        duplicate = self._duplicates[stream]
        is_long = size > min(cap, OUTPUT_CAP)
        if is_long:
            lockf(duplicate, LOCK_EX)  # wait if the agent is moving a part of the output
            kept = self._take_long(stream, size, cap)
        else:
            kept = KeptStream(read_head_and_tail(duplicate, size, OUTPUT_CAP)[0], 0, 0, "", None)
        ftruncate(duplicate, 0)
        lseek(stream, 0, 0)
        if is_long:
            self._freed[FREED + stream] = 0
            lockf(duplicate, LOCK_UN)
        return kept

    def _take_long(self, stream: int, size: int, cap: int) -> KeptStream:
        """Takes a stream that does not fit into the result. If the stream cannot be put into a file, or if ``cap`` is so small that no file
        is needed, takes only head and tail."""
        data, omitted = read_head_and_tail(self._duplicates[stream], size, min(cap, OUTPUT_CAP))
        if cap <= OUTPUT_CAP:
            return KeptStream(data, omitted, omitted, CAP, None)
        file = None
        try:
            file = StreamFile(spool_path(self._scratch, stream), cap)
            reason = self._fill(file, stream, size)
            dropped, reason = file.finish(data, size, reason)
            return excerpt(data, size, dropped, reason, file.move(self._outbox))
        except Exception:  # noqa: BLE001  a full disk, or a module that user code has broken
            return KeptStream(data, omitted, omitted, FULL_DISK, None)
        finally:
            if file is not None:
                file.discard()

    def _fill(self, file: StreamFile, stream: int, size: int) -> str:
        """Completes the file of a stream: writes the parts of the stream that the agent has not moved to the file. Returns the reason to
        report if bytes are still missing."""
        memory, freed = self._duplicates[stream], self._freed[FREED + stream]
        if file.written:  # the agent has not written the beginning, because it stays in memory
            for offset in range(0, OUTPUT_CAP, PIECE_BYTES):
                file.put(pread(memory, PIECE_BYTES, offset), offset)
        end = OUTPUT_CAP if freed and not file.written else size if freed <= file.written else file.written
        try:
            while file.written < end:
                if not file.add(pread(memory, min(PIECE_BYTES, end - file.written), file.written)):
                    return CAP
        except OSError:
            return FULL_DISK
        return FULL_DISK if freed and end < size and not file.is_full else CAP

    def _restore(self) -> None:
        """Opens the streams again after user code has closed a stream or its descriptor."""
        for stream, duplicate in self._duplicates.items():
            dup2(duplicate, stream)
            ftruncate(duplicate, 0)
            if self._freed[FREED + stream]:
                self._freed[FREED + stream] = 0
                try:
                    unlink(spool_path(self._scratch, stream))
                except OSError:
                    pass  # the disk was full, so the agent could not make the file
        sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
        self._streams = (sys.stdout, sys.stderr)
