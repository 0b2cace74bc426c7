"""Tests the transfer protocol with two threads and a pair of sockets."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.portable.transfer import content_source, transfer_protocol
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.content_source import answer
from pilotfish.portable.transfer.file_copy import extents
from pilotfish.portable.transfer.incoming_content import DigestMismatch, NoSpace
from pilotfish.portable.transfer.transfer_client import UploadProgress, fetch, push, receive_answer, send_request
from pilotfish.portable.transfer.transfer_protocol import (
    AskElsewhere,
    AskLater,
    ConnectionCut,
    ContentAbsent,
    ProtocolViolation,
    TransferChannel,
)
from pilotfish.portable.wire.tls_stream import TlsStream
from tests.support.scripted_master import eventually
from tests.support.transfer_stage import MOST_BYTES, Files, digest_of, random_bytes, sparse_file

MIB = 1024 * 1024
DIGEST = "ab" * 32
MAX_PIPELINED = 64
"""Maximum requests sent before their answers are read. With more, both sides could wait for each other."""


class Scene:
    """A server in a thread, and the client end of a connection to it."""

    def __init__(self, directory: Path) -> None:
        (directory / "source").mkdir()
        self.source = Files(directory / "source")
        self.cache = ContentCache(str(directory / "node"), MOST_BYTES)
        self.moved: list[tuple[str, str, int, int]] = []
        self.ended: list[BaseException | None] = []
        self.threads: list[threading.Thread] = []
        self.channel = self.connect()

    def connect(self, silence_s: float = transfer_protocol.SILENCE_S) -> TransferChannel:
        ours, theirs = socket.socketpair()
        self.threads.append(threading.Thread(target=self._serve, args=(TransferChannel(TlsStream(theirs, None), silence_s),), daemon=True))
        self.threads[-1].start()
        return TransferChannel(TlsStream(ours, None))

    def _serve(self, channel: TransferChannel) -> None:
        """Answer requests until the connection ends or is idle for long."""
        try:
            while True:
                answer(channel, self.source, "me", lambda *moved: self.moved.append(moved))
        except ProtocolViolation as problem:
            channel.close()
            self.ended.append(problem)
        except ConnectionCut:
            channel.close()
            self.ended.append(None)

    def get(self, digest: str, size: int, no_redirect: bool = False) -> bytes:
        return Path(fetch(self.channel, digest, size, self.cache.incoming(digest, size), no_redirect)).read_bytes()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.channel.close()
    for thread in made.threads:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("length", [0, 1, 65535, MIB, MIB + 1, 9 * MIB + 17])
def test_a_fetched_content_is_identical(scene: Scene, length: int) -> None:
    data = random_bytes(length, length)
    digest = scene.source.add(data)
    assert scene.get(digest, length) == data
    assert sum(out for _, _, out, _ in scene.moved) == length


@pytest.mark.parametrize("length", [0, 1, 65535, MIB, MIB + 1, 9 * MIB + 17])
def test_an_uploaded_content_is_identical(scene: Scene, tmp_path: Path, length: int) -> None:
    data = random_bytes(length, length)
    (tmp_path / "made").write_bytes(data)
    progress = UploadProgress()
    push(scene.channel, digest_of(data), length, str(tmp_path / "made"), progress)
    assert Path(scene.source.cache.verified_path(digest_of(data), length) or "").read_bytes() == data
    assert progress.offset == length
    scene.moved.clear()
    push(scene.channel, digest_of(data), length, str(tmp_path / "made"), progress)
    assert not scene.moved, "it was there already"


def test_a_transfer_resumes_where_the_last_one_stopped(scene: Scene) -> None:
    data = random_bytes(1, 5 * MIB)
    digest = scene.source.add(data)
    with scene.cache.incoming(digest, len(data)) as incoming:
        incoming.write(data[: 2 * MIB + 5])
    assert scene.get(digest, len(data)) == data
    assert sum(out for _, _, out, _ in scene.moved) == 3 * MIB - 5


def test_holes_are_not_sent_and_stay_holes(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 64 * MIB
    data = sparse_file(tmp_path / "sparse", size, {3 * MIB: b"island", 40 * MIB + 4096: random_bytes(2, 2 * MIB)})
    digest = digest_of(data)
    scene.source.paths[digest] = tmp_path / "sparse"
    sent: list[int] = []
    taken = scene.channel.connection.recv_into

    def counting(room: memoryview) -> int:
        sent.append(taken(room))
        return sent[-1]

    monkeypatch.setattr(scene.channel.connection, "recv_into", counting)
    incoming = scene.cache.incoming(digest, size)
    path = Path(fetch(scene.channel, digest, size, incoming))
    assert path.read_bytes() == data
    assert path.stat().st_blocks * 512 < 4 * MIB
    assert sum(sent) < 4 * MIB


def test_two_hundred_small_requests_are_pipelined(scene: Scene) -> None:
    contents = [random_bytes(number, 1000 + number) for number in range(200)]
    wanted = deque((scene.source.add(data), data) for data in contents)
    asked: deque[tuple[Any, bytes]] = deque()
    while wanted or asked:
        while wanted and len(asked) < MAX_PIPELINED:
            digest, data = wanted.popleft()
            incoming = scene.cache.incoming(digest, len(data))
            send_request(scene.channel, digest, len(data), incoming.offset)
            asked.append((incoming, data))
        incoming, data = asked.popleft()
        assert Path(receive_answer(scene.channel, len(data), incoming)).read_bytes() == data


def test_a_growing_content_is_streamed(scene: Scene) -> None:
    data = random_bytes(3, 6 * MIB)
    digest = digest_of(data)
    arriving = scene.source.cache.incoming(digest, len(data))
    incoming = scene.cache.incoming(digest, len(data))
    got: list[str] = []
    taker = threading.Thread(target=lambda: got.append(fetch(scene.channel, digest, len(data), incoming)))
    taker.start()
    for start in range(0, len(data), MIB):
        arriving.write(data[start : start + MIB])
        end = start + MIB
        eventually(lambda: incoming.offset == end, "it does not follow")  # noqa: B023
    arriving.finish()
    taker.join(30)
    assert Path(got[0]).read_bytes() == data


def test_a_content_that_stops_growing_is_requested_later(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_protocol, "FOLLOW_S", 0.01)
    data = random_bytes(4, 3 * MIB)
    digest = digest_of(data)
    arriving = scene.source.cache.incoming(digest, len(data))
    arriving.write(data[:MIB])
    incoming = scene.cache.incoming(digest, len(data))
    with pytest.raises(AskLater):
        fetch(scene.channel, digest, len(data), incoming)
    assert incoming.offset == MIB
    arriving.write(data[MIB:])
    assert Path(fetch(scene.channel, digest, len(data), incoming)).read_bytes() == data, "the connection is as good as before"


def test_refusals_leave_the_connection_usable(scene: Scene) -> None:
    data = random_bytes(5, 100)
    digest = scene.source.add(data)
    for refusal in (AskElsewhere([["10.0.0.1", 7]]), AskLater(2.5), ContentAbsent("it was removed", "user")):
        scene.source.refusal = refusal
        with scene.cache.incoming(digest, 100) as incoming, pytest.raises(type(refusal)) as told:
            fetch(scene.channel, digest, 100, incoming)
        assert vars(told.value) == vars(refusal)
    assert scene.get(digest, 100, no_redirect=True) == data


def test_an_unknown_content_is_absent(scene: Scene) -> None:
    with pytest.raises(ContentAbsent, match="nobody has it"):
        scene.get(DIGEST, 5)


def test_a_file_of_another_size_is_absent(scene: Scene) -> None:
    digest = scene.source.add(b"12345")
    with pytest.raises(ContentAbsent, match="5 bytes, not 6") as told:
        scene.get(digest, 6)
    assert told.value.blame == "user"


def test_a_file_that_changes_while_it_is_read_is_absent(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_bytes(6, 3 * MIB)
    digest = scene.source.add(data)

    class Changing(content_source.FileReader):
        def check(self) -> None:
            scene.source.paths[digest].write_bytes(b"other")
            super().check()

    monkeypatch.setattr("tests.support.transfer_stage.FileReader", Changing)
    with pytest.raises(ContentAbsent, match="changed while it was read"):
        scene.get(digest, len(data))


def test_wrong_bytes_are_discarded(scene: Scene, tmp_path: Path) -> None:
    scene.source.paths[DIGEST] = tmp_path / "wrong"
    (tmp_path / "wrong").write_bytes(b"wrong")
    for _ in range(2):
        incoming = scene.cache.incoming(DIGEST, 5)
        assert incoming.offset == 0
        with pytest.raises(DigestMismatch):
            fetch(scene.channel, DIGEST, 5, incoming)
    with pytest.raises(DigestMismatch):
        push(scene.channel, DIGEST, 5, str(tmp_path / "wrong"))
    assert not scene.source.cache.has(DIGEST, 5)
    data = random_bytes(7, 10)
    assert scene.get(scene.source.add(data), 10) == data, "the connection is as good as before"


def test_a_full_disk_at_the_other_side_is_reported_during_a_push(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, buffer: Any) -> None:
        raise NoSpace("the disk is full")

    monkeypatch.setattr("pilotfish.portable.transfer.incoming_content.IncomingContent.write", full)
    (tmp_path / "made").write_bytes(bytes(range(256)) * 4 * 4096 * 8)
    with pytest.raises(NoSpace, match="the disk is full"):
        push(scene.channel, DIGEST, 32 * MIB, str(tmp_path / "made"))


def test_a_full_local_disk_keeps_the_received_part(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_bytes(8, 9 * MIB)
    digest = scene.source.add(data)
    incoming = scene.cache.incoming(digest, len(data))
    write = incoming.write

    def full(buffer: Any) -> None:
        if incoming.offset == 5 * MIB:
            raise NoSpace("the disk is full")
        write(buffer)

    incoming.write = full  # type: ignore[method-assign]
    with pytest.raises(NoSpace):
        fetch(scene.channel, digest, len(data), incoming)
    incoming.close()
    scene.channel = scene.connect()
    assert scene.cache.incoming(digest, len(data)).offset == 5 * MIB


# --- protocol violations -------------------------------------------------------------------------------------------------------------


def framed(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("!II", len(text), len(body)) + text + body


LIES = [
    framed(["piece", 1], b"x"),
    framed(["piece", 0], b""),
    framed(["piece", 0], b"x" * 11),
    framed(["piece", 0], b"x" * 5) + framed(["piece", 4], b"x"),
    framed(["piece", 0, 0], b"x"),
    framed(["piece", "0"], b"x"),
    framed(["hole", 0, 11]),
    framed(["hole", 0, 0]),
    framed(["hole", 0, -1]),
    framed(["hole", 0, True]),
    framed(["hole", 0]),
    framed(["end", 10]),
    framed(["piece", 0], b"x" * 10) + framed(["end", 11]),
    framed(["piece", 0], b"x" * 10) + framed(["piece", 10], b"x"),
    framed(["busy", -1]),
    framed(["busy", "soon"]),
    framed(["elsewhere", 5]),
    framed(["absent", 5, 6]),
    framed(["welcome"]),
    framed([]),
    framed({}),
    framed(b"\xff\xff"),
    framed(b"[" * 30000),
    struct.pack("!II", 40 * 1024, 0),
    struct.pack("!II", 0, 0),
    struct.pack("!II", 20, MIB + 1),
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: repr(lie[8:40]))
def test_a_server_that_violates_the_protocol_loses_the_connection(tmp_path: Path, lie: bytes) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(lie)
    channel = TransferChannel(TlsStream(ours, None))
    incoming = ContentCache(str(tmp_path), MOST_BYTES).incoming(DIGEST, 10)
    with theirs, pytest.raises(ProtocolViolation):
        fetch(channel, DIGEST, 10, incoming)
    assert channel.fileno() == -1
    assert incoming.offset <= 10


@pytest.mark.parametrize(
    "lie", [framed(["from", 11]), framed(["from", -1]), framed(["from"]), framed(["kept"]), framed(["from", 10]) + framed(["end", 1])]
)
def test_an_upload_server_that_violates_the_protocol_loses_the_connection(tmp_path: Path, lie: bytes) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(lie)
    (tmp_path / "made").write_bytes(b"x" * 10)
    with theirs, pytest.raises(ProtocolViolation):
        push(TransferChannel(TlsStream(ours, None)), DIGEST, 10, str(tmp_path / "made"))
    assert ours.fileno() == -1


@pytest.mark.parametrize(
    "request_",
    [
        ["get", DIGEST, 5, 6, False],
        ["get", DIGEST, -1, 0, False],
        ["get", DIGEST, 5, 0],
        ["get", DIGEST, 5, 0, 1],
        ["get", "../../etc/passwd", 5, 0, False],
        ["get", DIGEST.upper(), 5, 0, False],
        ["get", DIGEST, 1 << 63, 0, False],
        ["get", DIGEST, True, 0, False],
        ["put", DIGEST, 5, 0],
        ["put", DIGEST],
        ["hello", "w"],
        ["bulk"],
    ],
    ids=repr,
)
def test_a_client_with_a_malformed_request_loses_the_connection(scene: Scene, request_: list[Any]) -> None:
    scene.channel.send(request_)
    with pytest.raises(ConnectionCut):
        scene.channel.receive()
    eventually(lambda: scene.ended)
    assert isinstance(scene.ended[0], ProtocolViolation)


def test_a_client_that_uploads_more_than_announced_loses_the_connection(scene: Scene) -> None:
    scene.channel.send(["put", DIGEST, 10])
    assert scene.channel.receive()[0] == ["from", 0]
    scene.channel.send(["piece", 0], [b"x" * 11])
    with pytest.raises(ConnectionCut):
        scene.channel.receive()
    eventually(lambda: scene.ended)
    assert isinstance(scene.ended[0], ProtocolViolation)


def test_a_client_that_reads_nothing_is_dropped_and_others_are_served(scene: Scene) -> None:
    data = random_bytes(9, 8 * MIB)
    digest = scene.source.add(data)
    lazy = scene.connect(silence_s=0.2)
    send_request(lazy, digest, len(data), 0)
    assert scene.get(digest, len(data)) == data
    eventually(lambda: scene.ended, "it was waited for")
    lazy.close()


def test_a_transfer_can_be_ended_from_another_thread(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    channel = TransferChannel(TlsStream(ours, None))
    incoming = ContentCache(str(tmp_path), MOST_BYTES).incoming(DIGEST, 10 * MIB)
    problems: list[Exception] = []

    def fetching() -> None:
        try:
            fetch(channel, DIGEST, 10 * MIB, incoming)
        except ConnectionCut as cut:
            problems.append(cut)

    thread = threading.Thread(target=fetching)
    thread.start()
    theirs.sendall(framed(["piece", 0], b"x" * MIB))
    eventually(lambda: incoming.offset == MIB)
    channel.abort()
    thread.join(30)
    assert problems and incoming.offset == MIB
    channel.abort()
    theirs.close()


def test_extents_cover_a_file_once(tmp_path: Path) -> None:
    size = 3 * MIB
    sparse_file(tmp_path / "sparse", size, {MIB: b"x" * 5000, 2 * MIB: b"y" * MIB})
    with open(tmp_path / "sparse", "rb") as file:
        found = list(extents(file.fileno(), 100, size, transfer_protocol.MIN_HOLE_BYTES))
    end = 100
    for start, length, _ in found:
        assert start == end and length > 0
        end += length
    assert end == size
    assert [is_hole for _, _, is_hole in found] == [True, False, True, False]
