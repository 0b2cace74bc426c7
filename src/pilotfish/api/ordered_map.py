"""Maps a function over inputs with results in order. A consumer that stops early cancels the rest."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from pilotfish.applications.python_call import chunked

Value = TypeVar("Value")
Submit = Callable[..., "Future[Any]"]


def map_by(
    submit: Submit, fn: Callable[..., Value], iterables: Sequence[Iterable[Any]], timeout: float | None, sizes: tuple[int, int | None]
) -> Iterator[Value]:
    """Returns the results of ``fn`` in order. ``sizes``: calls per task, and maximum tasks ahead of the consumer (None: no limit)."""
    chunksize, buffersize = sizes
    _check_sizes(chunksize, buffersize)
    rows = zip(*iterables, strict=False)
    if chunksize == 1:
        return _results((submit(fn, *row) for row in rows), timeout, buffersize)
    chunk = chunked(fn)
    lists = _results((submit(chunk, part) for part in _chunks(rows, chunksize)), timeout, buffersize)
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
    """Returns the results of futures in order. Reading from ``futures`` submits: all at once, or ``buffersize`` ahead."""
    deadline = None if timeout is None else time.monotonic() + timeout
    ahead = deque(itertools.islice(futures, buffersize))

    def draw() -> Iterator[Value]:
        try:
            while ahead:
                left = None if deadline is None else deadline - time.monotonic()
                first = [ahead.popleft()]
                if buffersize is not None:
                    ahead.extend(itertools.islice(futures, 1))
                # Holds no reference to the future or its result while the consumer uses the result.
                yield _result_or_cancel(first, left)
        finally:
            for future in ahead:
                future.cancel()

    return draw()
