"""Futures as arguments: which of them are passed by the pool, which by value, and which cannot be passed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from pilotfish.api.executor import Executor
from pilotfish.api.run import Run
from pilotfish.errors import BadInput, TaskFailed
from pilotfish.model import messages as wire
from pilotfish.model.contents import RESULT, ExpectedFile
from pilotfish.model.task import DEPENDENCY, Failure
from tests.support.fake_slot import value_parcel
from tests.unit.api.test_executor import WAIT_S, FakePool


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePool]:
    made = FakePool(tmp_path / "pool")
    monkeypatch.setattr("pilotfish.api.executor.private_pool", lambda workers: made)
    yield made
    if made.master._thread.is_alive():
        made.master.kill()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[FakePool]:
    made = FakePool(tmp_path / "other")
    yield made
    if made.master._thread.is_alive():
        made.master.kill()


def submitted(pool: FakePool) -> list[wire.Submit]:
    return [message for message in pool.master.heard if isinstance(message, wire.Submit)]


def idle(pool: FakePool) -> None:
    pool.master.work = lambda spec, code, payload: None


def test_the_pool_passes_the_result_of_an_unfinished_task_of_the_same_run(pool: FakePool) -> None:
    idle(pool)
    run = Run(pool=pool)
    first = run.submit(abs, -1)
    run.options(after=[first]).submit(max, [first], {"deep": (first,)})
    run._session._register.flush()
    pool.master.wait_for(lambda: sum(len(message.tasks) for message in submitted(pool)) == 2)
    expected = {index: files for message in submitted(pool) for index, files in _by_index(message).items()}
    assert expected == {1: (ExpectedFile(0, RESULT, "0"),)}
    run.cancel()
    run.close()


def _by_index(message: wire.Submit) -> dict[int, tuple[ExpectedFile, ...]]:
    return {message.first + offset: files for offset, files in message.expected_files.items()}


def test_an_executor_sends_a_finished_result_itself_because_the_pool_may_have_dropped_it(pool: FakePool) -> None:
    with Executor() as executor:
        first = executor.submit(abs, -5)
        assert first.result(WAIT_S) == 5
        assert executor.submit(max, [first, 3], key=None).result(WAIT_S) == 5
    assert not any(message.expected_files for message in submitted(pool))


def test_a_run_names_a_finished_result_because_the_pool_keeps_it(pool: FakePool) -> None:
    with Run(pool=pool) as run:
        first = run.submit(abs, -5)
        assert first.result(WAIT_S) == 5
        idle(pool)
        run.submit(max, [first])
        pool.master.wait_for(lambda: any(message.expected_files for message in submitted(pool)))
        run.cancel()


def test_a_finished_result_of_another_pool_is_passed_by_value(pool: FakePool, other: FakePool) -> None:
    with Run(pool=other) as elsewhere, Executor() as executor:
        first = elsewhere.submit(abs, -5)
        assert first.result(WAIT_S) == 5
        assert executor.submit(pow, first, 2).result(WAIT_S) == 25


def test_an_unfinished_task_of_another_run_is_refused_with_the_fix(pool: FakePool, other: FakePool) -> None:
    idle(other)
    elsewhere = Run(pool=other)
    unfinished = elsewhere.submit(abs, -1)
    with Run(pool=pool) as run, pytest.raises(BadInput, match=r"a task of another run \(1\.0\)") as caught:
        run.submit(abs, unfinished)
    assert "submit both calls to the same Run or Executor" in caught.value.hint
    with Executor() as executor:
        error = executor.submit(abs, [unfinished]).exception(WAIT_S)
    assert isinstance(error, BadInput)
    elsewhere.cancel()
    elsewhere.close()


def test_an_unfinished_executable_is_refused_with_the_fix(pool: FakePool) -> None:
    idle(pool)
    run = Run(pool=pool)
    program = run.executable(["/bin/true"])
    with pytest.raises(BadInput, match="the future of an executable") as caught:
        run.submit(str, [program])
    assert "options(after=[future])" in caught.value.hint
    run.cancel()
    run.close()


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_error_of_an_argument_is_the_cause_of_the_error_of_the_call(pool: FakePool, other: FakePool, wrapped: bool) -> None:
    with Run(pool=other) as elsewhere, Executor() as executor:
        failed = elsewhere.submit(divmod, 1, 0)
        original = failed.exception(WAIT_S)
        assert isinstance(original, ZeroDivisionError)
        call = executor.submit(abs, [failed] if wrapped else failed)
        again = executor.submit(abs, call)
        for future in (call, again):
            error = future.exception(WAIT_S)
            assert isinstance(error, TaskFailed) and error.cause == DEPENDENCY
            assert str(error) == "task 1.0, which it needs, failed" and error.__cause__ is original


def test_the_master_reports_that_a_dependency_failed_and_the_original_error_is_chained(pool: FakePool) -> None:
    idle(pool)
    executor = Executor()
    first = executor.submit(divmod, 1, 0)
    second = executor.submit(abs, first)
    pool.master.wait_for(lambda: sum(len(message.tasks) for message in submitted(pool)) == 2)
    record = pool.book.by_number(1)
    pool.master.end(record, 0, Failure("exception", "task", "made up"), b"")
    pool.master.end(record, 1, Failure(DEPENDENCY, "task", "task 1.0, which it needs, failed"), b"")
    pool.master.tell_ended(record)
    error = second.exception(WAIT_S)
    assert isinstance(error, TaskFailed) and str(error) == "task 1.0, which it needs, failed"
    assert error.__cause__ is first.exception()
    executor.shutdown()


def test_a_call_with_a_cancelled_future_fails_at_once(pool: FakePool) -> None:
    idle(pool)
    executor = Executor()
    first = executor.submit(abs, -1)
    assert first.cancel()
    error = executor.submit(abs, first).exception(WAIT_S)
    assert isinstance(error, TaskFailed) and str(error) == "task 1.0, which it needs, was cancelled"
    assert isinstance(error.__cause__, CancelledError)
    executor.shutdown()


def test_no_result_is_confirmed_while_a_call_with_futures_is_being_submitted(pool: FakePool, monkeypatch: Any) -> None:
    monkeypatch.setattr("pilotfish.client.submission.CONFIRM_BYTES", 0)
    taken: list[int] = []

    class Slow:
        def __reduce__(self) -> Any:
            pool.master.end(record, 0, None, value_parcel(7))
            pool.master.tell_ended(record)
            assert first.result(WAIT_S) == 7
            taken.append(sum(isinstance(message, wire.Taken) for message in pool.master.heard))
            return str, ()

    idle(pool)
    executor = Executor()
    first = executor.submit(abs, -7)
    pool.master.wait_for(lambda: bool(submitted(pool)))
    record = pool.book.by_number(1)
    executor.submit(print, first, Slow())
    executor.submit(abs, 1)
    pool.master.wait_for(lambda: sum(len(message.tasks) for message in submitted(pool)) == 3)
    kinds = [type(message) for message in pool.master.heard if isinstance(message, wire.Submit | wire.Taken)]
    assert taken == [0]
    assert wire.Taken not in kinds[:2], "or the pool could drop the result before it knows that a call needs it"
    assert submitted(pool)[1].expected_files == {0: (ExpectedFile(0, RESULT, "0"),)}
    for index in (1, 2):
        pool.master.end(record, index, None, value_parcel(0))
    pool.master.tell_ended(record)
    executor.shutdown()
