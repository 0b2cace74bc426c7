"""Contents on connections of their own: the frames, what may go wrong, and how bytes are sent and taken.

    ["get", digest, size, offset, insist]   is answered by   ["piece", offset] + bytes, ["hole", offset, length], ..., ["end", size];
                                            or, at any time, by   ["elsewhere", contacts], ["busy", seconds], ["absent", reason, blame]
    ["put", digest, size]                   is answered by   ["from", offset]; or by   ["busy", seconds], ["full", reason]
    then pieces, holes and the end          are answered by   ["kept"], ["damaged"], ["full", reason]

Both ends block, in threads. What the other side says is checked here; whoever breaks the rules loses the connection (``Misbehaved``).
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import threading
from typing import Any, Callable, Iterator, List, Optional, Protocol, Sequence, Tuple

from ..wire.frames import PREFIX, frame_buffers
from .incoming_content import IncomingContent

PIECE = 1024 * 1024
MOST_HEADER = 32 * 1024
MOST_SIZE = 1 << 62
SMALL_BUFFER = 64 * 1024
WRITE_AT_ONCE = 256 * 1024
SHORT_HOLE = 64 * 1024
"""Shorter ones are sent as zeros."""
SILENCE_S = 60.0
"""Whoever sends nothing, or takes nothing, for so long is taken for dead."""
FOLLOW_S = 20.0
"""So long a server waits for a content that comes in itself; shorter than its asker waits for a sign of life."""
_DIGEST = re.compile("[0-9a-f]{64}")

NOTHING = memoryview(b"")

Answer = Tuple[List[Any], memoryview]
Noted = Callable[[int], None]
"""Told of every stretch that was moved: its length."""


class ConnectionCut(Exception):
    """The connection is gone. What has come so far is kept; ask again from there."""

    unfinished: Optional[Answer] = None
    """The frame that was cut off, as far as it came."""


class ProtocolViolation(ConnectionCut):
    """The other side broke the rules of the protocol, and the connection was closed for it."""


class TransferRefused(Exception):
    """A server's whole answer that is no content. The connection is as good as before."""


class AskElsewhere(TransferRefused):
    """Ask one of these peers instead, or insist."""

    def __init__(self, contacts: Sequence[Any]) -> None:
        super().__init__("ask %d others" % len(contacts))
        self.contacts = list(contacts)


class AskLater(TransferRefused):
    """Not now; ask again after so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__("ask again in %g s" % seconds)
        self.seconds = seconds


class ContentAbsent(TransferRefused):
    """It is not to be had here. ``blame`` as in a failure: task, worker, site or user."""

    def __init__(self, reason: str, blame: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.blame = blame


class ByteStream(Protocol):
    """A proved connection that blocks: an SSLSocket, a Unix socket, or what the master has made of one of its links."""

    def sendall(self, data: Any, /) -> None: ...

    def recv_into(self, buffer: Any, /) -> int:
        """0 at the end."""

    def settimeout(self, seconds: Optional[float], /) -> None: ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class ContentReader(Protocol):
    """A content that can be read, though perhaps not all of it yet."""

    size: int

    def fileno(self) -> int: ...

    def available(self) -> int: ...

    def wait(self, offset: int, timeout_s: float) -> int:
        """Until more than this is available, or no more will be, or the time is up: what is available."""

    def check(self) -> None:
        """Absent if what was read can no longer be trusted."""


class TransferChannel:
    """Frames over a proved connection, for one thread. A body is valid until the ``receive`` after the next one."""

    def __init__(self, connection: ByteStream, silence_s: float = SILENCE_S) -> None:
        self.connection = connection
        self.silence_s = silence_s
        self._closing = threading.Lock()
        self._timeout_s = silence_s
        self._small = NOTHING
        self._start = 0
        self._end = 0
        self._pieces = [NOTHING, NOTHING]
        connection.settimeout(silence_s)

    def fileno(self) -> int:
        return self.connection.fileno()

    def close(self) -> None:
        with self._closing:
            self.connection.close()

    def abort(self) -> None:
        """Cut it, from any thread: whoever waits for the connection is woken."""
        try:
            with self._closing, socket.socket(fileno=os.dup(self.connection.fileno())) as double:
                double.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is gone already

    def rest(self) -> None:
        """Nothing is expected for a while: take no memory."""
        self._pieces = [NOTHING, NOTHING]
        if self._start == self._end:
            self._small, self._start, self._end = NOTHING, 0, 0
        rest = getattr(self.connection, "rest", None)
        if rest is not None:
            rest()

    def pending(self) -> bool:
        """Something has come that was not taken yet, and of which the descriptor does not tell."""
        pending = getattr(self.connection, "pending", None)
        return self._end > self._start or bool(pending is not None and pending())

    def piece(self) -> memoryview:
        """Room for one piece. There are two, in turn: what was received is left alone while the next one comes."""
        self._pieces.reverse()
        if not self._pieces[0]:
            self._pieces[0] = memoryview(bytearray(PIECE))
        return self._pieces[0]

    def send(self, header: Sequence[Any], parts: Sequence[Any] = ()) -> None:
        self._allow(self.silence_s)
        try:
            for buffer in frame_buffers(header, parts):
                if len(buffer) <= WRITE_AT_ONCE:
                    self.connection.sendall(buffer)
                    continue
                # In portions, because a connection may count the time for all that it is given at once.
                view = memoryview(buffer)
                for start in range(0, len(view), WRITE_AT_ONCE):
                    self.connection.sendall(view[start : start + WRITE_AT_ONCE])
        except (OSError, ValueError) as error:
            raise ConnectionCut("it takes nothing more: %s" % error) from None

    def receive(self, timeout_s: Optional[float] = None) -> Answer:
        self._allow(self.silence_s if timeout_s is None else timeout_s)
        self._fill(PREFIX.size)
        header_length, body_length = PREFIX.unpack_from(self._small, self._start)
        if not 0 < header_length <= MOST_HEADER or body_length > PIECE:
            raise ProtocolViolation("a frame of %d + %d bytes was announced" % (header_length, body_length))
        self._start += PREFIX.size
        self._fill(header_length)
        text = self._small[self._start : self._start + header_length]
        self._start += header_length
        header = _message(text)
        if not body_length:
            return header, NOTHING
        body = self.piece()[:body_length]
        self._receive_body(header, body)
        return header, body

    def _allow(self, timeout_s: float) -> None:
        if timeout_s != self._timeout_s:
            self._timeout_s = timeout_s
            try:
                self.connection.settimeout(timeout_s)
            except OSError as error:
                raise ConnectionCut(str(error)) from None

    def _fill(self, count: int) -> None:
        """Have so many bytes in the small buffer."""
        if not self._small:
            self._small = memoryview(bytearray(SMALL_BUFFER))
        if self._start + count > SMALL_BUFFER or self._start == self._end:
            rest = self._end - self._start
            self._small[:rest] = bytes(self._small[self._start : self._end])
            self._start, self._end = 0, rest
        while self._end - self._start < count:
            self._end += self._receive_into(self._small[self._end :])

    def _receive_body(self, header: List[Any], body: memoryview) -> None:
        here = min(len(body), self._end - self._start)
        body[:here] = self._small[self._start : self._start + here]
        self._start += here
        try:
            while here < len(body):
                here += self._receive_into(body[here:])
        except ConnectionCut as cut:
            cut.unfinished = header, body[:here]
            raise

    def _receive_into(self, room: memoryview) -> int:
        try:
            count = self.connection.recv_into(room)
        except (OSError, ValueError) as error:
            raise ConnectionCut("nothing more comes: %s" % error) from None
        if not count:
            raise ConnectionCut("the other side hung up")
        return count


def _message(text: memoryview) -> List[Any]:
    try:
        header = json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise ProtocolViolation("a header that is no JSON: %s" % error) from None
    if not isinstance(header, list) or not header or not isinstance(header[0], str):
        raise ProtocolViolation("a header that is no message")
    return header


def is_count(value: Any, most: int = MOST_SIZE) -> bool:
    return type(value) is int and 0 <= value <= most


def is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


# --- bytes of a content ---------------------------------------------------------------------------------------------------------------


def send_content(channel: TransferChannel, reading: ContentReader, offset: int, noted: Noted) -> None:
    """The rest of a content from the offset on, then its end; follows one that still grows."""
    size = reading.size
    while offset < size:
        limit = min(reading.available(), size)
        if limit <= offset:
            limit = min(reading.wait(offset, FOLLOW_S), size)
            if limit <= offset:
                raise AskLater(1.0)
        for start, length, is_hole in stretches(reading.fileno(), offset, limit):
            if is_hole:
                channel.send(["hole", start, length])
                noted(length)
            else:
                _send_data(channel, reading, start, start + length, noted)
        offset = limit
    reading.check()
    channel.send(["end", size])


def _send_data(channel: TransferChannel, reading: ContentReader, offset: int, end: int, noted: Noted) -> None:
    piece, descriptor = channel.piece(), reading.fileno()
    while offset < end:
        length = os.preadv(descriptor, [piece[: min(PIECE, end - offset)]], offset)
        if not length:
            reading.check()
            raise ContentAbsent("it became shorter while it was read", "site")
        channel.send(["piece", offset], [piece[:length]])
        offset += length
        noted(length)


def stretches(descriptor: int, offset: int, limit: int) -> Iterator[Tuple[int, int, bool]]:
    """(offset, length, whether it is a hole) of all that lies between the two."""
    while offset < limit:
        data = _seek(descriptor, offset, limit, os.SEEK_DATA)
        if data - offset >= SHORT_HOLE or data == limit:
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
        return offset if whence == os.SEEK_DATA else limit  # holes are not known there


def receive_content(
    channel: TransferChannel, size: int, incoming: IncomingContent, noted: Noted, patience_s: Optional[float] = None
) -> Optional[List[Any]]:
    """Take the rest of a content. None when its end was announced; otherwise what was said instead, for the caller to understand.

    ``patience_s``: how long the beginning may take."""
    while True:
        try:
            header, body = channel.receive(patience_s)
        except ConnectionCut as cut:
            if cut.unfinished is not None and cut.unfinished[0][0] == "piece" and cut.unfinished[1]:
                noted(_store(cut.unfinished, size, incoming))
            raise
        patience_s = None
        if header[0] in ("piece", "hole"):
            noted(_store((header, body), size, incoming))
        elif header[0] == "end":
            if header[1:] != [size] or incoming.offset != size or body:
                raise ProtocolViolation("%.80r, where %d of %d were due" % (header, incoming.offset, size))
            return None
        else:
            return header


def _store(answer: Answer, size: int, incoming: IncomingContent) -> int:
    """A piece or a hole, if it is what comes next; its length."""
    header, body = answer
    offset, left = incoming.offset, size - incoming.offset
    if header[0] == "piece" and header[1:] == [offset] and 0 < len(body) <= left:
        incoming.write(body)
        return len(body)
    if header[0] == "hole" and len(header) == 3 and header[1] == offset and is_count(header[2], left) and header[2] and not body:
        incoming.skip(header[2])
        return int(header[2])
    raise ProtocolViolation("%.80r and %d bytes, where %d of %d were due" % (header, len(body), offset, size))
