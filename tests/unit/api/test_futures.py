"""Futures of tasks: they behave as those of the standard library, and a pending one needs little memory."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError, as_completed, wait
from typing import Any, cast

import pytest

from pilotfish.api.futures import TaskFuture


def pending() -> TaskFuture[Any]:
    return TaskFuture(cast("Any", None))


def test_a_pending_future_has_all_attributes_of_the_standard_library_and_no_condition_of_its_own() -> None:
    future = pending()
    standard = vars(Future())
    assert {name for name in standard if not hasattr(future, name)} == set()
    assert {name: getattr(future, name) for name in standard if name != "_condition"} == {
        name: value for name, value in standard.items() if name != "_condition"
    }
    assert not any(isinstance(value, threading.Condition) for value in vars(pending()).values())


def test_threads_that_wait_at_the_same_time_share_one_condition() -> None:
    for _ in range(50):
        future, start = pending(), threading.Barrier(4)
        seen: list[Any] = []

        def look(future: Future[Any] = future, start: threading.Barrier = start, seen: list[Any] = seen) -> None:
            start.wait()
            seen.append(future._condition)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(condition) for condition in seen}) == 1


def test_a_thread_that_waits_gets_the_result_that_another_sets() -> None:
    future = pending()
    got: list[int] = []
    waiting = threading.Thread(target=lambda: got.append(future.result(60)))
    waiting.start()
    future.set_result(3)
    waiting.join()
    assert got == [3]


def test_waiting_for_many_and_in_order_of_completion_works() -> None:
    futures = [pending() for _ in range(5)]
    for number in (3, 1):
        futures[number].set_result(number)
    done, rest = wait(futures, timeout=0)
    assert {future.result() for future in done} == {1, 3} and len(rest) == 3
    for number in (0, 2, 4):
        futures[number].set_exception(ValueError(number))
    assert len(list(as_completed(futures, timeout=60))) == 5
    with pytest.raises(ValueError, match="4"):
        futures[4].result()


def test_a_result_that_nobody_waits_for_needs_no_condition() -> None:
    future = pending()
    future.set_result(3)
    assert (future.done(), future.result(), "_condition" in vars(future)) == (True, 3, False)
    with pytest.raises(InvalidStateError):
        future.set_result(4)
    seen: list[int] = []
    future.add_done_callback(lambda ended: seen.append(ended.result()))
    assert seen == [3] and not future.cancel()


def test_no_result_is_missed_by_a_thread_that_looks_at_the_moment_of_its_arrival() -> None:
    for _ in range(300):
        future, start = pending(), threading.Barrier(3)
        called: list[int] = []
        got: list[int] = []

        def look(future: Future[int] = future, start: threading.Barrier = start, got: list[int] = got) -> None:
            start.wait()
            got.append(future.result(60))

        def call_back(future: Future[int] = future, start: threading.Barrier = start, called: list[int] = called) -> None:
            start.wait()
            future.add_done_callback(lambda ended: called.append(ended.result()))

        threads = [threading.Thread(target=work) for work in (look, call_back)]
        for thread in threads:
            thread.start()
        start.wait()
        future.set_result(3)
        for thread in threads:
            thread.join()
        assert got == called == [3]
