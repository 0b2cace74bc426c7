"""TLS on memory buffers over sockets that do not block: whatever the portions, what is sent is what is heard."""

from __future__ import annotations

import random
import socket
import threading
from pathlib import Path

import pytest

from pilotfish.portable.wire.frame_link import FrameLink, LinkLost
from pilotfish.portable.wire.tls_stream import TlsStream, secure, shake_hands
from pilotfish.store.keyring import open_keyring

Links = tuple[FrameLink, FrameLink]


@pytest.fixture
def links(tmp_path: Path) -> Links:
    keyring = open_keyring(tmp_path)
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10_000)
    served: list[TlsStream] = []
    server = threading.Thread(target=lambda: served.append(shake_hands(theirs, keyring.server_context(), server_side=True)[0]))
    server.start()
    made = FrameLink(secure(ours, keyring.fingerprint))
    server.join(30)
    both = made, FrameLink(served[0])
    for link in both:
        link.connection.setblocking(False)
        link.reader.proved = True
    return both


@pytest.mark.parametrize("seed", range(4))
def test_frames_of_all_sizes_pass_both_ways_in_order(links: Links, seed: int) -> None:
    chance = random.Random(seed)
    sent: list[list[tuple[list[int | str], bytes]]] = [[], []]
    heard: list[list[tuple[list[int | str], bytes]]] = [[], []]
    while any(len(frames) < 200 for frames in sent) or heard != sent[::-1]:
        for number, link in enumerate(links):
            if len(sent[number]) < 200 and chance.random() < 0.5:
                body = chance.randbytes(int(10 ** chance.uniform(0, 5.5)))
                sent[number].append((["frame", len(sent[number])], body))
                link.send(sent[number][-1][0], [body])
            if chance.random() < 0.7:
                link.flush()
            if chance.random() < 0.5:
                heard[number].extend((header, bytes(body)) for header, body in link.receive())
    assert all(link.flush() for link in links)


def test_the_end_is_seen_when_all_was_heard(links: Links) -> None:
    ours, theirs = links
    ours.send(["last"], [b"x" * 1000])
    assert ours.flush()
    ours.close()
    words = theirs.receive()
    assert next(words) == (["last"], b"x" * 1000)
    with pytest.raises(LinkLost):
        list(words) + list(theirs.receive())


def test_whoever_has_another_certificate_is_not_spoken_to(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    server = threading.Thread(target=lambda: shake_hands(theirs, open_keyring(tmp_path).server_context(), server_side=True))
    server.start()
    with pytest.raises(ConnectionError, match="not the one we know"):
        secure(ours, "0" * 64)
    server.join(30)
