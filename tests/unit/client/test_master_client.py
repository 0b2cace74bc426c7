from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pilotfish.applications.task_needs import TaskNeeds
from pilotfish.client import master_client as module
from pilotfish.client.master_client import MasterClient
from pilotfish.client.submission import BATCH_TASKS, Submission
from pilotfish.errors import ConnectionFailed, PayloadTooLarge, PilotfishError
from pilotfish.model import messages as wire
from pilotfish.model.messages import EndedItem
from pilotfish.model.task import RunOptions, TaskSpec
from pilotfish.portable.wire.frames import MAX_BODY
from tests.support.fake_master_server import Book, FakeMaster

SPEC = TaskSpec("python", "f")
WAIT_S = 30.0


class Heard:
    """A listener that remembers, and can be waited for."""

    def __init__(self) -> None:
        self.ended_items: list[EndedItem] = []
        self.payloads: list[bytes] = []
        self.counts: dict[str, int] | None = None
        self.error: PilotfishError | None = None
        self.running: list[int] = []
        self._changed = threading.Condition()

    def ended(self, items: list[EndedItem], body: memoryview) -> None:
        start = 0
        with self._changed:
            for item in items:
                self.ended_items.append(item)
                self.payloads.append(bytes(body[start : start + item.length]))
                start += item.length
            self._changed.notify_all()

    def began(self, indices: list[int]) -> None:
        with self._changed:
            self.running.extend(indices)
            self._changed.notify_all()

    def finished(self, counts: dict[str, int]) -> None:
        with self._changed:
            self.counts = counts
            self._changed.notify_all()

    def lost(self, error: PilotfishError) -> None:
        with self._changed:
            self.error = error
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_S), "never heard of it"

    @property
    def indices(self) -> list[int]:
        return [item.index for item in self.ended_items]


class World:
    """A master that can be killed and comes back on the same book when it is revived."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.book = Book()
        self.revived = 0
        self.prepare: Callable[[FakeMaster], None] = lambda master: None
        self.master = FakeMaster(directory, self.book).start()

    def revive(self) -> None:
        self.revived += 1
        self.master = FakeMaster(self.directory, self.book)
        self.prepare(self.master)
        self.master.start()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "pool")
    yield made
    if made.master._thread.is_alive():
        made.master.kill()


@pytest.fixture
def client(world: World) -> Iterator[MasterClient]:
    made = MasterClient.connect(world.directory, world.revive)
    yield made
    made.close()


def add(client: MasterClient, run: Submission, count: int) -> None:
    spec = client.spec_number(run, SPEC, b"code")
    for number in range(count):
        client.submit(run, spec, b"payload %d" % number, lambda index: None)


def test_what_is_submitted_ends_and_is_heard_of_in_order(world: World, client: MasterClient) -> None:
    world.master.work = lambda spec, code, payload: (None, b"did " + payload + b" with " + code)
    run, heard = client.open_run("u", RunOptions(name="n")), Heard()
    client.watch(run, heard)
    add(client, run, 3)
    client.close_run(run)
    heard.wait_for(lambda: heard.counts)
    assert heard.indices == [0, 1, 2]
    assert heard.payloads == [b"did payload %d with code" % i for i in range(3)]


def test_a_burst_becomes_few_frames(world: World, client: MasterClient) -> None:
    run, heard = client.open_run("u", RunOptions()), Heard()
    client.watch(run, heard)
    add(client, run, 20_000)
    heard.wait_for(lambda: len(heard.ended_items) == 20_000)
    frames = [message for message in world.master.heard if isinstance(message, wire.Submit)]
    assert len(frames) < 1_000
    assert max(len(message.tasks) for message in frames) <= BATCH_TASKS
    assert sum(len(message.specs) for message in frames) == 1


def test_many_threads_submit_at_once_and_every_task_has_a_number_of_its_own(client: MasterClient) -> None:
    run, heard = client.open_run("u", RunOptions()), Heard()
    client.watch(run, heard)
    seen: list[int] = []

    def submit() -> None:
        spec = client.spec_number(run, SPEC, b"code")
        for _ in range(500):
            client.submit(run, spec, b"x", seen.append)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    heard.wait_for(lambda: len(heard.ended_items) == 4_000)
    assert sorted(seen) == list(range(4_000)) == sorted(heard.indices)


def test_dependencies_travel_with_their_task(world: World, client: MasterClient) -> None:
    run, heard = client.open_run("u", RunOptions()), Heard()
    client.watch(run, heard)
    spec = client.spec_number(run, SPEC, b"code")
    client.submit(run, spec, b"", lambda index: None)
    client.submit(run, spec, b"", lambda index: None, TaskNeeds([0]))
    heard.wait_for(lambda: len(heard.ended_items) == 2)
    assert world.book.runs["u"].deps == {0: [], 1: [0]}


def test_a_question_is_answered_and_a_problem_raised_with_its_hint(world: World, client: MasterClient) -> None:
    world.master.answers["status"] = lambda arguments: {"given": arguments}
    assert client.ask("status", run=3) == {"given": {"run": 3}}
    with pytest.raises(PilotfishError, match="nobody knows 'nonsense'") as caught:
        client.ask("nonsense")
    assert (caught.value.code, caught.value.hint) == ("P1100", "ask something else")


def test_many_threads_send_requests_at_once(world: World, client: MasterClient) -> None:
    world.master.answers["status"] = lambda arguments: {}
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # the client's thread is interrupted at every point
    try:
        with ThreadPoolExecutor(8) as threads:
            for _ in threads.map(lambda _: [client.ask("status") for _ in range(100)], range(8)):
                pass
    finally:
        sys.setswitchinterval(before)
    assert client.failure is None


def test_a_master_that_dies_between_tasks_is_revived_and_nothing_is_lost(world: World, client: MasterClient) -> None:
    run, heard = client.open_run("u", RunOptions()), Heard()
    client.watch(run, heard)
    add(client, run, 100)
    heard.wait_for(lambda: len(heard.ended_items) == 100)
    world.master.kill()
    add(client, run, 100)
    heard.wait_for(lambda: len(heard.ended_items) == 200)
    assert heard.indices == list(range(200))
    assert world.revived == 1
    assert len(world.book.runs["u"].tasks) == 200


def test_a_submit_that_never_arrived_is_sent_again(world: World, client: MasterClient) -> None:
    run, heard = client.open_run("u", RunOptions()), Heard()
    client.watch(run, heard)
    swallowed: list[wire.Submit] = []

    def swallow_one(message: Any) -> bool:
        if isinstance(message, wire.Submit) and not swallowed:
            swallowed.append(message)
            return True
        return False

    world.master.swallow = swallow_one
    add(client, run, 50)
    heard.wait_for(lambda: len(heard.ended_items) == 50)
    assert heard.indices == list(range(50))


def test_a_submit_whose_confirmation_was_lost_is_not_done_twice(world: World, client: MasterClient) -> None:
    run, heard = client.open_run("u", RunOptions()), Heard()
    client.watch(run, heard)
    world.master.wait_for(lambda: any(isinstance(message, wire.Watch) for message in world.master.heard))
    done: list[bytes] = []
    world.master.work = lambda spec, code, payload: done.append(payload) or (None, b"")  # type: ignore[func-returns-value]
    world.master.mute = True
    add(client, run, 50)
    world.master.wait_for(lambda: len(world.book.runs["u"].tasks) > 0)
    world.master.kill()
    heard.wait_for(lambda: len(heard.ended_items) == 50)
    assert len(done) == len(set(done))
    assert heard.indices == list(range(50))


def test_a_reconnect_hears_only_what_is_new(world: World, client: MasterClient) -> None:
    run, heard = client.open_run("u", RunOptions()), Heard()
    client.watch(run, heard)
    add(client, run, 10)
    heard.wait_for(lambda: len(heard.ended_items) == 10)
    world.master.kill()
    client.ask("cancel", run=1)
    watches = [message for message in world.master.heard if isinstance(message, wire.Watch)]
    assert [message.cursor for message in watches] == [10]
    assert heard.indices == list(range(10))


def test_what_a_master_says_twice_is_heard_once(world: World, client: MasterClient) -> None:
    run = Submission("u", RunOptions())
    a, b, c = (EndedItem(index, 4, None, 0, 0, 0, 3) for index in range(3))
    assert run.new_endings(0, [b], memoryview(b"bbb"))[0] == [b]
    new, body = run.new_endings(0, [a, b, c], memoryview(b"aaabbbccc"))
    assert (new, bytes(body), run.cursor) == ([a, c], b"aaaccc", 3)


def test_who_wanted_to_hear_of_the_later_ones_only_is_not_told_of_the_earlier_ones_again(world: World, client: MasterClient) -> None:
    run = Submission("u", RunOptions())
    run.cursor = run.first_cursor = 1
    a, b = (EndedItem(index, 4, None, 0, 0, 0, 1) for index in range(2))
    new, body = run.new_endings(0, [a, b], memoryview(b"ab"))
    assert (new, bytes(body), run.cursor) == ([b], b"b", 2)


def test_a_question_asked_while_the_master_is_away_is_answered_by_the_next_one(world: World, client: MasterClient) -> None:
    def prepare(master: FakeMaster) -> None:
        master.answers["status"] = lambda arguments: "alive"

    world.prepare = prepare
    world.master.kill()
    assert client.ask("status") == "alive"


def test_a_master_that_stops_before_it_answers_has_stopped(world: World, client: MasterClient) -> None:
    world.master.swallow = lambda message: isinstance(message, wire.Ask)
    assert client.ask("stop", now=True) == {}


def test_without_revive_a_master_that_stays_away_fails_everybody_who_waits(world: World) -> None:
    client = MasterClient.connect(world.directory, reconnect_s=0.05)
    run, heard = client.open_run("u", RunOptions()), Heard()
    client.watch(run, heard)
    world.master.kill()
    heard.wait_for(lambda: heard.error)
    assert isinstance(heard.error, ConnectionFailed)
    with pytest.raises(ConnectionFailed):
        client.ask("status")
    with pytest.raises(ConnectionFailed):
        add(client, run, 1)
    client.close()


def test_an_error_of_revive_is_told_to_everybody_who_waits(world: World) -> None:
    def refuse() -> None:
        raise PilotfishError("the pool was stopped", "start it again")

    client = MasterClient.connect(world.directory, refuse)
    heard = Heard()
    client.watch(client.open_run("u", RunOptions()), heard)
    world.master.kill()
    heard.wait_for(lambda: heard.error)
    assert str(heard.error) == "the pool was stopped"
    assert client.failure is not None
    assert client.failure.hint == "start it again"


def test_a_full_disk_at_the_master_is_waited_for(world: World, client: MasterClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FULL_DISK_S", 0.01)
    run, heard = client.open_run("u", RunOptions()), Heard()
    client.watch(run, heard)
    world.master.full = True
    add(client, run, 5)
    world.master.wait_for(lambda: sum(isinstance(message, wire.Submit) for message in world.master.heard) >= 3)
    add(client, run, 5)
    world.master.full = False
    heard.wait_for(lambda: len(heard.ended_items) == 10)
    assert heard.error is None


def test_tasks_that_the_master_refuses_for_good_fail_their_run_and_no_other(world: World, client: MasterClient) -> None:
    bad, bad_heard = client.open_run("bad", RunOptions()), Heard()
    client.watch(bad, bad_heard)
    bad.next_index = 7
    add(client, bad, 1)
    bad_heard.wait_for(lambda: bad_heard.error)
    assert str(bad_heard.error) == "out of order"
    good, heard = client.open_run("good", RunOptions()), Heard()
    client.watch(good, heard)
    add(client, good, 1)
    heard.wait_for(lambda: heard.ended_items)


def test_closing_waits_until_everything_is_written_down(world: World) -> None:
    client = MasterClient.connect(world.directory, world.revive)
    run = client.open_run("u", RunOptions())
    add(client, run, 10_000)
    client.close_run(run)
    client.close()
    assert len(world.book.runs["u"].tasks) == 10_000
    with pytest.raises(ConnectionFailed, match="closed"):
        client.ask("status")


def test_a_run_found_again_keeps_its_numbers(world: World, client: MasterClient) -> None:
    first = client.open_run("u", RunOptions())
    add(client, first, 5)
    client.close()
    second = MasterClient.connect(world.directory)
    again, heard = second.open_run("u", RunOptions()), Heard()
    assert (again.run, again.next_index, again.next_spec) == (first.run, 5, 1)
    second.watch(again, heard)
    add(second, again, 2)
    heard.wait_for(lambda: len(heard.ended_items) == 7)
    second.close()


def test_a_wrong_key_is_refused_with_the_masters_reason(world: World) -> None:
    path = world.directory / "client.json"
    path.write_text(path.read_text().replace(world.master._key.hex(), "00" * 32))
    with pytest.raises(ConnectionFailed, match="wrong key"):
        MasterClient.connect(world.directory)


def test_a_master_that_does_not_know_our_key_is_not_trusted(world: World, tmp_path: Path) -> None:
    world.master._key = b"another key"
    world.master._prove = lambda peer, message: world.master._send(peer, wire.Proved("f" * 64, 1))  # type: ignore[method-assign]
    with pytest.raises(ConnectionFailed, match="could not prove"):
        MasterClient.connect(world.directory)


def test_credentials_that_others_can_read_are_refused(world: World) -> None:
    (world.directory / "client.json").chmod(0o644)
    with pytest.raises(ConnectionFailed, match="can be read by others") as caught:
        MasterClient.connect(world.directory)
    assert caught.value.hint.startswith("chmod 600 ")


def test_no_pool_is_an_error_that_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailed, match="there is no pool") as caught:
        MasterClient.connect(tmp_path)
    assert "pilotfish run" in caught.value.hint


def test_what_no_frame_can_carry_is_refused_at_once(client: MasterClient) -> None:
    class Giant(bytes):
        def __len__(self) -> int:
            return MAX_BODY + 1

    run = client.open_run("u", RunOptions())
    with pytest.raises(PayloadTooLarge, match="256 MiB is the most"):
        client.submit(run, 0, Giant(), lambda index: None)


def test_a_callback_that_would_wait_for_its_own_thread_is_told_so(client: MasterClient) -> None:
    problems: list[PilotfishError] = []

    class Asks(Heard):
        def ended(self, items: list[EndedItem], body: memoryview) -> None:
            try:
                client.ask("status")
            except PilotfishError as problem:
                problems.append(problem)
            super().ended(items, body)

    run, heard = client.open_run("u", RunOptions()), Asks()
    client.watch(run, heard)
    add(client, run, 1)
    heard.wait_for(lambda: heard.ended_items)
    assert "cannot wait for the client" in str(problems[0])


def test_a_forked_child_leaves_the_link_to_its_parent(client: MasterClient) -> None:
    run, heard = client.open_run("u", RunOptions()), Heard()
    client.watch(run, heard)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            client.ask("status")
        except ConnectionFailed as error:
            os.write(writing, str(error).encode())
        finally:
            client.close()
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as said:
        assert b"forked" in said.read()
    os.waitpid(child, 0)
    add(client, run, 10)
    heard.wait_for(lambda: len(heard.ended_items) == 10)


def test_the_client_leaves_no_descriptor_and_no_thread_behind(world: World) -> None:
    before = set(os.listdir("/proc/self/fd"))
    client = MasterClient.connect(world.directory)
    client.ask("cancel", run=client.open_run("u", RunOptions()).run)
    client.close()
    world.master.wait_for(lambda: not world.master._peers)
    assert set(os.listdir("/proc/self/fd")) == before
    assert not client._thread.is_alive()
