"""Contents at the master: who is sent to whom, how many at once, and how much its disk may take."""

from __future__ import annotations

import os
import queue
import shutil
import threading
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pilotfish.core.state import ContentRecord
from pilotfish.master.master_content_source import LATE_S, RESERVE_BYTES, LoopCalls, MasterContentSource
from pilotfish.model import inputs as i
from pilotfish.model.contents import RESULT, IntermediateFile
from pilotfish.model.task import StoredPayload
from pilotfish.portable.transfer.incoming_content import NoSpace
from pilotfish.portable.transfer.transfer_protocol import AskElsewhere, AskLater, ContentAbsent
from tests.support.transfer_stage import digest_of

Usage = namedtuple("Usage", "total used free")
MIB = 1 << 20


class Guarded:
    """A machine that only one thread may touch."""

    def __init__(self, machine: Any) -> None:
        self.__dict__.update(_machine=machine, _owner=threading.get_ident())

    def __getattr__(self, name: str) -> Any:
        assert threading.get_ident() == self._owner, f"{name} was read by another thread"
        return getattr(self._machine, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(f"{name} was written")


class Stage:
    """A shelf, and the little that it looks at: workers w0, w1, ... of one site, each with a contact."""

    def __init__(self, directory: Path, transfers: int = 16, workers: int = 8, schedule: Any = None) -> None:
        self.directory = directory
        names = [f"w{number}" for number in range(workers)]
        self.contents: dict[str, ContentRecord] = {}
        self.state = state = SimpleNamespace(
            unfinished=0,
            contents=self.contents,
            find_task=lambda number: None,
            workers={name: SimpleNamespace(id=name, site="pond") for name in names},
            sites={"pond": SimpleNamespace(site=SimpleNamespace(transfers=transfers))},
        )
        connections = {name: SimpleNamespace(peer=[name, ["127.0.0.1", 1]]) for name in names}
        pool: Any = SimpleNamespace(contents=directory / "contents", cache=directory / "cache")
        machine: Any = Guarded(SimpleNamespace(state=state, connections=connections))
        self.told: list[i.Input] = []
        self.calls = LoopCalls(schedule or (lambda act: act()))
        self.shelf = MasterContentSource(pool, machine, self.calls, self.told.append, lambda: None)

    def add(self, data: bytes) -> str:
        """A person's file."""
        digest = digest_of(data)
        path = self.directory / digest
        path.write_bytes(data)
        record = self.contents[digest] = ContentRecord(digest, len(data))
        record.path, record.mtime_ns = str(path), path.stat().st_mtime_ns
        return digest


def test_the_first_of_a_site_gets_it_from_us_and_the_others_from_those_before_them(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    digest = stage.add(b"x" * 1000)
    stage.shelf.reading("w0", digest, 1000, False).close()
    for asker, sources in (("w1", ["w0"]), ("w2", ["w0"]), ("w3", ["w1", "w0"]), ("w6", ["w1", "w0"])):
        with pytest.raises(AskElsewhere) as answer:
            stage.shelf.reading(asker, digest, 1000, False)
        assert [name for name, _ in answer.value.contacts] == sources
    stage.shelf.reading("w6", digest, 1000, True).close()


def test_to_and_from_a_site_go_only_so_many_contents_at_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path, transfers=2)
    digest = stage.add(b"x" * 1000)
    reading = stage.shelf.reading("w0", digest, 1000, True)
    incoming = stage.shelf.incoming("w1", "ab" * 32, 1000)
    assert incoming is not None
    with pytest.raises(AskLater):
        stage.shelf.reading("w2", digest, 1000, True)
    with pytest.raises(AskLater):
        stage.shelf.incoming("w2", "cd" * 32, 1000)
    incoming.close()
    again = stage.shelf.incoming("w2", "cd" * 32, 1000)
    reading.close()
    stage.shelf.reading("w3", digest, 1000, True).close()
    assert again is not None
    again.close()


def test_the_room_that_the_journal_needs_is_not_promised_to_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, RESERVE_BYTES + 3 * MIB))
    first = stage.shelf.incoming("w0", "ab" * 32, 2 * MIB)
    assert first is not None
    with pytest.raises(NoSpace, match="2 MiB do not fit"):
        stage.shelf.incoming("w1", "cd" * 32, 2 * MIB)
    (told,) = stage.told
    assert isinstance(told, i.OutputSpaceChanged) and "2 MiB do not fit" in told.problem
    first.close()
    second = stage.shelf.incoming("w1", "cd" * 32, 2 * MIB)
    assert second is not None
    second.close()
    assert stage.told[1:] == [i.OutputSpaceChanged("")], "once, not for every file"


def test_a_file_that_was_changed_or_is_gone_is_absent_and_its_person_to_blame(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    changed, gone = stage.add(b"x" * 1000), stage.add(b"y" * 1000)
    os.utime(stage.contents[changed].path, (1, 1))
    os.unlink(stage.contents[gone].path)
    for digest, reason in ((changed, "was changed after it was submitted"), (gone, "No such file")):
        with pytest.raises(ContentAbsent, match=reason) as answer:
            stage.shelf.reading("w0", digest, 1000, True)
        assert answer.value.blame == "user"
    with pytest.raises(ContentAbsent, match="no run needs a content"):
        stage.shelf.reading("w0", "ef" * 32, 1000, True)


def test_what_no_run_needs_goes_at_once_or_when_no_task_can_have_made_it_anew(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    places = []
    for data in (b"x" * 1000, b"y" * 1000, b"z" * 1000):
        incoming = stage.shelf.incoming("w0", digest_of(data), 1000)
        assert incoming is not None
        with incoming:
            incoming.write(data)
            places.append((digest_of(data), Path(incoming.finish())))
    (first, gone), (second, stays), (third, _) = places
    stage.shelf.release(first)
    assert not gone.exists()
    stage.state.unfinished = 1
    stage.shelf.release(second)
    assert stays.exists(), "a task that runs may have been told that the master has it"
    stage.contents[second] = ContentRecord(second, 1000)
    stage.state.unfinished = 0
    stage.shelf.release(third)
    assert stays.exists(), "and so it was"
    del stage.contents[second]
    stage.shelf.release(second)
    assert not stays.exists()


def test_a_released_content_is_removed_after_a_while_also_if_nothing_else_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, now = Stage(tmp_path), [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    timers: list[tuple[float, Callable[[], None]]] = []
    stage.shelf.call_later = lambda delay_s, function: timers.append((now[0] + delay_s, function))
    stage.state.unfinished = 1
    places = []
    for number, data in enumerate((b"x" * 1000, b"y" * 1000)):
        incoming = stage.shelf.incoming("w0", digest_of(data), 1000)
        assert incoming is not None
        with incoming:
            incoming.write(data)
            places.append(Path(incoming.finish()))
        now[0] = 1000.0 + 100 * number
        stage.shelf.release(digest_of(data))
    assert [at for at, _ in timers] == [1000 + LATE_S], "one timer at a time"
    for left in ([places[1]], []):
        now[0], due = timers.pop()
        due()
        assert [place for place in places if place.exists()] == left
    assert not timers


def test_what_a_worker_holds_that_is_here_may_come_in_a_moment_but_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, now = Stage(tmp_path), [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    record = stage.contents["ab" * 32] = ContentRecord("ab" * 32, 1000)
    record.holders["w1"] = None
    record.maker = 1 << 32
    for _ in range(2):
        with pytest.raises(AskLater):
            stage.shelf.reading("w0", record.digest, 1000, True)
        now[0] += 60.0
    with pytest.raises(ContentAbsent, match="which task 1.0 made, was kept at w1, and could not be had from there"):
        stage.shelf.reading("w0", record.digest, 1000, True)
    record.holders["w1000"] = record.holders.pop("w1")
    with pytest.raises(ContentAbsent):
        stage.shelf.reading("w2", record.digest, 1000, True)


def in_thread(work: Callable[[], Any], orders: queue.Queue[Any]) -> Any:
    """Do the work in a thread, and meanwhile what it asks of the thread that owns the machine."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        future.add_done_callback(lambda _: orders.put(None))
        while (order := orders.get()) is not None:
            order()
        return future.result()


def test_threads_that_serve_transfers_never_touch_the_machine(tmp_path: Path) -> None:
    orders: queue.Queue[Any] = queue.Queue()
    stage = Stage(tmp_path, transfers=2, schedule=orders.put)
    digest = stage.add(b"x" * 1000)
    held = stage.contents["ab" * 32] = ContentRecord("ab" * 32, 1000)
    held.holders["w1"] = None
    in_thread(lambda: stage.shelf.reading("w0", digest, 1000, False).close(), orders)
    with pytest.raises(AskElsewhere):
        in_thread(lambda: stage.shelf.reading("w1", digest, 1000, False), orders)
    with pytest.raises(AskLater):
        in_thread(lambda: stage.shelf.reading("w0", held.digest, 1000, True), orders)
    incoming = in_thread(lambda: stage.shelf.incoming("w1", "cd" * 32, 1000), orders)
    incoming.close()
    assert in_thread(lambda: stage.shelf._site_of("w0"), orders) == "pond" and stage.shelf._site_of("nobody") == ""


def test_a_thread_that_waits_for_an_event_loop_that_ends_is_put_off(tmp_path: Path) -> None:
    scheduled: queue.Queue[Any] = queue.Queue()
    stage = Stage(tmp_path, schedule=scheduled.put)
    digest = stage.add(b"x" * 1000)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(stage.shelf.reading, "w0", digest, 1000, True)
        order = scheduled.get()
        stage.shelf.close()
        with pytest.raises(AskLater):
            waiting.result()
    order()  # too late: nobody waits for the answer
    with pytest.raises(AskLater):
        stage.shelf.reading("w0", digest, 1000, True)


def test_what_fails_on_the_event_loop_fails_in_the_thread_that_asked() -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        LoopCalls(lambda act: act()).call(fail)


def test_a_thread_does_not_wait_for_a_stuck_event_loop_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotfish.master.master_content_source.LOOK_UP_S", 0.01)
    scheduled: list[Any] = []
    with pytest.raises(AskLater):
        LoopCalls(scheduled.append).call(lambda: pytest.fail("nobody waits for it"))
    for act in scheduled:
        act()


def test_a_result_whose_worker_is_gone_comes_from_the_payload_store(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    result = os.urandom(100_000)
    digest = digest_of(result)
    left = {3: {RESULT: IntermediateFile(RESULT, 0, digest, len(result))}}
    run = SimpleNamespace(left_files=left)
    maker = SimpleNamespace(id=3, output=StoredPayload(1, 16, len(result)), shape=SimpleNamespace(run=run))
    stage.state.find_task = {3: maker}.get
    stage.contents[digest] = ContentRecord(digest, len(result), maker=3, at_master=True)
    loaded = []

    def load(output: Any) -> bytes:
        loaded.append(output)
        return result

    stage.shelf.load_output = load
    for _ in range(2):
        reading = stage.shelf.reading("w0", digest, len(result), True)
        reading.close()
    assert loaded == [maker.output], "then it is in the content store"
    stage.contents.clear()
    other = digest_of(b"other")
    stage.contents[other] = ContentRecord(other, len(result), maker=3, at_master=True)
    left[3][RESULT] = IntermediateFile(RESULT, 0, other, len(result))
    with pytest.raises(ContentAbsent):
        stage.shelf.reading("w0", other, len(result), True)
