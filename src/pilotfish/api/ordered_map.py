"""``map`` over futures: results in order, cancelled behind a consumer who leaves, a bounded number ahead where asked."""

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
    """The results of ``fn`` over the iterables, in order; ``sizes``: of a chunk, and of what may be under way (None: everything)."""
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
    """The results of futures in order. ``futures`` submits as it is drawn from: all at once, or ``buffersize`` ahead."""
    deadline = None if timeout is None else time.monotonic() + timeout
    ahead = deque(itertools.islice(futures, buffersize))

    def draw() -> Iterator[Value]:
        try:
            while ahead:
                left = None if deadline is None else deadline - time.monotonic()
                first = [ahead.popleft()]
                if buffersize is not None:
                    ahead.extend(itertools.islice(futures, 1))
                # Neither the future nor its result is held while the consumer has it.
                yield _result_or_cancel(first, left)
        finally:
            for future in ahead:
                future.cancel()

    return draw()
