"""``map`` over futures: results in order, cancelled behind a consumer who leaves, a bounded number ahead where asked."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

Value = TypeVar("Value")
Submit = Callable[..., "Future[Any]"]


def check_sizes(chunksize: int, buffersize: int | None) -> None:
    if chunksize < 1:
        raise ValueError("chunksize must be >= 1.")
    if buffersize is not None and (isinstance(buffersize, bool) or not isinstance(buffersize, int)):
        raise TypeError("buffersize must be an integer or None")
    if buffersize is not None and buffersize < 1:
        raise ValueError("buffersize must be None or > 0")


def chunks(rows: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
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


def results(futures: Iterator[Future[Value]], timeout: float | None, buffersize: int | None) -> Iterator[Value]:
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
