"""Tests the fetcher: every fetch and upload gets an answer, whatever happens."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent.node import fetcher as fetcher_module
from pilotfish.agent.node.fetcher import Fetcher
from pilotfish.model.contents import RESULT
from pilotfish.portable.payload_format import pack
from pilotfish.portable.transfer import transfer_server
from pilotfish.portable.transfer.cache_directory import CacheError, content_path
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.incoming_content import InUse
from pilotfish.portable.transfer.transfer_client import fetch
from pilotfish.portable.transfer.transfer_protocol import AskLater
from tests.support.scripted_master import eventually
from tests.support.transfer_stage import MOST_BYTES, Files, TransferEndpoint, digest_of, open_endpoint


class NoPeers:
    """Records what the fetcher tells its peers."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self.withdrawn: list[str] = []
        self.searches = 0

    def publish(self, digest: str) -> None:
        self.published.append(digest)

    def withdraw(self, digest: str) -> None:
        self.withdrawn.append(digest)

    def find(self, digest: str) -> list[Any]:
        self.searches += 1
        return []


class Node:
    """A fetcher, a master's endpoint, and the answers."""

    def __init__(self, directory: Path, endpoint: TransferEndpoint, source: Files) -> None:
        self.directory, self.endpoint, self.source = directory, endpoint, source
        self.outbox = directory / "outbox"
        self.outbox.mkdir()
        self.peers = NoPeers()
        self.answered: list[tuple[Any, ...]] = []
        endpoint.credentials()
        credentials = next((directory / "door").glob("credentials*"))
        settings = {"worker": "w", "outbox": str(self.outbox)}
        cache = ContentCache(str(directory / "cache"), MOST_BYTES)
        self.fetcher = Fetcher(cache, str(credentials), settings, self.peers, lambda *what: self.answered.append(what))  # type: ignore[arg-type]

    def report(self, *contents: bytes) -> bytes:
        files = []
        for place, data in enumerate(contents):
            name = os.urandom(8).hex()
            (self.outbox / name).write_bytes(data)
            files.append([f"out/{place}", 0o644, len(data), name])
        return pack([json.dumps({"stow": True, "files": files}).encode()])

    def answers(self, count: int) -> list[tuple[Any, ...]]:
        eventually(lambda: len(self.answered) >= count)
        return sorted(self.answered, key=lambda answer: str(answer[1]))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    for name in ("files", "door"):
        (tmp_path / name).mkdir()
    source = Files(tmp_path / "files")
    with open_endpoint(tmp_path / "door", source) as endpoint:
        yield Node(tmp_path, endpoint, source)


def test_two_tasks_with_the_same_output_both_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    monkeypatch.setattr(fetcher_module, "push", lambda *arguments: both.wait(30))
    data = os.urandom(100_000)
    node.fetcher.upload(1, node.report(data))
    node.fetcher.upload(2, node.report(data))
    assert [(what, number, failure) for what, number, failure, _, _ in node.answers(2)] == [("uploaded", 1, None), ("uploaded", 2, None)]


def test_an_output_cannot_be_evicted_while_it_waits_for_its_master(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = threading.Event()
    kept: list[bool] = []

    def push(channel: Any, digest: str, size: int, *rest: Any) -> None:
        os.utime(content_path(node.fetcher.cache.directory, digest), (0, 0))
        node.fetcher.cache.free_space(MOST_BYTES)
        kept.append(node.fetcher.cache.has(digest, size))
        pushed.set()

    monkeypatch.setattr(fetcher_module, "push", push)
    node.fetcher.upload(1, node.report(os.urandom(100_000)))
    node.answers(1)
    assert pushed.is_set() and kept == [True]


def test_a_cancelled_upload_does_not_keep_others_waiting(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher_module, "UPLOAD_THREADS", 1)
    monkeypatch.setattr(fetcher_module, "push", Refusing(node.fetcher.cancel_upload, 1))
    node.fetcher.upload(1, node.report(os.urandom(100_000)))
    node.fetcher.upload(2, node.report(os.urandom(100_000)))
    (_, _, first, _, _), (_, _, second, _, _) = node.answers(2)
    assert first == ["result", "worker", "its output files are not needed any more"] and second is None


class Refusing:
    """A master that is always busy, until the upload is cancelled."""

    def __init__(self, cancel_upload: Callable[[int], None], number: int) -> None:
        self.cancel_upload, self.number = cancel_upload, number
        self.asked = 0

    def __call__(self, *arguments: Any) -> None:
        self.asked += 1
        if self.asked < 3:
            raise AskLater(0.0)
        if self.asked == 3:
            self.cancel_upload(self.number)
            raise AskLater(0.0)


def test_an_output_that_was_damaged_on_this_disk_is_not_sent_for_ever(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(100_000)
    real = node.fetcher.cache.pin

    def pin(digest: str) -> None:
        real(digest)
        path = content_path(node.fetcher.cache.directory, digest)
        os.chmod(path, 0o600)
        with open(path, "r+b") as file:
            file.write(bytes(1000))

    monkeypatch.setattr(node.fetcher.cache, "pin", pin)
    node.fetcher.upload(1, node.report(data))
    ((_, _, failure, _, _),) = node.answers(1)
    assert failure[:2] == ["result", "worker"] and f"{digest_of(data)} was damaged on this disk" in failure[2]


@pytest.mark.parametrize("error", [CacheError("it belongs to user 7"), RuntimeError("can't start new thread"), KeyError("x")])
def test_every_error_is_answered_with_a_failure(node: Node, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(fetcher_module, "fetch", fail)
    monkeypatch.setattr(fetcher_module, "push", fail)
    for number in range(6):
        node.fetcher.fetch([f"{number:064x}", 10, ""])
        node.fetcher.upload(number, node.report(os.urandom(70_000)))
    node.fetcher.upload(6, pack([b'{"stow": but this is no report']))
    eventually(lambda: len(node.answered) >= 13)
    assert sum(answer[0] == "not_fetched" for answer in node.answered) == 6
    assert sum(answer[0] == "uploaded" and answer[2] is not None for answer in node.answered) == 7


def test_a_content_that_did_not_arrive_is_not_published(node: Node) -> None:
    node.fetcher.fetch(["ab" * 32, 100_000, ""])
    assert node.answers(1)[0][0] == "not_fetched"
    assert not node.peers.published


def test_an_arriving_content_is_published_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(100_000)
    digest = node.source.add(data)
    asked: list[int] = []

    def busy_at_first(*arguments: Any) -> str:
        asked.append(1)
        if len(asked) < 10:
            raise AskLater(0.0)
        return fetch(*arguments)

    monkeypatch.setattr(fetcher_module, "fetch", busy_at_first)
    node.fetcher.fetch([digest, len(data), ""])
    assert node.answers(1) == [("fetched", digest)]
    assert node.peers.published == [digest] and node.peers.searches == 1


def test_a_connection_that_the_master_closed_for_idleness_is_dialled_again_at_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher_module, "FETCH_THREADS", 1)
    monkeypatch.setattr(fetcher_module, "RETRY_S", 1e6)  # a fetch that waits for it waits for ever
    monkeypatch.setattr(transfer_server, "IDLE_S", 0.0)
    monkeypatch.setattr(transfer_server, "IDLE_CHECK_S", 0.05)
    first, second = os.urandom(100_000), os.urandom(100_000)
    node.fetcher.fetch([node.source.add(first), len(first), ""])
    node.answers(1)
    eventually(lambda: not node.endpoint.server._connections)
    node.fetcher.fetch([node.source.add(second), len(second), ""])
    assert {answer[0] for answer in node.answers(2)} == {"fetched"}


def test_a_content_is_not_locked_for_ever_when_no_thread_can_be_started(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, data = node.fetcher.cache, os.urandom(8 << 20)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with cache.incoming(digest_of(data), len(data)) as incoming:
        monkeypatch.setattr(threading.Thread, "start", start)
        incoming.write(data[: 5 << 20])
    with cache.incoming(digest_of(data), len(data)) as incoming:
        assert incoming.offset == 5 << 20
        incoming.write(data[5 << 20 :])
        incoming.finish()
    assert cache.verified_path(digest_of(data), len(data)) is not None


@pytest.mark.parametrize("name", ["m\udce9sh", "../x", "", 5, "x" * 9999])
def test_a_name_that_cannot_be_passed_on_is_left_out_and_nothing_else_is_lost(node: Node, name: object) -> None:
    """User code can forge a report; and a report that the master cannot read would be sent again and again."""
    (node.outbox / "file").write_bytes(b"data")
    said = {"stow": True, "files": [[name, 0o644 + (1 << 70), 4, "file", True]]}
    node.fetcher.upload(1, pack([json.dumps(said).encode()]))
    ((_, _, failure, _, made),) = node.answers(1)
    assert failure is None and made == [[digest_of(b"data"), 4, False, True, "", 0o644]]


def test_an_output_in_the_masters_store_is_not_a_file_that_a_task_has_a_link_to(node: Node) -> None:
    home = node.directory / "home"
    settings = {"worker": "w", "outbox": str(node.outbox), "home": str(home)}
    fetcher = Fetcher(node.fetcher.cache, "nowhere", settings, node.peers, lambda *what: node.answered.append(what))  # type: ignore[arg-type]
    data = os.urandom(100_000)
    fetcher.upload(1, node.report(data))
    ((_, _, failure, _, made),) = node.answers(1)
    assert failure is None and made == [[digest_of(data), len(data), True, False, "out/0", 0o644]]
    place = Path(content_path(str(home), digest_of(data)))
    assert place.read_bytes() == data and place.stat().st_nlink == 1
    fetcher.fetch([digest_of(data), len(data), ""])
    node.answers(2)
    copy = Path(content_path(node.fetcher.cache.directory, digest_of(data)))
    assert copy.read_bytes() == data and not copy.samefile(place)


def test_more_contents_than_the_cache_holds_pass_through_it_one_after_the_other(node: Node) -> None:
    node.fetcher.cache.max_bytes = 350_000
    contents = [os.urandom(100_000) for _ in range(10)]
    for data in contents:
        node.fetcher.fetch([node.source.add(data), len(data), ""])
    assert {answer[0] for answer in node.answers(10)} == {"fetched"}
    for number in range(10):
        node.fetcher.upload(number, node.report(os.urandom(100_000)))
    assert [answer[2] for answer in node.answers(20) if answer[0] == "uploaded"] == [None] * 10


def test_a_content_that_never_fits_is_the_sites_fault_and_no_full_disk(node: Node) -> None:
    node.fetcher.cache.max_bytes = 50_000
    data = os.urandom(100_000)
    node.fetcher.fetch([node.source.add(data), len(data), ""])
    node.fetcher.upload(1, node.report(os.urandom(100_000)))
    failures = [answer[2] for answer in node.answers(2)]
    assert sorted(failure[:2] for failure in failures) == [["missing-input", "site"], ["result", "site"]]
    assert all("raise the site's cache_size" in failure[2] for failure in failures)


def test_a_large_result_of_a_call_becomes_a_content_and_is_sent_unchanged(node: Node) -> None:
    result = pack([b"", os.urandom(70_000), b"", b""])
    node.fetcher.upload(1, memoryview(bytearray(result)))
    ((_, number, failure, payload, produced),) = node.answers(1)
    digest = digest_of(result)
    assert (number, failure, bytes(payload)) == (1, None, result)
    assert produced == [[digest, len(result), True, True, RESULT, 0]]
    assert Path(content_path(node.fetcher.cache.directory, digest)).read_bytes() == result
    assert node.peers.published == [digest] and not list(node.outbox.iterdir())


def test_a_cancelled_upload_of_a_result_is_forgotten_when_it_ends(node: Node) -> None:
    node.fetcher.cancel_upload(1)
    node.fetcher.upload(1, b"a result")
    node.answers(1)
    assert not node.fetcher._cancelled


@pytest.mark.parametrize("error", [CacheError("it belongs to user 7"), InUse("full"), OSError(28, "No space left on device")])
def test_a_result_that_does_not_fit_into_the_cache_is_sent_all_the_same(
    node: Node, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(path: str) -> None:
        raise error

    monkeypatch.setattr(node.fetcher.cache, "adopt", fail)
    node.fetcher.upload(1, b"a result")
    assert node.answers(1) == [("uploaded", 1, None, b"a result", [])]
    assert not list(node.outbox.iterdir())
