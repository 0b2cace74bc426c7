from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pilotfish.applications.application_manager import ApplicationManager, ApplicationWorker, TaskDone
from pilotfish.applications.task_list import TaskList
from pilotfish.client.application_host import ApplicationHost, host
from pilotfish.client.session import PoolSession
from pilotfish.errors import BadInput, ConnectionFailed
from pilotfish.model import messages as wire
from pilotfish.model.task import RunOptions
from tests.support.fake_master_server import Book, FakeMaster, RunRecord
from tests.support.fake_slot import do_task


class Doubler(ApplicationWorker):
    def do_work(self, parameters: Any) -> Any:
        return 2 * parameters


class Growing(ApplicationManager):
    """Every result below a limit becomes a new task."""

    worker = Doubler

    def __init__(self, limit: int = 1000) -> None:
        self.limit = limit
        self.seen: list[Any] = []
        self.calls: list[str] = []

    def initialize(self, tasks: TaskList) -> None:
        self.calls.append("initialize")
        tasks.work(1)
        tasks.work(3)

    def tasks_done(self, done: Sequence[TaskDone], tasks: TaskList) -> None:
        self.calls.append("tasks_done")
        for task in done:
            self.seen.append(task.value)
            if task.value < self.limit:
                tasks.work(task.value)

    def finalize(self) -> None:
        self.calls.append("finalize")


EXPECTED = sorted([2**i for i in range(1, 11)] + [3 * 2**i for i in range(1, 10)])


@pytest.fixture
def book() -> Book:
    return Book()


def run_with(directory: Path, book: Book, manager: ApplicationManager) -> FakeMaster:
    master = FakeMaster(directory, book, do_task).start()
    client = PoolSession.connect(directory)
    try:
        ApplicationHost(client, client.open_run("u", RunOptions()), manager).run()
    finally:
        client.close()
        master.kill()
    return master


def test_a_manager_makes_tasks_of_results_until_there_are_none(tmp_path: Path, book: Book) -> None:
    manager = Growing()
    run_with(tmp_path / "pool", book, manager)
    assert sorted(manager.seen) == EXPECTED
    assert (manager.calls[0], manager.calls[-1]) == ("initialize", "finalize")
    record = book.runs["u"]
    assert record.closed
    assert record.advanced == len(record.tasks) == len(EXPECTED)


def test_new_tasks_and_the_advance_are_in_one_frame(tmp_path: Path, book: Book) -> None:
    master = run_with(tmp_path / "pool", book, Growing())
    submits = [message for message in master.heard if isinstance(message, wire.Submit)]
    assert submits[0].advance == 0
    assert len(submits[0].tasks) == 2
    assert [message.advance for message in submits] == sorted(message.advance for message in submits)
    assert all(message.advance > 0 for message in submits[1:])


class Killed(BaseException):
    """Stands for a kill -9 of the manager's process."""


class Dying(Growing):
    """Dies inside a callback, before its answer is sent."""

    def __init__(self, calls_to_live: int) -> None:
        super().__init__()
        self.calls_to_live = calls_to_live
        self.restored: list[Any] = []

    def resume(self, done: Sequence[TaskDone]) -> None:
        self.calls.append("resume")
        self.restored.extend(task.value for task in done)

    def tasks_done(self, done: Sequence[TaskDone], tasks: TaskList) -> None:
        super().tasks_done(done, tasks)
        self.calls_to_live -= 1
        if self.calls_to_live == 0:
            raise Killed


@pytest.mark.parametrize("calls_to_live", [1, 2, 4, 7])
def test_a_manager_that_dies_goes_on_exactly_where_its_answers_were_written_down(tmp_path: Path, book: Book, calls_to_live: int) -> None:
    with pytest.raises(Killed):
        run_with(tmp_path / "pool", book, Dying(calls_to_live))
    known = book.runs["u"].advanced
    second = Dying(-1)
    run_with(tmp_path / "pool", book, second)
    assert "initialize" not in second.calls
    assert second.calls[0] == "resume"  # also if no task was processed
    assert len(second.restored) == known
    assert sorted(second.restored + second.seen) == EXPECTED
    assert len(book.runs["u"].tasks) == len(EXPECTED)


def test_a_manager_that_dies_in_initialize_is_initialized_again(tmp_path: Path, book: Book) -> None:
    class DiesAtOnce(Growing):
        def initialize(self, tasks: TaskList) -> None:
            super().initialize(tasks)
            raise Killed

    with pytest.raises(Killed):
        run_with(tmp_path / "pool", book, DiesAtOnce())
    assert not book.runs["u"].tasks
    manager = Growing()
    run_with(tmp_path / "pool", book, manager)
    assert sorted(manager.seen) == EXPECTED


def test_without_resume_the_old_results_are_not_even_read(tmp_path: Path, book: Book) -> None:
    class Forgetful(Growing):
        def tasks_done(self, done: Sequence[TaskDone], tasks: TaskList) -> None:
            super().tasks_done(done, tasks)
            if book.runs["u"].advanced > 3:
                raise Killed

    with pytest.raises(Killed):
        run_with(tmp_path / "pool", book, Forgetful())
    known = book.runs["u"].advanced
    master = run_with(tmp_path / "pool", book, Growing())
    (watch,) = [message for message in master.heard if isinstance(message, wire.Watch)]
    assert watch.cursor == known


def test_results_count_as_dealt_with_when_their_post_processing_is_through(tmp_path: Path, book: Book) -> None:
    advanced_while_posting: list[int] = []

    class Posting(Growing):
        def tasks_done(self, done: Sequence[TaskDone], tasks: TaskList) -> None:
            for task in done:
                tasks.post(self.merge, task, tasks)

        def merge(self, task: TaskDone, tasks: TaskList) -> None:
            assert threading.current_thread() is not threading.main_thread()
            advanced_while_posting.append(book.runs["u"].advanced)
            self.seen.append(task.value)
            if task.value < self.limit:
                tasks.work(task.value)

    manager = Posting()
    run_with(tmp_path / "pool", book, manager)
    assert sorted(manager.seen) == EXPECTED
    assert max(advanced_while_posting) < len(EXPECTED)
    assert book.runs["u"].advanced == len(EXPECTED)


def test_a_run_stays_open_while_more_work_may_come_from_another_thread(tmp_path: Path, book: Book) -> None:
    class Fed(ApplicationManager):
        def __init__(self) -> None:
            self.seen: list[Any] = []
            self.more = True

        def initialize(self, tasks: TaskList) -> None:
            self.feeder = threading.Thread(target=self.feed, args=(tasks,))
            self.feeder.start()

        def feed(self, tasks: TaskList) -> None:
            for i in range(10):
                tasks.call(abs, -i)
            self.more = False

        def has_more_work(self) -> bool:
            return self.more

        def tasks_done(self, done: Sequence[TaskDone], tasks: TaskList) -> None:
            self.seen.extend(task.value for task in done)

        def finalize(self) -> None:
            self.feeder.join()

    manager = Fed()
    run_with(tmp_path / "pool", book, manager)
    assert sorted(manager.seen) == list(range(10))


def test_failed_tasks_are_told_with_their_error(tmp_path: Path, book: Book) -> None:
    class Failing(ApplicationManager):
        def initialize(self, tasks: TaskList) -> None:
            tasks.call(divmod, 1, 0)
            tasks.add(["/bin/sh", "-c", "exit 4"])
            tasks.add(["/bin/echo", "hello"], after=[0])

        def tasks_done(self, done: Sequence[TaskDone], tasks: TaskList) -> None:
            ended.extend(done)

    ended: list[TaskDone] = []
    run_with(tmp_path / "pool", book, Failing())
    assert [task.state for task in ended] == ["failed", "failed", "done"]
    assert isinstance(ended[0].error, ZeroDivisionError)
    assert "exit status 4" in str(ended[1].error)
    assert ended[2].value.stdout == b"hello\n"
    assert book.runs["u"].deps[2] == [0]


def test_a_lost_advance_without_tasks_is_said_again(tmp_path: Path, book: Book) -> None:
    directory = tmp_path / "pool"
    master = FakeMaster(directory, book, do_task).start()

    def revive() -> None:
        FakeMaster(directory, book, do_task).start()

    client = PoolSession.connect(directory, revive)
    run = client.open_run("u", RunOptions())
    tasks = TaskList()
    tasks.call(abs, -1)
    client.submit_whole(run, tasks, tasks.take(), 0)
    client.ask("cancel", run=1)
    master.swallow = lambda message: isinstance(message, wire.Submit)
    client.submit_whole(run, tasks, [], 1)
    master.wait_for(lambda: not master._peers)
    master.kill()
    client.ask("cancel", run=1)
    client.ask("cancel", run=1)
    assert book.runs["u"].advanced == 1
    client.close()


RUN_FILE = """
from pilotfish import ApplicationManager

class Broken(ApplicationManager):
    def initialize(self, tasks):
        import sys
        raise RuntimeError(f"I have no plan for {sys.argv[1:]}")

manager = Broken()
"""


def test_a_manager_that_raises_ends_its_run_with_a_traceback(
    tmp_path: Path, book: Book, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setattr("sys.argv", list(sys.argv))
    directory, file = tmp_path / "pool", tmp_path / "broken.py"
    file.write_text(RUN_FILE)
    book.runs["u"] = RunRecord(1, "u", RunOptions())
    master = FakeMaster(directory, book, do_task)
    master.answers["run"] = lambda arguments: {"cwd": str(tmp_path), "command": "broken.py one 'two three'"}
    master.start()
    monkeypatch.chdir("/")
    assert host(directory, "u", file) == 1
    assert Path.cwd() == tmp_path
    assert "RuntimeError: I have no plan for ['one', 'two three']" in capsys.readouterr().err
    assert [message.kind for message in master.heard if isinstance(message, wire.Ask)] == ["run", "cancel"]
    master.kill()
    assert host(directory, "u", file) == 1
    assert "no master answers" in capsys.readouterr().err


def test_a_host_without_its_master_gives_up(tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailed):
        PoolSession.connect(tmp_path)


def test_work_without_a_worker_is_refused() -> None:
    with pytest.raises(BadInput, match="has no worker"):
        TaskList().work(1)


def test_a_dependency_on_a_later_task_is_refused() -> None:
    tasks = TaskList()
    tasks.call(abs, -1)
    with pytest.raises(BadInput, match="after: 1 is not the index"):
        tasks.add(["true"], after=[1])


def test_a_task_with_a_destination_outside_is_not_added() -> None:
    tasks = TaskList()
    with pytest.raises(BadInput, match="leads out of the directory"):
        tasks.add(["echo"], outputs={"a": "/x"})
    assert len(tasks) == 0 and not tasks.take()
