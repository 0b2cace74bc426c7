"""Tests transfers through a master's real listener: TLS and Unix sockets, cuts, slow readers, and heartbeats beside them."""

from __future__ import annotations

import json
import random
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.content_source import FileReader
from pilotfish.portable.transfer.transfer_client import dial_transfer, fetch, push, receive_answer, send_request
from pilotfish.portable.transfer.transfer_protocol import ConnectionCut, TransferChannel
from pilotfish.portable.wire.frame_link import FrameLink, LinkLost, dial
from tests.support.scripted_master import eventually
from tests.support.transfer_stage import KEY_ID, MOST_BYTES, Files, Scissors, TransferEndpoint, digest_of, open_endpoint, random_bytes

MIB = 1024 * 1024
PATIENCE_S = 120.0


@pytest.fixture
def source(tmp_path: Path) -> Files:
    (tmp_path / "shelf").mkdir()
    return Files(tmp_path / "shelf")


@pytest.fixture
def endpoint(tmp_path: Path, source: Files) -> Iterator[TransferEndpoint]:
    (tmp_path / "door").mkdir()
    with open_endpoint(tmp_path / "door", source) as opened:
        yield opened


@pytest.fixture
def cache(tmp_path: Path) -> ContentCache:
    return ContentCache(str(tmp_path / "node"), MOST_BYTES)


@pytest.fixture
def scissors(endpoint: TransferEndpoint) -> Iterator[Scissors]:
    made = Scissors(endpoint.address["port"])
    yield made
    made.close()


def framed(header: list[Any]) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("!II", len(text), 0) + text


def in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# --- repeated cuts -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_get_that_is_cut_anywhere_goes_on_until_it_is_intact(
    endpoint: TransferEndpoint, source: Files, cache: ContentCache, scissors: Scissors, seed: int
) -> None:
    chance = random.Random(seed)
    data = random_bytes(seed, 7 * MIB + 13)
    digest = source.add(data)
    offsets: list[int] = []
    place = ""
    while not place:
        scissors.allowance = chance.randrange(1000, 1000 + (len(offsets) + 1) * 100_000)
        with cache.incoming(digest, len(data)) as incoming:
            offsets.append(incoming.offset)
            try:
                place = fetch(endpoint.dial(port=scissors.port), digest, len(data), incoming)
            except (LinkLost, ConnectionCut):
                continue
    assert Path(place).read_bytes() == data
    assert offsets == sorted(offsets) and len(set(offsets)) > 5, "it was cut, and went on"
    assert any(offset % MIB for offset in offsets), "parts of pieces are kept, too"


@pytest.mark.parametrize("seed", range(4))
def test_a_put_that_is_cut_anywhere_goes_on_until_it_is_kept(
    endpoint: TransferEndpoint, source: Files, scissors: Scissors, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    data = random_bytes(seed, 7 * MIB + 13)
    digest = digest_of(data)
    (tmp_path / "made").write_bytes(data)
    tries = 0
    while not source.cache.has(digest, len(data)):
        tries += 1
        # Data of the interrupted transfer may still be on its way to disk; until then a new one is told to retry.
        eventually(lambda: source.cache.arriving(digest) is None)
        scissors.allowance = chance.randrange(1000, 1000 + tries * 100_000)
        try:
            push(endpoint.dial(port=scissors.port), digest, len(data), str(tmp_path / "made"))
        except (LinkLost, ConnectionCut):
            continue
    assert tries > 5
    assert Path(source.cache.verified_path(digest, len(data)) or "").read_bytes() == data
    eventually(lambda: endpoint.server.received[digest] == len(data), "nothing was taken twice")


# --- the hand-over -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "unix"])
@pytest.mark.parametrize("first", [1, 20, 100, 250])
def test_nothing_that_was_sent_ahead_is_lost(tmp_path: Path, source: Files, cache: ContentCache, tls: bool, first: int) -> None:
    contents = [random_bytes(number, 100_000) for number in range(3)]
    digests = [source.add(data) for data in contents]
    (tmp_path / "door").mkdir()
    with open_endpoint(tmp_path / "door", source, tls=tls) as endpoint:
        connection = dial(endpoint.credentials()).connection
        channel = TransferChannel(connection)
        ahead = framed(["bulk"]) + b"".join(framed(["get", digest, 100_000, 0, False]) for digest in digests)
        connection.sendall(ahead[:first])
        connection.sendall(ahead[first:])
        for digest, data in zip(digests, contents, strict=True):
            assert Path(receive_answer(channel, len(data), cache.incoming(digest, len(data)))).read_bytes() == data
        assert endpoint.closed == 0 and not endpoint.doorman.unauthenticated and not endpoint.heard
        eventually(lambda: endpoint.server.sent_to[KEY_ID] == 300_000)
        channel.close()


def test_a_connection_on_which_nothing_is_asked_takes_no_memory(endpoint: TransferEndpoint, source: Files, cache: ContentCache) -> None:
    data = random_bytes(1, MIB)
    channel = endpoint.dial()
    send_request(channel, source.add(data), len(data), 0)
    while channel.receive()[0] != ["end", MIB]:
        pass
    (visitor,) = eventually(lambda: list(endpoint.server._idle.values()))
    theirs: Any = visitor.channel
    assert not any(len(buffer) for buffer in (*theirs._pieces, theirs._small, theirs.connection._room))
    channel.close()


def test_the_stream_goes_on_without_a_word_of_tls(endpoint: TransferEndpoint, source: Files, cache: ContentCache) -> None:
    data = random_bytes(1, MIB)
    digest = source.add(data)
    channel = endpoint.dial()
    for _ in range(3):
        send_request(channel, digest, len(data), MIB - 10)
        assert channel.receive()[0] == ["piece", MIB - 10]
        assert channel.receive()[0] == ["end", MIB]
    channel.close()


def test_an_agent_after_hello_gets_no_bulk_connection(endpoint: TransferEndpoint) -> None:
    link = dial(endpoint.credentials())
    link.connection.settimeout(PATIENCE_S)
    link.connection.sendall(framed(["beat", []]) + framed(["bulk"]))
    assert hangs_up(link)
    eventually(lambda: endpoint.closed == 1)
    assert "unexpected connection for contents" in endpoint.problems[0]


def test_a_master_without_a_transfer_server_refuses_transfers(endpoint: TransferEndpoint) -> None:
    endpoint.doorman.transfer_server = None
    link = dial(endpoint.credentials())
    link.connection.settimeout(PATIENCE_S)
    link.connection.sendall(framed(["bulk"]))
    assert hangs_up(link)


def test_an_unauthenticated_peer_gets_no_bulk_connection(endpoint: TransferEndpoint) -> None:
    class Stranger:
        key_id, key, endpoints = KEY_ID, b"wrong", [endpoint.address]

    with pytest.raises(Exception, match="wrong or revoked key"):
        dial(Stranger())  # type: ignore[arg-type]
    assert not endpoint.server.sent_to


def test_a_pilots_key_asks_for_workers_of_that_pilot_only(
    endpoint: TransferEndpoint, source: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    askers: list[str] = []
    monkeypatch.setattr(source, "incoming", lambda asker, digest, size: askers.append(asker))
    endpoint.doorman.pilot_of = {"its": "test", "anothers": "other", "by hand": ""}.get
    for worker in ("its", "unknown", "", "anothers", "by hand"):
        channel = dial_transfer(endpoint.credentials(), worker)
        channel.send(["put", digest_of(b""), 0])
        if worker in ("anothers", "by hand"):
            with pytest.raises(ConnectionCut):
                channel.receive()
        else:
            assert channel.receive()[0] == ["from", 0]
        channel.close()
    assert askers == ["its", KEY_ID, KEY_ID]
    assert any("worker anothers is of pilot other" in text for text in endpoint.problems)


@pytest.mark.parametrize("call", [dial, dial_transfer])
def test_an_error_without_a_master_names_the_endpoints_tried(endpoint: TransferEndpoint, call: Any) -> None:
    with pytest.raises(LinkLost, match=r"127\.0\.0\.1:1: .*refused"):
        call(endpoint.credentials(port=1))
    with pytest.raises(LinkLost, match="unknown kind 'pigeon'"):
        call(endpoint.credentials(kind="pigeon"))
    with pytest.raises(LinkLost, match="its certificate is not the one we know"):
        call(endpoint.credentials(fingerprint="0" * 64))


def hangs_up(link: FrameLink) -> bool:
    try:
        while link.connection.recv_into(bytearray(1000)):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    link.close()
    return True


# --- many at once --------------------------------------------------------------------------------------------------------------------


def test_one_that_reads_slowly_does_not_hold_up_another(endpoint: TransferEndpoint, source: Files, cache: ContentCache) -> None:
    data = random_bytes(2, 32 * MIB)
    digest = source.add(data)
    slow, quick = endpoint.dial(), endpoint.dial()
    send_request(slow, digest, len(data), 0)
    slow.receive()
    assert Path(fetch(quick, digest, len(data), cache.incoming(digest, len(data)))).read_bytes() == data
    assert endpoint.server.sent[digest] < 2 * len(data), "the slow one has not taken all of it"
    offset = MIB
    while offset < len(data):
        header, body = slow.receive()
        assert header == ["piece", offset]
        offset += len(body)
    eventually(lambda: endpoint.server.sent[digest] == 2 * len(data))  # the server counts a piece after it has sent it
    slow.close()
    quick.close()


def test_idle_connections_take_no_thread_and_askers_wait_for_their_turn(tmp_path: Path, cache: ContentCache) -> None:
    class Slow(Files):
        def __init__(self, directory: Path) -> None:
            super().__init__(directory)
            self.order: list[str] = []
            self.gate = threading.Semaphore(0)

        def reading(self, asker: str, digest: str, size: int, no_redirect: bool) -> FileReader:
            self.order.append(digest)
            assert self.gate.acquire(timeout=PATIENCE_S)
            return FileReader(str(self.paths[digest]), size)

    (tmp_path / "shelf").mkdir()
    (tmp_path / "door").mkdir()
    source = Slow(tmp_path / "shelf")
    digests = [source.add(random_bytes(number, 1000)) for number in range(8)]
    with open_endpoint(tmp_path / "door", source, max_streams=1) as endpoint:
        channels = [endpoint.dial() for _ in digests]
        assert streams() == 0
        send_request(channels[0], digests[0], 1000, 0)
        eventually(lambda: source.order == digests[:1])
        for number in range(1, 8):
            send_request(channels[number], digests[number], 1000, 0)
            eventually(lambda: len(endpoint.server._waiting) == number)  # noqa: B023
        assert source.order == digests[:1] and streams() == 1
        source.gate.release(8)
        for number, digest in enumerate(digests):
            receive_answer(channels[number], 1000, cache.incoming(digest, 1000))
        assert source.order == digests
        for channel in channels:
            channel.close()
        eventually(lambda: not endpoint.server._connections, "those who have gone are forgotten")


def streams() -> int:
    names = [thread.name for thread in threading.enumerate()]
    return sum(name.startswith("transfer-") and name[9:].isdigit() for name in names)


def test_a_transfer_server_that_closes_cuts_everything(tmp_path: Path, source: Files, cache: ContentCache) -> None:
    data = random_bytes(3, 32 * MIB)
    digest = source.add(data)
    (tmp_path / "door").mkdir()
    with open_endpoint(tmp_path / "door", source) as endpoint:
        busy, idle = endpoint.dial(), endpoint.dial()
        send_request(busy, digest, len(data), 0)
        busy.receive()
    with pytest.raises(ConnectionCut):
        idle.receive(PATIENCE_S)
    assert is_cut(busy)
    busy.close()
    idle.close()


def is_cut(channel: TransferChannel) -> bool:
    try:
        while True:
            channel.receive(PATIENCE_S)
    except ConnectionCut:
        return True


def test_beats_are_answered_beside_four_streams(endpoint: TransferEndpoint, source: Files, tmp_path: Path) -> None:
    """Each takes a small part of a stream's time: heartbeats never wait behind data."""
    data = random_bytes(4, 48 * MIB)
    digest = source.add(data)
    took: list[float] = []

    def stream(number: int) -> None:
        channel, began = endpoint.dial(), time.monotonic()
        cache = ContentCache(str(tmp_path / f"node-{number}"), MOST_BYTES)
        fetch(channel, digest, len(data), cache.incoming(digest, len(data)))
        took.append(time.monotonic() - began)
        channel.close()

    link = dial(endpoint.credentials())
    link.connection.settimeout(PATIENCE_S)
    threads = [in_thread(lambda number=number: stream(number)) for number in range(4)]
    answered = []
    while any(thread.is_alive() for thread in threads):
        began = time.monotonic()
        link.connection.sendall(framed(["beat", []]))
        assert link.wait_for_frame() == ["pulse"]
        answered.append(time.monotonic() - began)
    assert len(took) == 4
    assert sorted(answered)[len(answered) // 2] < min(took) / 10
    eventually(lambda: endpoint.server.sent_to[KEY_ID] == 4 * len(data))
    link.close()
