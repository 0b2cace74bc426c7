"""starmap and imap_unordered of everything that submits calls."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pilotfish.api.ordered_map import OrderedMap


class Pool(OrderedMap):
    """Submits calls to threads. If ``held``, the test ends the futures itself."""

    def __init__(self, held: bool = False) -> None:
        self.threads = ThreadPoolExecutor(2)
        self.held = held
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = Future[Any]() if self.held else self.threads.submit(fn, *args, **kwargs)
        self.futures.append(future)
        return future


def numbers(drawn: list[int]) -> Iterator[int]:
    for i in range(20):
        drawn.append(i)
        yield i


@pytest.mark.parametrize("chunksize", [1, 3])
def test_starmap_calls_with_the_values_of_each_row_and_keeps_the_order(chunksize: int) -> None:
    rows: list[Any] = [(2, 3), [4, 2], iter((5, 1)), (3, 3)]
    assert list(Pool().starmap(pow, rows, chunksize=chunksize)) == [8, 16, 5, 27]


@pytest.mark.parametrize("chunksize", [1, 3])
def test_imap_unordered_gives_every_result_once(chunksize: int) -> None:
    assert sorted(Pool().imap_unordered(pow, range(10), [2] * 10, chunksize=chunksize)) == [i * i for i in range(10)]


def test_imap_unordered_gives_results_in_the_order_in_which_the_calls_end() -> None:
    pool = Pool(held=True)
    results = pool.imap_unordered(abs, range(3))
    assert len(pool.futures) == 3, "they are submitted at once"
    for place in (2, 0, 1):
        pool.futures[place].set_result(place)
        assert next(results) == place
    assert list(results) == []


def test_imap_unordered_submits_only_so_far_ahead() -> None:
    drawn: list[int] = []
    results = Pool().imap_unordered(abs, numbers(drawn), buffersize=3)
    assert len(drawn) == 3
    next(results)
    assert len(drawn) == 4
    assert len(list(results)) == 19


def test_whoever_stops_reading_cancels_the_other_calls() -> None:
    pool = Pool(held=True)
    results = pool.imap_unordered(abs, range(3))
    pool.futures[1].set_result(1)
    assert next(results) == 1
    results.close()  # type: ignore[attr-defined]
    assert [future.cancelled() for future in pool.futures] == [True, False, True]


def test_an_error_is_raised_and_the_other_calls_are_cancelled() -> None:
    pool = Pool(held=True)
    results = pool.imap_unordered(abs, range(2))
    pool.futures[0].set_exception(KeyError("x"))
    with pytest.raises(KeyError):
        next(results)
    assert pool.futures[1].cancelled()


def test_a_timeout_counts_from_the_call() -> None:
    pool = Pool(held=True)
    with pytest.raises(TimeoutError):
        next(pool.imap_unordered(abs, [1], timeout=0.01))


@pytest.mark.parametrize("wrong", [{"chunksize": 0}, {"buffersize": 0}])
def test_sizes_are_checked_when_called(wrong: dict[str, int]) -> None:
    for method in (Pool().starmap, Pool().imap_unordered):
        with pytest.raises(ValueError, match="must be"):
            method(abs, [(1,)], **wrong)
