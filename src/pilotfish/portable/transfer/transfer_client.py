"""Fetches contents from a master or a peer, and uploads contents."""

from __future__ import annotations

import contextlib
import select
from typing import Any, Iterator, List, Optional, Type

from ..wire.frame_link import DIAL_TIMEOUT_S, connect
from ..wire.handshake import Credentials
from .content_source import FileReader
from .incoming_content import DigestMismatch, IncomingContent, NoSpace
from .transfer_protocol import (
    AskElsewhere,
    AskLater,
    ConnectionCut,
    ContentAbsent,
    OnProgress,
    ProtocolViolation,
    TransferChannel,
    TransferRefused,
    is_count,
    receive_content,
    send_content,
)

ANSWER_S = 600.0
"""Seconds until an answer must begin. The other side possibly serves other requests first, or writes received bytes to a disk."""
MAX_LATER_S = 3600.0


class UploadProgress:
    """Progress of an upload. Any thread may read it."""

    def __init__(self) -> None:
        self.offset = 0

    def grow(self, length: int) -> None:
        self.offset += length


def dial_transfer(credentials: Credentials, worker: str = "", timeout_s: float = DIAL_TIMEOUT_S) -> TransferChannel:
    """Opens a transfer connection to the master. Raises ConnectionCut, and the same exceptions as ``dial``."""
    channel = TransferChannel(connect(credentials, timeout_s).connection)
    with _closed_after_error(channel):
        channel.send(["bulk", worker])
    return channel


@contextlib.contextmanager
def _closed_after_error(channel: TransferChannel, *reusable: Type[Exception]) -> Iterator[None]:
    """Closes the connection if the block raises an exception that is not ``reusable``."""
    try:
        yield
    except reusable:
        raise
    except BaseException:
        channel.close()
        raise


def has_ended(channel: TransferChannel) -> bool:
    """Returns True if the other side closed an idle connection. An idle connection is readable only in this case."""
    ready = select.poll()
    ready.register(channel.fileno(), select.POLLIN)
    return bool(ready.poll(0))


def fetch(
    channel: TransferChannel,
    digest: str,
    size: int,
    incoming: IncomingContent,
    no_redirect: bool = False,
    on_progress: OnProgress = lambda length: None,
) -> str:
    """Fetches the missing bytes of a content. Returns the path of the content. Raises the same exceptions as ``receive_answer``."""
    send_request(channel, digest, size, incoming.offset, no_redirect)
    return receive_answer(channel, size, incoming, on_progress)


def send_request(channel: TransferChannel, digest: str, size: int, offset: int, no_redirect: bool = False) -> None:
    """Sends a request and does not wait for its answer. Answers come in the order of requests. Read each answer with ``receive_answer``."""
    with _closed_after_error(channel):
        channel.send(["get", digest, size, offset, no_redirect])


def receive_answer(channel: TransferChannel, size: int, incoming: IncomingContent, on_progress: OnProgress = lambda length: None) -> str:
    """Reads the answer to a request. Returns the path of the content.

    After AskElsewhere, AskLater, ContentAbsent and DigestMismatch, the connection can be used again. After ConnectionCut, ProtocolViolation
    and write errors (NoSpace, OSError), the connection is closed. ``incoming`` keeps the received part, except after DigestMismatch.
    """
    with _closed_after_error(channel, TransferRefused):
        message = receive_content(channel, size, incoming, on_progress, ANSWER_S)
        if message is not None:
            raise _refusal(message)
    return incoming.finish()


def push(channel: TransferChannel, digest: str, size: int, path: str, progress: Optional[UploadProgress] = None) -> None:
    """Uploads the file ``path``, which has this digest and size.

    After AskLater and DigestMismatch (the received bytes are not the content), the connection can be used again. After ConnectionCut,
    ProtocolViolation and NoSpace (at the receiver), the connection is closed. It is also closed if the file cannot be read (ContentAbsent,
    OSError).
    """
    progress = progress or UploadProgress()
    with contextlib.closing(FileReader(path, size)) as reading, _closed_after_error(channel, AskLater, DigestMismatch):
        channel.send(["put", digest, size])
        message = channel.receive(ANSWER_S)[0]
        if message[0] != "from":
            raise _refusal(message)
        if len(message) != 2 or not is_count(message[1], size):
            raise ProtocolViolation("%.80r, of a content of %d bytes" % (message, size))
        progress.offset = message[1]
        if progress.offset < size:
            _send(channel, reading, progress)
        message = channel.receive(ANSWER_S)[0]
        if message != ["kept"]:
            raise _refusal(message)


def _send(channel: TransferChannel, reading: FileReader, progress: UploadProgress) -> None:
    try:
        send_content(channel, reading, progress.offset, progress.grow)
    except ConnectionCut as cut:
        # Possibly, the other side sent a reason before it closed the connection.
        message = channel.receive()[0]
        raise _refusal(message) if message[0] == "full" else cut from None


def _refusal(message: List[Any]) -> Exception:
    kind, fields = message[0], message[1:]
    if kind == "elsewhere" and len(fields) == 1 and isinstance(fields[0], list):
        return AskElsewhere(fields[0])
    if kind == "busy" and len(fields) == 1 and isinstance(fields[0], (int, float)) and 0 <= fields[0] <= MAX_LATER_S:
        return AskLater(float(fields[0]))
    if kind == "absent" and len(fields) == 2 and isinstance(fields[0], str) and isinstance(fields[1], str):
        return ContentAbsent(fields[0], fields[1])
    if kind == "full" and len(fields) == 1 and isinstance(fields[0], str):
        return NoSpace(fields[0])
    if kind == "damaged" and not fields:
        return DigestMismatch("what came there is not the content")
    return ProtocolViolation("it sent %.200r" % (message,))
