"""The slot's ends of its channel to the agent: orders in, reports out."""

from __future__ import annotations

import json
import socket
from collections import deque
from typing import Any, Deque, List, Optional, Sequence, Tuple

from ...portable.failures import Failure
from ...portable.payload_format import pack_head
from ...portable.payload_reference import SHARE_BYTES, write_payload
from ...portable.wire.frames import join_small
from .output_upload import MARK
from .shared_page import ORDER, OUTBOX_BYTES, OUTBOX_LENGTH, REPORT, SPEC, TASK, SharedPage

BUFFER_BYTES = 256 * 1024
LARGE_BYTES = 64 * 1024
SMALL_REPORT = 16 * 1024

Order = Tuple[Tuple[Any, ...], memoryview]


class ReportWriter:
    """Reports, collected in shared memory until they are flushed; large ones go straight out."""

    def __init__(self, channel: socket.socket, cell: SharedPage, share: str) -> None:
        self._share = share
        self.filled = 0
        self.flushed_at = 0.0
        self._channel = channel
        self._memory = cell.outbox
        self._words = cell.words

    def report(self, numbers: Tuple[int, int, int, int], failure: Optional[Failure], parts: Sequence[Any], raw: bool = False) -> None:
        """``numbers``: sequence, wall_us, cpu_us, rss_kib. The payload is the packed parts or, if ``raw``, the parts themselves."""
        text = b"" if failure is None else json.dumps(failure).encode()
        head = b"" if raw else pack_head(parts)
        length = len(head)
        for part in parts:
            length += len(part)
        record = REPORT.pack(*numbers, len(text), length)
        if length > SHARE_BYTES and self._share and not raw and parts[0][: len(MARK)] != MARK:
            parts, head = [write_payload(self._share, [head, *parts])], b""
            length = len(parts[0])
            record = REPORT.pack(*numbers, len(text), length)
        size = len(record) + len(text) + length
        if size > SMALL_REPORT:
            self.flush()
            self._send_parts([record, text, head, *parts])
            return
        if self.filled + size > OUTBOX_BYTES:
            self.flush()
        end = self.filled + size
        self._memory[self.filled : end] = b"".join((record, text, head, *parts))
        self._words[OUTBOX_LENGTH] = self.filled = end

    def flush(self) -> None:
        if self.filled:
            self._channel.sendall(self._memory[: self.filled])
            self._words[OUTBOX_LENGTH] = self.filled = 0

    def _send_parts(self, parts: List[Any]) -> None:
        """Without joining: a large result is copied by the kernel only."""
        for part in join_small(parts, LARGE_BYTES):
            self._channel.sendall(part)


class OrderReader:
    """Orders, one by one. A body is valid until the next one is asked for; large bodies are received where they stay."""

    def __init__(self, channel: socket.socket, outbox: ReportWriter) -> None:
        self._channel = channel
        self._outbox = outbox
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._parked: Deque[Order] = deque()
        self._urgent: List[Order] = []

    def next(self) -> Optional[Order]:
        """The next order; None when the agent is gone."""
        if self._parked:
            return self._parked.popleft()
        while True:
            start = self._start
            if self._end - start >= ORDER.size:
                fields = ORDER.unpack_from(self._buffer, start)
                body = start + ORDER.size
                end = body + fields[6]
                if end <= self._end:
                    self._start = end
                    return fields, self._view[body:end]
                if fields[6] > LARGE_BYTES:
                    return self._receive_large(fields, body)
            self._outbox.flush()
            if not self._fill():
                return None

    def _fill(self) -> bool:
        if self._start:
            rest = self._end - self._start
            if rest:
                self._buffer[:rest] = self._buffer[self._start : self._end]
            self._start, self._end = 0, rest
        count = self._channel.recv_into(self._view[self._end :])
        self._end += count
        return count > 0

    def _receive_large(self, fields: Tuple[Any, ...], body: int) -> Optional[Order]:
        large = bytearray(fields[6])
        here = self._end - body
        view = memoryview(large)
        view[:here] = self._view[body : self._end]
        self._start = self._end = 0
        while here < len(large):
            count = self._channel.recv_into(view[here:])
            if count == 0:
                return None
            here += count
        return fields, view

    def look(self) -> bool:
        """Take in what has come while a task runs; tasks and specs wait for their turn. False when the agent is gone."""
        return self._fill() and self.sift()

    def sift(self) -> bool:
        """Tell apart what was taken in. False when the agent is gone."""
        while self._end - self._start >= ORDER.size:
            fields = ORDER.unpack_from(self._buffer, self._start)
            body = self._start + ORDER.size
            end = body + fields[6]
            if end <= self._end:
                order = (fields, memoryview(bytes(self._view[body:end])))
                self._start = end
            elif fields[6] > LARGE_BYTES:
                large = self._receive_large(fields, body)
                if large is None:
                    return False
                order = large
            else:
                break
            (self._parked if fields[0] in (SPEC, TASK) else self._urgent).append(order)
        return True

    def take_urgent(self) -> List[Order]:
        urgent, self._urgent = self._urgent, []
        return urgent
