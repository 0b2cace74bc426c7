"""The slot's side of its channel to the agent: reads orders and sends reports."""

from __future__ import annotations

import json
import socket
from collections import deque
from typing import Any, Deque, Iterator, Optional, Sequence, Tuple

from ...portable.failures import Failure
from ...portable.payload_format import pack_head
from ...portable.payload_reference import SHARE_BYTES, write_payload
from ...portable.wire.frames import join_small
from .shared_page import ORDER, REPORT, REPORT_BUFFER_BYTES, SPEC, TASK, UNFLUSHED_BYTES, UPLOAD_MARK, SharedPage

BUFFER_BYTES = 256 * 1024
LARGE_BYTES = 64 * 1024
MAX_SMALL_REPORT_BYTES = 16 * 1024

Order = Tuple[Tuple[Any, ...], memoryview]


class ReportWriter:
    """Collects reports in the shared page until they are flushed. Sends large reports at once."""

    def __init__(self, channel: socket.socket, page: SharedPage, share: str) -> None:
        self._share = share
        self.filled = 0
        self.flushed_at = 0.0
        self._channel = channel
        self._memory = page.report_buffer
        self._words32 = page.words32

    def report(self, numbers: Tuple[int, int, int, int], failure: Optional[Failure], parts: Sequence[Any], raw: bool = False) -> None:
        """Reports an attempt. ``numbers``: sequence, wall_us, cpu_us, rss_kib. ``parts`` are packed as a payload, or joined if ``raw``."""
        text = b"" if failure is None else json.dumps(failure).encode()
        head = b"" if raw else pack_head(parts)
        length = len(head)
        for part in parts:
            length += len(part)
        if length > SHARE_BYTES and self._share and not raw and parts[0][: len(UPLOAD_MARK)] != UPLOAD_MARK:
            parts, head = [write_payload(self._share, [head, *parts])], b""
            length = len(parts[0])
        record = REPORT.pack(*numbers, len(text), length)
        size = len(record) + len(text) + length
        if size > MAX_SMALL_REPORT_BYTES:
            self.flush()
            for part in join_small([record, text, head, *parts], LARGE_BYTES):  # large parts are not joined, so only the kernel copies them
                self._channel.sendall(part)
            return
        if self.filled + size > REPORT_BUFFER_BYTES:
            self.flush()
        end = self.filled + size
        self._memory[self.filled : end] = b"".join((record, text, head, *parts))
        self._words32[UNFLUSHED_BYTES] = self.filled = end

    def flush(self) -> None:
        if self.filled:
            self._channel.sendall(self._memory[: self.filled])
            self._words32[UNFLUSHED_BYTES] = self.filled = 0


class OrderReader:
    """Reads orders one by one. The body of an order is valid until the next order is requested. A large body gets its own buffer."""

    def __init__(self, channel: socket.socket, reports: ReportWriter) -> None:
        self._channel = channel
        self._reports = reports
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._waiting: Deque[Order] = deque()

    def next(self) -> Optional[Order]:
        """Returns the next order, or None when the agent is dead."""
        if self._waiting:
            return self._waiting.popleft()
        while True:
            order = self._take()
            if order is not None:
                return order
            self._reports.flush()
            if not self.receive():
                return None

    def _take(self) -> Optional[Order]:
        """Returns the next order if all of it has arrived, otherwise None. If a large order has arrived in part, waits for the rest."""
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
        return None

    def receive(self) -> bool:
        """Waits for bytes and receives them; returns False when the agent is dead."""
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

    def take_urgent(self) -> Iterator[Order]:
        """Yields the orders that have arrived, except tasks and specs, which wait until the running task has ended."""
        order = self._take()
        while order is not None:
            fields, body = order
            if fields[0] in (SPEC, TASK):
                owned = body if body.obj is not self._buffer else memoryview(bytes(body))
                self._waiting.append((fields, owned))
            else:
                yield order
            order = self._take()
