from __future__ import annotations

import concurrent.futures
import gc
import io
import os
import pickle
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pilotfish
from pilotfish.api import executor as module
from pilotfish.api.executor import Executor, ExecutorBroken, LeftBehind
from pilotfish.client.pools import PoolHandle
from pilotfish.errors import BadInput, TaskFailed
from pilotfish.model import messages as wire
from pilotfish.model.task import Failure, TaskSpec
from pilotfish.portable.payload_format import REFERENCE_MARK
from tests.support.fake_master_server import Book, FakeMaster, Worked
from tests.support.fake_slot import do_task, value_parcel

WAIT_S = 30.0


class FakePool(PoolHandle):
    """A pool whose master is a thread of the test."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.book = Book()
        self.left: list[str] = []
        self.closed = threading.Event()
        self.master = self._make()

    def _make(self) -> FakeMaster:
        master = FakeMaster(self.directory, self.book, do_task)
        for kind in ("stop", "workers_set", "forget"):
            master.answers[kind] = lambda arguments: {}
        master.answers["status"] = lambda arguments: {"local_cores": 2}
        return master.start()

    def revive(self) -> None:
        self.master = self._make()

    def wait_until_stopped(self, timeout_s: float = 0.0) -> list[str]:
        self.closed.set()
        return self.left


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePool]:
    made = FakePool(tmp_path / "pool")
    monkeypatch.setattr(module, "private_pool", lambda workers: made)
    monkeypatch.setattr(module, "ensure_pool", lambda name: made)
    yield made
    if made.master._thread.is_alive():
        made.master.kill()


def asked(pool: FakePool) -> list[str]:
    return [message.kind for message in pool.master.heard if isinstance(message, wire.Ask)]


def test_a_call_runs_and_its_result_comes_back(pool: FakePool) -> None:
    with Executor(max_workers=3) as executor:
        future = executor.submit(divmod, 17, 5)
        assert future.result(WAIT_S) == (3, 2)
        assert future.task_id == "1.0"
        assert future.usage is not None
        assert future.usage.wall_us == 1500
    assert asked(pool) == ["stop"]
    assert pool.closed.is_set()


def test_an_exception_is_raised_with_the_traceback_it_had(pool: FakePool) -> None:
    with Executor() as executor, pytest.raises(ZeroDivisionError) as caught:
        executor.submit(divmod, 1, 0).result(WAIT_S)
    assert "ZeroDivisionError" in str(caught.value.__cause__)


def test_nothing_is_started_before_the_first_task(pool: FakePool) -> None:
    with Executor():
        pass
    assert not pool.master.heard
    assert not pool.closed.is_set()


def test_something_left_behind_is_an_error_of_the_with_block(pool: FakePool) -> None:
    pool.left = ["process 4711 (agent)"]
    with pytest.raises(LeftBehind, match="process 4711"), Executor() as executor:
        executor.submit(abs, -1)


def test_a_master_that_dies_is_invisible_but_for_the_delay(pool: FakePool) -> None:
    with Executor() as executor:
        before = [executor.submit(abs, -i) for i in range(100)]
        assert [future.result(WAIT_S) for future in before] == list(range(100))
        pool.master.kill()
        after = [executor.submit(abs, -i) for i in range(100)]
        assert [future.result(WAIT_S) for future in after] == list(range(100))


def test_cancel_reaches_the_master_and_those_who_wait(pool: FakePool) -> None:
    pool.master.work = lambda spec, code, payload: None
    with Executor() as executor:
        future = executor.submit(abs, -1)
        assert future.cancel()
        assert future.cancel()
        assert future.cancelled()
        done, _ = concurrent.futures.wait([future], WAIT_S)
        assert done == {future}
    pool.master.wait_for(lambda: "cancel" in asked(pool))
    assert pool.book.runs[next(iter(pool.book.runs))].final == {0}


def test_what_has_been_seen_running_cannot_be_cancelled(pool: FakePool) -> None:
    pool.master.work = lambda spec, code, payload: None
    pool.master.began_first = True
    executor = Executor()
    future = executor.submit(abs, -1)
    wait_for(future.running)
    assert not future.cancel()
    record = pool.book.by_number(1)
    pool.master.end(record, 0, None, value_parcel(1))
    pool.master.tell_ended(record)
    assert future.result(WAIT_S) == 1
    executor.shutdown()


def wait_for(condition: Any) -> None:
    tick = threading.Event()
    for _ in range(int(WAIT_S / 0.005)):
        if condition():
            return
        tick.wait(0.005)
    raise AssertionError("it never happened")


def test_a_task_cancelled_by_somebody_else_is_a_cancelled_future(pool: FakePool) -> None:
    pool.master.work = lambda spec, code, payload: None
    executor = Executor()
    future = executor.submit(abs, -1)
    assert executor._session is not None
    executor._session.client.ask("cancel", run=1)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(WAIT_S)
    executor.shutdown()


def test_what_cannot_be_pickled_fails_its_future_and_no_other(pool: FakePool) -> None:
    with Executor() as executor:
        bad = executor.submit(id, threading.Lock())
        good = executor.submit(abs, -1)
        assert isinstance(bad.exception(WAIT_S), (TypeError, pickle.PicklingError))
        assert good.result(WAIT_S) == 1


def test_a_failure_of_the_task_is_told_with_cause_and_hint(pool: FakePool) -> None:
    def run_out(spec: TaskSpec, code: bytes, payload: bytes) -> Worked:
        return Failure("oom", "task", "used 2 GiB of 1 GiB"), b""

    pool.master.work = run_out
    with Executor() as executor:
        error = executor.submit(abs, -1).exception(WAIT_S)
    assert isinstance(error, TaskFailed)
    assert error.cause == "oom"
    assert "memory" in error.hint


def test_map_keeps_the_order_and_chunks_are_one_task_each(pool: FakePool) -> None:
    with Executor() as executor:
        assert list(executor.map(pow, range(10), [2] * 10, chunksize=3)) == [i * i for i in range(10)]
        assert len(pool.book.by_number(1).tasks) == 4


def test_map_with_a_buffersize_runs_only_so_far_ahead(pool: FakePool) -> None:
    drawn: list[int] = []

    def numbers() -> Iterator[int]:
        for i in range(100):
            drawn.append(i)
            yield i

    with Executor() as executor:
        results = executor.map(abs, numbers(), buffersize=3)
        assert len(drawn) == 3
        assert next(results) == 0
        assert len(drawn) == 4
        assert list(results) == list(range(1, 100))
    with Executor() as executor, pytest.raises(ValueError, match="buffersize"):
        executor.map(abs, [1], buffersize=0)


def test_leaving_a_map_early_cancels_the_rest(pool: FakePool) -> None:
    pool.master.work = lambda spec, code, payload: do_task(spec, code, payload) if b"K\x00" in payload else None
    with Executor() as executor:
        results = executor.map(abs, range(50))
        assert next(results) == 0
        results.close()  # type: ignore[attr-defined]
        wait_for(lambda: len(pool.book.by_number(1).final) == 50)


def test_what_a_task_prints_appears_here(pool: FakePool, capsys: pytest.CaptureFixture[str]) -> None:
    pool.master.work = lambda spec, code, payload: (None, value_parcel(1, b"hello from there\n"))
    with Executor() as executor:
        future = executor.submit(abs, -1)
        assert future.result(WAIT_S) == 1
    assert capsys.readouterr().out == "hello from there\n"
    assert future.stdout == b"hello from there\n"
    with Executor(echo=False) as executor:
        executor.submit(abs, -1).result(WAIT_S)
    assert capsys.readouterr().out == ""


def test_an_executor_that_nobody_holds_ends_by_itself_after_its_last_task(pool: FakePool) -> None:
    executor = Executor()
    results = executor.map(abs, range(-5, 5))
    del executor
    gc.collect()
    assert pool.closed.wait(WAIT_S)
    assert list(results) == [5, 4, 3, 2, 1, 0, 1, 2, 3, 4]


def test_a_callback_may_submit_and_shut_down(pool: FakePool) -> None:
    executor = Executor()
    second: list[concurrent.futures.Future[Any]] = []

    def go_on(future: concurrent.futures.Future[Any]) -> None:
        second.append(executor.submit(abs, -2))
        executor.shutdown()

    executor.submit(abs, -1).add_done_callback(go_on)
    assert pool.closed.wait(WAIT_S)
    assert second[0].result(WAIT_S) == 2


def test_after_shutdown_nothing_is_taken(pool: FakePool) -> None:
    executor = Executor()
    executor.submit(abs, -1)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(abs, -1)
    executor.shutdown()


def test_a_broken_executor_says_so(pool: FakePool) -> None:
    def fail() -> None:
        raise ValueError("no licence")

    executor = Executor(initializer=fail)
    with pytest.raises(concurrent.futures.BrokenExecutor, match="no licence"):
        executor.submit(abs, -1).result(WAIT_S)
    wait_for(lambda: executor._broken)
    with pytest.raises(ExecutorBroken):
        executor.submit(abs, -1)
    executor.shutdown()
    assert pool.closed.is_set()


def test_an_initializer_goes_with_any_callable(pool: FakePool) -> None:
    with Executor(initializer=int) as executor:
        assert executor.submit(str.upper, "a").result(WAIT_S) == "A"
        assert executor.submit("b".upper).result(WAIT_S) == "B"
        assert list(executor.map(str.lower, ["C", "D"])) == ["c", "d"]


def test_a_function_that_ran_with_an_initializer_is_freed(pool: FakePool) -> None:
    def made() -> int:
        return 7

    gone = weakref.ref(made)
    with Executor(initializer=int) as executor:
        assert executor.submit(made).result(WAIT_S) == 7
        del made
        gc.collect()
        assert gone() is None


def test_in_a_shared_pool_the_run_is_closed_and_forgotten_and_the_pool_left_alone(pool: FakePool) -> None:
    with Executor(pool="default") as executor:
        assert executor.submit(abs, -1).result(WAIT_S) == 1
    assert "stop" not in asked(pool)
    assert asked(pool)[-1] == "forget"
    assert not pool.closed.is_set()


def test_a_forked_child_cannot_use_its_parents_executor_and_does_not_end_it(pool: FakePool) -> None:
    executor = Executor()
    assert executor.submit(abs, -1).result(WAIT_S) == 1
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            executor.submit(abs, -1)
        except pilotfish.PilotfishError as error:
            os.write(writing, str(error).encode())
        finally:
            executor.shutdown()
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as said:
        assert b"forked" in said.read()
    os.waitpid(child, 0)
    assert executor.submit(abs, -2).result(WAIT_S) == 2
    executor.shutdown()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ValueError])
def test_whatever_a_callback_raises_is_logged_and_all_else_goes_on(
    pool: FakePool, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    def fail(future: object) -> None:
        raise error

    ready, called = threading.Event(), threading.Event()

    def work(spec: TaskSpec, code: bytes, payload: bytes) -> Worked:
        ready.wait(WAIT_S)
        return do_task(spec, code, payload)

    pool.master.work = work
    with Executor() as executor:
        future = executor.submit(abs, -1)
        future.add_done_callback(fail)
        future.add_done_callback(lambda future: called.set())
        ready.set()
        assert executor.submit(abs, -2).result(WAIT_S) == 2
        assert (future.result(WAIT_S), called.wait(WAIT_S)) == (1, True)
    assert [(record.name, record.levelname) for record in caplog.records] == [("concurrent.futures", "ERROR")]


def test_a_callback_may_end_the_thread_that_adds_it_too_late(pool: FakePool) -> None:
    def fail(future: object) -> None:
        raise SystemExit

    with Executor() as executor:
        future = executor.submit(abs, -1)
        future.result(WAIT_S)
        with pytest.raises(SystemExit):
            future.add_done_callback(fail)


@pytest.mark.parametrize("failure", [None, Failure("exit", "task", "exit status 1")])
def test_a_large_result_whose_file_is_gone_is_told_to_be_gone(pool: FakePool, failure: Failure | None) -> None:
    gone = REFERENCE_MARK + bytes(16)
    pool.master.work = lambda spec, code, payload: (failure, gone)
    with Executor() as executor:
        with pytest.raises(TaskFailed) as raised:
            executor.submit(abs, -1).result(WAIT_S)
    assert str(raised.value) == (failure.message if failure else "the task succeeded, but the file with its result no longer exists")


def test_output_that_nobody_reads_any_more_does_not_keep_the_results(pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    pool.master.work = lambda spec, code, payload: (None, value_parcel(7, b"hello"))
    monkeypatch.setattr("sys.stdout", Broken())
    with Executor() as executor:
        assert executor.submit(abs, -1).result(WAIT_S) == 7


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"max_workers": 0}, ValueError, "max_workers must be greater than 0"),
        ({"initializer": 5}, TypeError, "initializer must be a callable"),
        ({"max_workers": 2, "pool": "default"}, BadInput, "max_workers: 2"),
        ({"memroy": "2 GiB"}, BadInput, "no option 'memroy'"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Executor(**arguments)


def test_wishes_hold_for_every_task(pool: FakePool) -> None:
    with Executor(cores=2, memory="1 GiB", time="5 min", retries=3) as executor:
        executor.submit(abs, -1).result(WAIT_S)
    spec, _ = pool.book.by_number(1).specs[0]
    assert (spec.request.cores, spec.request.memory, spec.time_s, spec.retries) == (2, 1 << 30, 300, 3)


def test_libraries_can_read_the_number_of_cores(pool: FakePool) -> None:
    assert Executor(max_workers=3)._max_workers == 3
    assert Executor()._max_workers == len(os.sched_getaffinity(0))
    pool.master.answers["status"] = lambda arguments: {"local_cores": 2, "cores": 34}
    with Executor(pool="default") as executor:
        assert executor._max_workers == 34


def test_libraries_read_the_number_of_cores_of_the_sites_of_the_executor(pool: FakePool) -> None:
    def row(site: str, cores: float, connected: bool = True) -> dict[str, Any]:
        return {"site": site, "connected": connected, "capacity": {"cores": cores}}

    pool.master.answers["workers"] = lambda arguments: [
        row("local", 2.0),
        row("hpc", 4.0),
        row("hpc", 8.0),
        row("hpc", 16.0, connected=False),
    ]
    pool.master.answers["status"] = lambda arguments: {"local_cores": 3, "cores": 14}
    for sites, cores in ((("hpc",), 12), (("local",), 3), (("hpc", "local"), 14), ((), 14)):
        executor = Executor(pool="default")
        executor._start().sites = sites
        assert executor._max_workers == cores
        executor.shutdown()


def test_sites_mean_a_pool_of_the_user(pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = tmp_path / "sites.toml"
    sites.write_text('[hpc]\nbackend = "slurm"\n')
    monkeypatch.setattr("pilotfish.client.descriptions.site_selection.sites_path", lambda: sites)
    for kind in ("sites_reread", "site_use"):
        pool.master.answers[kind] = lambda arguments: {}
    with Executor(sites=["hpc:2", "local"]) as executor:
        assert executor.submit(abs, -1).result(WAIT_S) == 1
    record = pool.book.by_number(1)
    assert record.options.sites == ("hpc", "local") and record.options.owned
    assert [message.arguments for message in pool.master.heard if isinstance(message, wire.Ask) and message.kind == "site_use"] == [
        {"site": "hpc", "pilots": 2}
    ]
    with pytest.raises(BadInput, match="there is no site 'hcp'"):
        Executor(sites="hcp")
    with pytest.raises(BadInput, match=r"sites='hpc' was given too"):
        Executor(2, sites="hpc")
