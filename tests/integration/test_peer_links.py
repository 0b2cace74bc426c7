"""Tests the peer connections of agents in this process: links, listener and admission."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent.node import peer_network as peers_module
from pilotfish.agent.node.agent_machine import WorkerOffer
from pilotfish.agent.node.peer_handshake import PeerIdentity, dial_peer, node_id
from pilotfish.agent.node.peer_network import PeerNetwork
from pilotfish.agent.peers.contacts import Contact
from pilotfish.agent.peers.kademlia import Kademlia
from pilotfish.agent.peers.peer import Peer
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.transfer_client import fetch
from pilotfish.portable.wire.frame_link import FrameLink, LinkLost
from pilotfish.portable.wire.frames import frame_buffers
from pilotfish.store.keyring import open_keyring
from tests.support.scripted_master import eventually

NOBODY = ["127.0.0.1", 1]
SHORT_S, LONG_S = 0.3, 60.0


class Site:
    """Agents without slots or master, and test peers that do what a test says."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.secrets = open_keyring(place).peers("")
        self.dead: list[int] = []
        """Workers that any agent reported dead."""
        self._agents: list[PeerNetwork] = []

    def agent(self, name: str) -> PeerNetwork:
        (self.place / name).mkdir()
        made = PeerNetwork(
            WorkerOffer(name, "", {"cores": 1.0}), ContentCache(str(self.place / name / "cache"), 1 << 30), str(self.place / name)
        )
        assert made.listen("127.0.0.1") is not None
        self._agents.append(made)
        return made

    def end(self) -> None:
        for agent in self._agents:
            agent.leave()
            assert agent._transfer_server is not None
            agent._transfer_server.close()

    def introduce(self, agent: PeerNetwork, *others: PeerNetwork, term: int = 0, master: PeerNetwork | None = None) -> None:
        contacts = [contact_of(other).wire for other in others]
        agent.introduce(["introduce", "", *self.secrets, contacts, term, contact_of(master).wire if master else None])

    def identity(self, name: str) -> PeerIdentity:
        (self.place / name).mkdir(exist_ok=True)
        key, certificate, private_key = self.secrets
        return PeerIdentity(name, bytes.fromhex(key), certificate, private_key, str(self.place / name))

    def friend(self, agent: PeerNetwork, name: str) -> Friend:
        identity = self.identity(name)
        return Friend(dial_peer(contact_of(agent), identity, ["peer", [identity.name, NOBODY]]))


class Friend:
    def __init__(self, link: FrameLink) -> None:
        self.link = link
        self.heard: list[list[Any]] = []
        link.connection.setblocking(False)

    def say(self, *message: Any, body: bytes = b"") -> None:
        self.link.send(message, [body] if body else [])
        assert self.link.flush()

    def has_heard(self, *message: Any) -> bool:
        self.heard.extend(header for header, _ in self.link.receive())
        return list(message) in self.heard

    def answers(self, number: int) -> bool:
        self.say("ping", number)
        return bool(eventually(lambda: self.has_heard("answer", number)))

    def is_hung_up_on(self) -> bool:
        try:
            self.has_heard("nothing")
            return False
        except LinkLost:
            return True


def contact_of(agent: PeerNetwork) -> Contact:
    assert agent.me is not None
    return agent.me


def open_links(agent: PeerNetwork) -> int:
    """Count the connections, without the listener and its wake-up socket."""
    return len(agent._selector.get_map()) - 2


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(tmp_path)
    unreachable = Peer.unreachable

    def call_dead(self: Peer, node: int, now: float) -> None:
        made.dead.append(node)
        unreachable(self, node, now)

    monkeypatch.setattr(Peer, "unreachable", call_dead)
    yield made
    made.end()


@pytest.fixture
def agent(site: Site) -> PeerNetwork:
    made = site.agent("agent")
    site.introduce(made)
    return made


# --- links ----------------------------------------------------------------------------------------------------------------------------


def test_two_that_dial_each_other_at_once_keep_one_link_and_neither_calls_the_other_dead(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)
    dialled: list[str] = []

    def dial_together(contact: Contact, identity: PeerIdentity, greeting: list[Any]) -> FrameLink:
        is_first = identity.name not in dialled
        dialled.append(identity.name)
        if is_first:
            both.wait(LONG_S)  # an agent that already has a link would not dial
        link = dial_peer(contact, identity, greeting)
        if is_first:
            both.wait(LONG_S)
        return link

    monkeypatch.setattr(peers_module, "dial_peer", dial_together)
    a, b = site.agent("a"), site.agent("b")
    site.introduce(a, b)
    site.introduce(b, a)
    lower = min(contact_of(a).node, contact_of(b).node)
    eventually(lambda: [link.dialler for agent in (a, b) for link in agent._links.values()] == [lower, lower])
    eventually(lambda: open_links(a) == open_links(b) == 1)
    assert len(dialled) >= 2 and site.dead == []


def test_what_was_sent_before_a_goodbye_was_heard_is_not_lost(site: Site, agent: PeerNetwork) -> None:
    first = site.friend(agent, "friend")
    assert first.answers(1)
    second = site.friend(agent, "friend")
    eventually(lambda: first.has_heard("goodbye"))
    first.say("ping", 2)
    eventually(lambda: second.has_heard("answer", 2))
    first.link.close()
    assert second.answers(3)
    eventually(lambda: open_links(agent) == 1)
    assert site.dead == []


def test_a_peer_that_connected_to_us_counts_as_alive_if_we_cannot_connect_to_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    dialled, may_fail = threading.Event(), threading.Event()

    def fail(*arguments: Any) -> FrameLink:
        dialled.set()
        assert may_fail.wait(LONG_S)
        raise LinkLost("there is a firewall")

    monkeypatch.setattr(peers_module, "dial_peer", fail)
    agent = site.agent("agent")
    agent.introduce(["introduce", "", *site.secrets, [Contact(node_id("friend"), NOBODY).wire], 0, None])
    assert dialled.wait(LONG_S)
    friend = site.friend(agent, "friend")
    assert friend.answers(1)
    may_fail.set()
    eventually(lambda: agent._backoff.applies(node_id("friend")))
    assert friend.answers(2)
    assert site.dead == []


def test_a_connection_that_receives_messages_is_in_use(site: Site, agent: PeerNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "MAX_LINKS", 2)
    first, second = site.friend(agent, "first"), site.friend(agent, "second")
    assert second.answers(1)
    first.say("reign", 0)  # this message gets no answer
    eventually(lambda: list(agent._links)[-1] == node_id("first"))
    assert site.friend(agent, "third").answers(2)
    eventually(lambda: second.has_heard("goodbye"))
    assert not first.has_heard("goodbye")


def test_a_sites_master_keeps_more_links_than_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "MAX_LINKS", 2)
    agent = site.agent("agent")
    site.introduce(agent, term=1, master=agent)
    friends = [site.friend(agent, f"friend{number}") for number in range(5)]
    assert all(friend.answers(number + 1) for number, friend in enumerate(friends))
    assert len(agent._links) == len(friends)


def test_a_peer_that_sends_a_malformed_assignment_is_disconnected_and_gets_no_receipt(site: Site, agent: PeerNetwork) -> None:
    assigned: list[Any] = []
    agent.notify = lambda kind, *what: assigned.append(what) if kind == "assigned_by_peer" else None
    task = [1, 1, 5, 4, 0, 0, [], []]
    good = site.friend(agent, "good")
    good.say("assign", [], [task], body=b"code")
    eventually(lambda: assigned)
    for rows, body in (([[*task, 1]], b"code"), ([task[:3]], b""), ([["x", *task[1:]]], b"code"), ([task], b"short"), (5, b"")):
        friend = site.friend(agent, "bad")
        friend.say("assign", [], rows, body=body)
        eventually(friend.is_hung_up_on)
        assert not any(header[0] == "got" for header in friend.heard)
    assert len(assigned) == 1


# --- contents -------------------------------------------------------------------------------------------------------------------------


def test_what_is_published_is_not_published_again_when_the_master_is_back(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[int] = []
    monkeypatch.setattr(Kademlia, "publish", recording(Kademlia.publish, published))
    agent = site.agent("agent")
    cache = ContentCache(str(tmp_path / "agent" / "cache"), 1 << 30)
    holds: dict[str, None] = {}
    agent.holds = holds
    for number in range(3):
        (tmp_path / "made").write_bytes(b"content %d" % number)
        holds[cache.adopt(str(tmp_path / "made"))[0]] = None
        site.introduce(agent)
        eventually(lambda: len(set(published)) == len(holds))
    assert sorted(published) == sorted(int(digest, 16) for digest in holds), "each of them once"


def recording(publish: Callable[..., None], keys: list[int]) -> Callable[..., None]:
    def record(self: Kademlia, key: int, now: float) -> None:
        keys.append(key)
        publish(self, key, now)

    return record


def test_a_bulk_connection_is_used_for_the_next_content_too_unless_it_has_ended(site: Site, agent: PeerNetwork, tmp_path: Path) -> None:
    asker = site.agent("asker")
    site.introduce(asker)
    theirs, mine = (ContentCache(str(tmp_path / name / "cache"), 1 << 30) for name in ("agent", "asker"))
    ends: list[Any] = []
    for number in range(3):
        (tmp_path / "made").write_bytes(b"content %d" % number)
        digest, size = theirs.adopt(str(tmp_path / "made"))
        channel = asker.channel(contact_of(agent))
        with mine.incoming(digest, size) as incoming:
            fetch(channel, digest, size, incoming)
        assert mine.verified_path(digest, size) is not None
        ends.append(channel.connection)
        if number == 1:
            channel.abort()
        asker.release_channel(contact_of(agent), channel)
    assert ends[0] is ends[1] and ends[1] is not ends[2]
    assert [end.fileno() < 0 for end in ends] == [True, True, False], "what is no good any more is closed"


def test_others_are_not_sent_to_a_peer_that_has_gone(site: Site, agent: PeerNetwork) -> None:
    friend, identity = site.friend(agent, "friend"), site.identity("friend")
    bulk = dial_peer(contact_of(agent), identity, ["bulk", [identity.name, NOBODY]])
    eventually(lambda: identity.name in agent._content_source._contacts)
    friend.link.close()
    eventually(lambda: identity.name not in agent._content_source._contacts)
    bulk.close()


# --- listener -------------------------------------------------------------------------------------------------------------------------


def stranger_at(agent: PeerNetwork, secured: bool = True) -> socket.socket:
    host, port = contact_of(agent).address
    plain = socket.create_connection((host, port), LONG_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain) if secured else plain


@pytest.mark.parametrize("secured", [True, False], ids=["in the proof", "in the handshake of TLS"])
def test_an_unauthenticated_peer_that_sends_slowly_is_disconnected_in_time(
    site: Site, agent: PeerNetwork, secured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "HANDSHAKE_TIMEOUT_S", SHORT_S)
    with stranger_at(agent, secured) as stranger:
        words = iter(b"\0\0\xf0\0\0\0\0\0" if secured else b"\x16\x03\x01\xf0\0\x01\0")

        def is_shown_out() -> bool:
            try:
                stranger.sendall(bytes([next(words, 0)]))
            except OSError:
                return True
            return False

        eventually(is_shown_out)
    assert site.friend(agent, "friend").answers(1)


def test_the_oldest_unauthenticated_connection_is_dropped_for_a_new_peer(
    site: Site, agent: PeerNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "HANDSHAKE_TIMEOUT_S", LONG_S)
    monkeypatch.setattr(peers_module, "MAX_UNAUTHENTICATED", 2)
    strangers = [stranger_at(agent, secured=False) for _ in range(4)]
    assert site.friend(agent, "friend").answers(1)
    assert [stranger.recv(1) for stranger in strangers[:3]] == [b""] * 3
    strangers[3].setblocking(False)
    with pytest.raises(BlockingIOError):
        strangers[3].recv(1)
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize("proof", [[5, "0" * 64, ""], ["0" * 64, [], ""], ["a|b", "c|d", ""], ["0" * 64, "0" * 64, 5], [{}, None, None]])
def test_an_invalid_proof_is_refused_without_an_exception(agent: PeerNetwork, proof: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    with stranger_at(agent) as stranger:
        assert stranger.recv(4096)
        for buffer in frame_buffers(["prove", 1, "peer", *proof], []):
            stranger.sendall(buffer)
        assert stranger.recv(4096) == b""
    eventually(lambda: not agent._unauthenticated)
    assert failures == []
