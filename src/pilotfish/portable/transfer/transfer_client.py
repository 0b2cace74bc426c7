"""The asking end of a bulk connection: get contents from the master or a peer, put them there."""

from __future__ import annotations

import select
from typing import Any, List, Optional

from ..wire.frame_link import DIAL_TIMEOUT_S, connect
from ..wire.handshake import Credentials
from .content_source import FileReader
from .incoming_content import DigestMismatch, IncomingContent, NoRoom
from .transfer_protocol import (
    AskElsewhere,
    AskLater,
    ConnectionCut,
    ContentAbsent,
    Noted,
    ProtocolViolation,
    TransferChannel,
    TransferRefused,
    is_count,
    receive_content,
    send_content,
)

ANSWER_S = 600.0
"""So long we wait for the beginning of an answer: others may be served before us, and what we have sent may have to reach a disk."""
MOST_AHEAD = 64
"""So many requests may be sent before their answers are taken. With more, both sides could come to wait for each other."""
MOST_LATER_S = 3600.0


class UploadProgress:
    """How far a push is; any thread may look."""

    def __init__(self) -> None:
        self.offset = 0

    def grow(self, length: int) -> None:
        self.offset += length


def dial_bulk(credentials: Credentials, worker: str = "", timeout_s: float = DIAL_TIMEOUT_S) -> TransferChannel:
    """A connection to the master for contents. Raises what ``dial`` raises, and Cut."""
    channel = TransferChannel(connect(credentials, timeout_s).connection)
    try:
        channel.send(["bulk", worker])
    except ConnectionCut:
        channel.close()
        raise
    return channel


def has_ended(channel: TransferChannel) -> bool:
    """Nothing was asked, and yet there is something to be read: the other side hung up, because we had asked nothing for long."""
    ready = select.poll()
    ready.register(channel.fileno(), select.POLLIN)
    return bool(ready.poll(0))


def fetch(
    channel: TransferChannel, digest: str, size: int, incoming: IncomingContent, insist: bool = False, noted: Noted = lambda length: None
) -> str:
    """Get the rest of a content; where it lies now. Raises what ``take`` raises."""
    ask(channel, digest, size, incoming.offset, insist)
    return take(channel, size, incoming, noted)


def ask(channel: TransferChannel, digest: str, size: int, offset: int, insist: bool = False) -> None:
    """Only the request. Answers come in the order of the requests, and each is to be taken with ``take``."""
    try:
        channel.send(["get", digest, size, offset, insist])
    except ConnectionCut:
        channel.close()
        raise


def take(channel: TransferChannel, size: int, incoming: IncomingContent, noted: Noted = lambda length: None) -> str:
    """The answer to a request: where the content lies now.

    After Elsewhere, AskLater, Absent and Damaged the connection is as good as before. It is closed when it was Cut, the other side has
    Misbehaved, or we cannot write (NoRoom, OSError). ``incoming`` has what came, but for Damaged, which throws it away.
    """
    try:
        said = receive_content(channel, size, incoming, noted, ANSWER_S)
        if said is not None:
            raise _refusal(said)
    except TransferRefused:
        raise
    except BaseException:
        channel.close()
        raise
    return incoming.finish()


def push(channel: TransferChannel, digest: str, size: int, path: str, progress: Optional[UploadProgress] = None) -> None:
    """Have the other side keep this file, which is the content of that digest.

    After AskLater and Damaged (what came there is not the content) the connection is as good as before. It is closed when it was Cut, the
    other side has Misbehaved or has NoRoom, or the file cannot be read (Absent, OSError).
    """
    progress = progress or UploadProgress()
    reading = FileReader(path, size)
    try:
        channel.send(["put", digest, size])
        said = channel.receive(ANSWER_S)[0]
        if said[0] != "from":
            raise _refusal(said)
        if len(said) != 2 or not is_count(said[1], size):
            raise ProtocolViolation("%.80r, of a content of %d bytes" % (said, size))
        progress.offset = said[1]
        if progress.offset < size:
            _send(channel, reading, progress)
        said = channel.receive(ANSWER_S)[0]
        if said != ["kept"]:
            raise _refusal(said)
    except (AskLater, DigestMismatch):
        raise
    except BaseException:
        channel.close()
        raise
    finally:
        reading.close()


def _send(channel: TransferChannel, reading: FileReader, progress: UploadProgress) -> None:
    try:
        send_content(channel, reading, progress.offset, progress.grow)
    except ConnectionCut as cut:
        # Its reason may have come before it hung up.
        said = channel.receive()[0]
        raise _refusal(said) if said[0] == "full" else cut from None


def _refusal(said: List[Any]) -> Exception:
    """What an answer that is no content means."""
    kind, fields = said[0], said[1:]
    if kind == "elsewhere" and len(fields) == 1 and isinstance(fields[0], list):
        return AskElsewhere(fields[0])
    if kind == "busy" and len(fields) == 1 and isinstance(fields[0], (int, float)) and 0 <= fields[0] <= MOST_LATER_S:
        return AskLater(float(fields[0]))
    if kind == "absent" and len(fields) == 2 and isinstance(fields[0], str) and isinstance(fields[1], str):
        return ContentAbsent(fields[0], fields[1])
    if kind == "full" and len(fields) == 1 and isinstance(fields[0], str):
        return NoRoom(fields[0])
    if kind == "damaged" and not fields:
        return DigestMismatch("what came there is not the content")
    return ProtocolViolation("it said %.200r" % (said,))
