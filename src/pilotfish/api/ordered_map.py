"""Maps a function over inputs; the results come in order. If the consumer stops early, the remaining tasks are cancelled."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from pilotfish.applications.python_call import chunked

Value = TypeVar("Value")


class Submits(Protocol):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]: ...


class OrderedMap:
    """Adds ``map`` to classes that have ``submit``."""

    def map(
        self: Submits,
        fn: Callable[..., Value],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[Value]:
        """Returns the results of ``fn`` in order, as in the standard library.

        ``chunksize``: number of calls per task; more than 1 is rarely needed. ``buffersize``: maximum number of submitted tasks whose
        results the program has not taken yet.
        """
        _check_sizes(chunksize, buffersize)
        rows = zip(*iterables, strict=False)
        if chunksize == 1:
            return _results((self.submit(fn, *row) for row in rows), timeout, buffersize)
        chunk = chunked(fn)
        lists = _results((self.submit(chunk, part) for part in _chunks(rows, chunksize)), timeout, buffersize)
        return itertools.chain.from_iterable(lists)


def _check_sizes(chunksize: int, buffersize: int | None) -> None:
    if chunksize < 1:
        raise ValueError("chunksize must be >= 1.")
    if buffersize is not None and (isinstance(buffersize, bool) or not isinstance(buffersize, int)):
        raise TypeError("buffersize must be an integer or None")
    if buffersize is not None and buffersize < 1:
        raise ValueError("buffersize must be None or > 0")


def _chunks(rows: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    rows = iter(rows)
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


def _result_or_cancel(holder: list[Future[Value]], timeout: float | None) -> Value:
    future = holder.pop()
    try:
        return future.result(timeout)
    finally:
        future.cancel()
        del future


def _results(futures: Iterator[Future[Value]], timeout: float | None, buffersize: int | None) -> Iterator[Value]:
    """Returns the results in order. Each step of ``futures`` submits a task: all tasks at once, or at most ``buffersize`` in advance."""
    deadline = None if timeout is None else time.monotonic() + timeout
    ahead = deque(itertools.islice(futures, buffersize))

    def draw() -> Iterator[Value]:
        try:
            while ahead:
                left = None if deadline is None else deadline - time.monotonic()
                first = [ahead.popleft()]
                if buffersize is not None:
                    ahead.extend(itertools.islice(futures, 1))
                # ``first`` is emptied, so that this generator refers to neither future nor result while the consumer uses the result.
                yield _result_or_cancel(first, left)
        finally:
            for future in ahead:
                future.cancel()

    return draw()
