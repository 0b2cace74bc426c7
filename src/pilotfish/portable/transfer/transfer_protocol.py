"""Sends and receives the pieces of a content over one connection. Requests and answers:

    ["get", digest, size, offset, no_redirect]   is answered by   ["piece", offset] + bytes, ["hole", offset, length], ..., ["end", size];
                                            or, at any time, by   ["elsewhere", contacts], ["busy", seconds], ["absent", reason, blame]
    ["put", digest, size]                   is answered by   ["from", offset]; or by   ["busy", seconds], ["full", reason]
    then pieces, holes and the end          are answered by   ["kept"], ["damaged"], ["full", reason]

Both sides use threads with blocking calls. Received messages are checked here. If one side violates the protocol, the other side closes the
connection (``ProtocolViolation``).
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Any, Callable, List, Optional, Sequence, Tuple

from ..wire.frames import PREFIX, FrameError, decode_header, frame_buffers
from ..wire.tls_stream import TlsStream
from .file_copy import extents
from .incoming_content import IncomingContent

PIECE_BYTES = 1024 * 1024
MAX_HEADER_BYTES = 32 * 1024
MAX_SIZE = 1 << 62
SMALL_BUFFER_BYTES = 64 * 1024
JOIN_BYTES = 256 * 1024
MIN_HOLE_BYTES = 64 * 1024
"""Minimum size of a hole. Shorter holes are sent as zeros, except at the end of the sent range."""
SILENCE_S = 60.0
"""Seconds of silence until the other side counts as dead."""
FOLLOW_S = 20.0
"""Seconds that a server waits for more bytes of a content that is still arriving. This must be less than ``SILENCE_S``."""

NOTHING = memoryview(b"")

Answer = Tuple[List[Any], memoryview]
OnProgress = Callable[[int], None]
"""Is called with the length of each extent that was sent or received."""


class ConnectionCut(Exception):
    """The connection is lost. The received part is kept, so that only the missing part must be requested again."""

    unfinished: Optional[Answer] = None
    """The received part of the unfinished frame."""


class ProtocolViolation(ConnectionCut):
    """The other side violated the protocol, and the connection was closed."""


class TransferRefused(Exception):
    """The other side answered, but sent no content. The connection can be used again. ``answer``: the other side's message."""

    answer: List[Any]


class AskElsewhere(TransferRefused):
    """The other side names peers that have the content. Ask one of them, or ask again with ``no_redirect``."""

    def __init__(self, contacts: Sequence[Any]) -> None:
        super().__init__("ask %d others" % len(contacts))
        self.contacts = list(contacts)
        self.answer = ["elsewhere", self.contacts]


class AskLater(TransferRefused):
    """The other side is busy. Ask again after ``seconds`` seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__("ask again in %g s" % seconds)
        self.seconds = seconds
        self.answer = ["busy", seconds]


class ContentAbsent(TransferRefused):
    """The content is not available. ``blame`` has the same values as in a failure: task, worker, site or user."""

    def __init__(self, reason: str, blame: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.blame = blame
        self.answer = ["absent", reason, blame]


class ContentReader:
    """An open content. A subclass can report that some bytes are missing, or that the bytes can no longer be trusted."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self.on_closed: Callable[[], None] = lambda: None
        """Called once, at the end of ``close``."""
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def available(self) -> int:
        return self.size

    def wait(self, offset: int, timeout_s: float) -> int:
        """Waits until one of three things happens: more than ``offset`` bytes are available, it is clear that no more bytes will come, or
        ``timeout_s`` seconds are over. Returns the number of available bytes."""
        return self.size

    def check(self) -> None:
        """Raises ContentAbsent if the bytes read can no longer be trusted."""

    def close(self) -> None:
        os.close(self._descriptor)
        self.on_closed()


class TransferChannel:
    """Sends and receives frames over a blocking connection, for one thread. The second ``receive`` after a body overwrites that body."""

    def __init__(self, connection: TlsStream, silence_s: float = SILENCE_S) -> None:
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
        """Cuts the connection. Any thread may call it. Threads that wait for the connection wake up."""
        try:
            with self._closing, socket.socket(fileno=os.dup(self.connection.fileno())) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # already closed

    def rest(self) -> None:
        """Frees the buffers of an idle connection."""
        self._pieces = [NOTHING, NOTHING]
        if self._start == self._end:
            self._small, self._start, self._end = NOTHING, 0, 0
        self.connection.rest()

    def pending(self) -> bool:
        """Returns True if a buffer contains received bytes. A selector watches only the socket and does not see these bytes."""
        return self._end > self._start or self.connection.pending()

    def piece(self) -> memoryview:
        """Returns a buffer for one piece. Two buffers take turns, so that a received piece stays valid while the next piece arrives."""
        self._pieces.reverse()
        if not self._pieces[0]:
            self._pieces[0] = memoryview(bytearray(PIECE_BYTES))
        return self._pieces[0]

    def send(self, header: Sequence[Any], parts: Sequence[Any] = ()) -> None:
        self._set_timeout(self.silence_s)
        try:
            for buffer in frame_buffers(header, parts):
                if len(buffer) <= JOIN_BYTES:
                    self.connection.sendall(buffer)
                    continue
                # Large buffers are sent in parts, because the time limit of a connection can apply to a whole call.
                view = memoryview(buffer)
                for start in range(0, len(view), JOIN_BYTES):
                    self.connection.sendall(view[start : start + JOIN_BYTES])
        except (OSError, ValueError) as error:
            raise ConnectionCut("sending failed: %s" % error) from None

    def receive(self, timeout_s: Optional[float] = None) -> Answer:
        self._set_timeout(self.silence_s if timeout_s is None else timeout_s)
        self._fill(PREFIX.size)
        header_length, body_length = PREFIX.unpack_from(self._small, self._start)
        if not 0 < header_length <= MAX_HEADER_BYTES or body_length > PIECE_BYTES:
            raise ProtocolViolation("a frame of %d + %d bytes was announced" % (header_length, body_length))
        self._start += PREFIX.size
        self._fill(header_length)
        try:
            header = decode_header(self._small[self._start : self._start + header_length])
        except FrameError as error:
            raise ProtocolViolation(str(error)) from None
        self._start += header_length
        if not body_length:
            return header, NOTHING
        body = self.piece()[:body_length]
        self._receive_body(header, body)
        return header, body

    def _set_timeout(self, timeout_s: float) -> None:
        if timeout_s != self._timeout_s:
            self._timeout_s = timeout_s
            try:
                self.connection.settimeout(timeout_s)
            except OSError as error:
                raise ConnectionCut(str(error)) from None

    def _fill(self, count: int) -> None:
        """Receives until the buffer for prefixes and headers has ``count`` bytes that are not read yet."""
        if not self._small:
            self._small = memoryview(bytearray(SMALL_BUFFER_BYTES))
        if self._start + count > SMALL_BUFFER_BYTES or self._start == self._end:
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

    def _receive_into(self, buffer: memoryview) -> int:
        try:
            count = self.connection.recv_into(buffer)
        except (OSError, ValueError) as error:
            raise ConnectionCut("receiving failed: %s" % error) from None
        if not count:
            raise ConnectionCut("the other side closed the connection")
        return count


def is_count(value: Any, limit: int = MAX_SIZE) -> bool:
    return type(value) is int and 0 <= value <= limit


# --- bytes of a content ---------------------------------------------------------------------------------------------------------------


def send_content(channel: TransferChannel, reading: ContentReader, offset: int, on_progress: OnProgress) -> None:
    """Sends a content from ``offset`` to its end. If the content is still arriving, waits for more bytes."""
    size = reading.size
    while offset < size:
        limit = min(reading.available(), size)
        if limit <= offset:
            limit = min(reading.wait(offset, FOLLOW_S), size)
            if limit <= offset:
                raise AskLater(1.0)
        for start, length, is_hole in extents(reading.fileno(), offset, limit, MIN_HOLE_BYTES):
            if is_hole:
                channel.send(["hole", start, length])
                on_progress(length)
            else:
                _send_data(channel, reading, start, start + length, on_progress)
        offset = limit
    reading.check()
    channel.send(["end", size])


def _send_data(channel: TransferChannel, reading: ContentReader, offset: int, end: int, on_progress: OnProgress) -> None:
    piece, descriptor = channel.piece(), reading.fileno()
    while offset < end:
        length = os.preadv(descriptor, [piece[: min(PIECE_BYTES, end - offset)]], offset)
        if not length:
            reading.check()
            raise ContentAbsent("it became shorter while it was read", "site")
        channel.send(["piece", offset], [piece[:length]])
        offset += length
        on_progress(length)


def receive_content(
    channel: TransferChannel, size: int, incoming: IncomingContent, on_progress: OnProgress, first_timeout_s: Optional[float] = None
) -> Optional[List[Any]]:
    """Receives the missing bytes of a content. Returns None after the last byte. If another message arrives instead of a part of the
    content, returns that message. ``first_timeout_s``: seconds until the first frame must arrive."""
    while True:
        try:
            header, body = channel.receive(first_timeout_s)
        except ConnectionCut as cut:
            if cut.unfinished is not None and cut.unfinished[0][0] == "piece" and cut.unfinished[1]:
                on_progress(_store(cut.unfinished, size, incoming))
            raise
        first_timeout_s = None
        if header[0] in ("piece", "hole"):
            on_progress(_store((header, body), size, incoming))
        elif header[0] == "end":
            if header[1:] != [size] or incoming.offset != size or body:
                raise ProtocolViolation("%.80r, where %d of %d were due" % (header, incoming.offset, size))
            return None
        else:
            return header


def _store(answer: Answer, size: int, incoming: IncomingContent) -> int:
    """Stores a piece or hole and returns its length. Raises ProtocolViolation if it does not begin at the expected offset."""
    header, body = answer
    offset, left = incoming.offset, size - incoming.offset
    if header[0] == "piece" and header[1:] == [offset] and 0 < len(body) <= left:
        incoming.write(body)
        return len(body)
    if header[0] == "hole" and len(header) == 3 and header[1] == offset and is_count(header[2], left) and header[2] and not body:
        incoming.skip(header[2])
        return int(header[2])
    raise ProtocolViolation("%.80r and %d bytes, where %d of %d were due" % (header, len(body), offset, size))
