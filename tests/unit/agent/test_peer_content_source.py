"""Contents for other agents: who is sent on to whom, and which peers are remembered for that."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent.node import peer_network
from pilotfish.agent.node.peer_network import PeerBackoff, PeerContentSource
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.transfer_protocol import AskElsewhere


class Stage:
    def __init__(self, directory: Path) -> None:
        cache = ContentCache(str(directory / "cache"), 1 << 30)
        (directory / "made").write_bytes(b"content")
        self.digest, self.size = cache.adopt(str(directory / "made"))
        self.source = PeerContentSource(cache)

    def ask(self, asker: str) -> Any:
        return self.source.reading(asker, self.digest, self.size, False)

    def sources(self, asker: str) -> list[str]:
        with pytest.raises(AskElsewhere) as answer:
            self.ask(asker)
        return [name for name, _ in answer.value.contacts]


def contact(name: str) -> list[Any]:
    return [name, ["127.0.0.1", 1]]


def test_a_third_asker_is_sent_to_the_two_that_get_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for name in "abc":
        stage.source.introduce(contact(name))
    first, second = stage.ask("a"), stage.ask("b")
    assert stage.sources("c") == ["a", "b"]
    first.close()
    stage.ask("c").close()
    second.close()


def test_nobody_is_sent_to_a_peer_that_was_forgotten(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for name in "abc":
        stage.source.introduce(contact(name))
    getting = [stage.ask("a"), stage.ask("b")]
    stage.source.forget("a")
    stage.source.forget("nobody")
    assert stage.sources("c") == ["b"]
    stage.source.forget("b")
    getting.append(stage.ask("c"))  # there is nobody else to ask
    for reading in getting:
        reading.close()


def test_of_many_peers_only_the_latest_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_network, "MAX_CONTACTS", 2)
    stage = Stage(tmp_path)
    for name in ("a", "b", "a", "c"):
        stage.source.introduce(contact(name))
    getting = [stage.ask("a"), stage.ask("b")]
    assert stage.sources("c") == ["a"]
    for reading in getting:
        reading.close()


def test_an_unreachable_peer_is_left_alone_for_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    backoff = PeerBackoff()
    assert not backoff.applies(7)
    for pause_s in (5.0, 10.0, 20.0):
        backoff.failed(7)
        now[0] += pause_s - 1
        assert backoff.applies(7)
        now[0] += 1
        assert not backoff.applies(7)
    backoff.reached(7)
    backoff.failed(7)
    now[0] += 5.0
    assert not backoff.applies(7)


def test_unreachable_peers_are_forgotten_in_time_and_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(peer_network, "MAX_BACKOFFS", 3)
    backoff = PeerBackoff()
    for node in range(5):
        backoff.failed(node)
    assert len(backoff._until) == 3 and [node for node in range(5) if backoff.applies(node)] == [2, 3, 4]
    now[0] += 2 * peer_network.MAX_BACKOFF_S
    backoff.failed(9)
    assert len(backoff._until) == 1
