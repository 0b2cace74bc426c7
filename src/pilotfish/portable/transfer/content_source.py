"""Answers a request for a content, or stores a content. A requested content is a complete file, or it is still arriving."""

from __future__ import annotations

import contextlib
import os
from typing import Callable, Optional, Protocol, Tuple

from .cache_directory import is_digest
from .file_locks import WriterBusy
from .incoming_content import DigestMismatch, IncomingContent, NoSpace
from .transfer_protocol import (
    AskLater,
    ConnectionCut,
    ContentAbsent,
    ContentReader,
    ProtocolViolation,
    TransferChannel,
    TransferRefused,
    is_count,
    receive_content,
    send_content,
)

IDLE_S = 60.0
BUSY_S = 1.0

CountBytes = Callable[[str, str, int, int], None]
"""A function that is called for each extent that was sent or received, with asker, digest, bytes sent and bytes received."""


class ContentSource(Protocol):
    """Opens and stores contents for a transfer server. Many threads call it. ``asker``: the authenticated name of the other side."""

    def reading(self, asker: str, digest: str, size: int, no_redirect: bool) -> ContentReader:
        """Opens a content. Raises AskElsewhere, AskLater or ContentAbsent."""

    def incoming(self, asker: str, digest: str, size: int) -> Optional[IncomingContent]:
        """Begins to store a content. Returns None if it is already complete. Raises NoSpace, WriterBusy or AskLater."""


class FileReader(ContentReader):
    """Reads a complete file."""

    def __init__(self, path: str, size: int, blame: str = "user") -> None:
        """Raises ContentAbsent with this blame if there is no file of this size at ``path``."""
        self._path = path
        self._blame = blame
        try:
            super().__init__(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), size)
        except OSError as error:
            raise ContentAbsent("%s: %s" % (path, error.strerror), blame) from None
        self._stamp = self._size_and_time()
        if self._stamp[0] != size:
            self.close()
            raise ContentAbsent("%s has %d bytes, not %d" % (path, self._stamp[0], size), blame)

    def _size_and_time(self) -> Tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def check(self) -> None:
        if self._size_and_time() != self._stamp:
            raise ContentAbsent("%s was changed while it was read" % self._path, self._blame)


class PartialFileReader(ContentReader):
    """Reads a content that is still arriving. The other side verifies it."""

    def __init__(self, incoming: IncomingContent) -> None:
        """Raises AskLater if the content is no longer arriving: it is complete now, or the writer has given up."""
        descriptor = incoming.open_to_read()
        if descriptor is None:
            raise AskLater(BUSY_S)
        super().__init__(descriptor, incoming.size)
        self._incoming = incoming

    def available(self) -> int:
        return self._incoming.offset

    def wait(self, offset: int, timeout_s: float) -> int:
        return self._incoming.wait(offset, timeout_s)


def answer(channel: TransferChannel, source: ContentSource, asker: str, count: CountBytes) -> None:
    """Waits for one request and answers the request. After ConnectionCut or ProtocolViolation, the caller must close the connection."""
    request, body = channel.receive(IDLE_S)
    if body or not 3 <= len(request) <= 5 or not is_digest(request[1]) or not is_count(request[2]):
        raise ProtocolViolation("it requested %.200r" % (request,))
    kind, digest, size = request[:3]

    def moved(length: int) -> None:
        count(asker, digest, *((length, 0) if kind == "get" else (0, length)))

    if kind == "get" and len(request) == 5 and is_count(request[3], size) and isinstance(request[4], bool):
        try:
            with contextlib.closing(source.reading(asker, digest, size, request[4])) as reading:
                send_content(channel, reading, request[3], moved)
        except TransferRefused as refusal:
            channel.send(refusal.answer)
        except OSError as error:
            channel.send(["absent", "it cannot be read: %s" % error, "site"])
    elif kind == "put" and len(request) == 3:
        _serve_put(channel, source, asker, (digest, size), moved)
    else:
        raise ProtocolViolation("it requested %.200r" % (request,))


def _serve_put(channel: TransferChannel, source: ContentSource, asker: str, content: Tuple[str, int], moved: Callable[[int], None]) -> None:
    size = content[1]
    expects_bytes = False
    try:
        incoming = source.incoming(asker, *content)
        if incoming is None:
            channel.send(["from", size])
            channel.send(["kept"])
            return
        with incoming:
            expects_bytes = incoming.offset < size
            channel.send(["from", incoming.offset])
            if expects_bytes:
                message = receive_content(channel, size, incoming, moved)
                if message is not None:
                    raise ProtocolViolation("%.200r in the midst of a content" % (message,))
                expects_bytes = False
            incoming.finish()
        channel.send(["kept"])
    except DigestMismatch:
        channel.send(["damaged"])
    except (NoSpace, OSError) as error:
        channel.send(["full", str(error)])
        if expects_bytes:
            raise ConnectionCut("no space for the content it sends: %s" % error) from None
    except WriterBusy:
        channel.send(["busy", BUSY_S])
    except AskLater as later:
        channel.send(later.answer)
