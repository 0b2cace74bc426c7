"""The serving end of a bulk connection: what is asked for comes from a shelf, what is sent goes there."""

from __future__ import annotations

import os
from typing import Any, Callable, List, Optional, Protocol, Tuple

from .file_locks import WriterBusy
from .incoming_content import DigestMismatch, IncomingContent, NoRoom
from .transfer_protocol import (
    AskElsewhere,
    AskLater,
    ConnectionCut,
    ContentAbsent,
    ContentReader,
    ProtocolViolation,
    TransferChannel,
    TransferRefused,
    is_count,
    is_digest,
    receive_content,
    send_content,
)

IDLE_S = 60.0
BUSY_S = 1.0

Tally = Callable[[str, str, int, int], None]
"""Told of every stretch that was moved: asker, digest, bytes out, bytes in."""


class ContentSource(Protocol):
    """Where contents are taken from and put. Called by many threads at once. ``asker`` is who asks, as it has proved."""

    def reading(self, asker: str, digest: str, size: int, insist: bool) -> ReadableContent:
        """Or Elsewhere, AskLater, Absent."""

    def incoming(self, asker: str, digest: str, size: int) -> Optional[IncomingContent]:
        """None: it is here, whole. Or NoRoom, WriterBusy, AskLater."""


class ReadableContent(ContentReader, Protocol):
    def close(self) -> None: ...


class FileReader:
    """A whole file, as it was when it was opened."""

    def __init__(self, path: str, size: int, blame: str = "user") -> None:
        """Absent, and whom to blame for it, if there is no such file of that size."""
        self.size = size
        self._path = path
        self._blame = blame
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise ContentAbsent("%s: %s" % (path, error.strerror), blame) from None
        self._stamp = self._look()
        if self._stamp[0] != size:
            self.close()
            raise ContentAbsent("%s has %d bytes, not %d" % (path, self._stamp[0], size), blame)

    def _look(self) -> Tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def fileno(self) -> int:
        return self._descriptor

    def available(self) -> int:
        return self.size

    def wait(self, offset: int, timeout_s: float) -> int:
        return self.size

    def check(self) -> None:
        if self._look() != self._stamp:
            raise ContentAbsent("%s was changed while it was read" % self._path, self._blame)

    def close(self) -> None:
        os.close(self._descriptor)


class PartialFileReader:
    """A content that somebody else brings at this moment."""

    def __init__(self, incoming: IncomingContent) -> None:
        """AskLater if nobody does any more: it is complete by now, or was given up."""
        descriptor = incoming.open_to_read()
        if descriptor is None:
            raise AskLater(BUSY_S)
        self.size = incoming.size
        self._descriptor = descriptor
        self._incoming = incoming
        self.available = incoming.available
        self.wait = incoming.wait

    def fileno(self) -> int:
        return self._descriptor

    def check(self) -> None:
        """Whoever gets it verifies it."""

    def close(self) -> None:
        os.close(self._descriptor)


def serve(channel: TransferChannel, shelf: ContentSource, asker: str = "", tally: Optional[Tally] = None) -> None:
    """Answer requests until the connection ends, or nothing is asked for a while. Raises Misbehaved if it had to be ended."""
    try:
        while True:
            answer(channel, shelf, asker, tally)
    except ProtocolViolation:
        raise
    except ConnectionCut:
        pass
    finally:
        channel.close()


def answer(channel: TransferChannel, shelf: ContentSource, asker: str, tally: Optional[Tally] = None) -> None:
    """Wait for one request and answer it. Cut or Misbehaved: the connection is to be closed."""
    request, body = channel.receive(IDLE_S)
    if body or not 3 <= len(request) <= 5 or not is_digest(request[1]) or not is_count(request[2]):
        raise ProtocolViolation("it asked %.200r" % (request,))
    kind, digest, size = request[:3]

    def moved(length: int) -> None:
        if tally is not None:
            tally(asker, digest, *((length, 0) if kind == "get" else (0, length)))

    if kind == "get" and len(request) == 5 and is_count(request[3], size) and isinstance(request[4], bool):
        try:
            _give(channel, shelf.reading(asker, digest, size, request[4]), request[3], moved)
        except TransferRefused as refusal:
            channel.send(_said(refusal))
        except OSError as error:
            channel.send(["absent", "it cannot be read: %s" % error, "site"])
    elif kind == "put" and len(request) == 3:
        _keep(channel, shelf, asker, (digest, size), moved)
    else:
        raise ProtocolViolation("it asked %.200r" % (request,))


def _give(channel: TransferChannel, reading: ReadableContent, offset: int, moved: Callable[[int], None]) -> None:
    try:
        send_content(channel, reading, offset, moved)
    finally:
        reading.close()


def _keep(channel: TransferChannel, shelf: ContentSource, asker: str, content: Tuple[str, int], moved: Callable[[int], None]) -> None:
    size = content[1]
    begun = False
    try:
        incoming = shelf.incoming(asker, *content)
        if incoming is None:
            channel.send(["from", size])
            channel.send(["kept"])
            return
        with incoming:
            begun = incoming.offset < size
            channel.send(["from", incoming.offset])
            if begun:
                said = receive_content(channel, size, incoming, moved)
                if said is not None:
                    raise ProtocolViolation("%.200r in the midst of a content" % (said,))
                begun = False
            incoming.finish()
        channel.send(["kept"])
    except DigestMismatch:
        channel.send(["damaged"])
    except (NoRoom, OSError) as error:
        channel.send(["full", str(error)])
        if begun:
            raise ConnectionCut("no room for what it sends: %s" % error) from None
    except WriterBusy:
        channel.send(["busy", BUSY_S])
    except AskLater as later:
        channel.send(_said(later))


def _said(refusal: TransferRefused) -> List[Any]:
    if isinstance(refusal, AskElsewhere):
        return ["elsewhere", refusal.contacts]
    if isinstance(refusal, AskLater):
        return ["busy", refusal.seconds]
    assert isinstance(refusal, ContentAbsent)
    return ["absent", refusal.reason, refusal.blame]


class ServedContent:
    """A content while somebody gets it from us."""

    def __init__(self, reading: ReadableContent, done: Callable[[], None]) -> None:
        self.size = reading.size
        self.fileno = reading.fileno
        self.available = reading.available
        self.wait = reading.wait
        self.check = reading.check
        self._reading = reading
        self._done = done

    def close(self) -> None:
        self._reading.close()
        self._done()
