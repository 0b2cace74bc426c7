"""Implements ``map``, ``starmap`` and ``imap_unordered``. Each submits one call per input.

If a program stops reading the results, the remaining tasks of an Executor are cancelled, as in the standard library. The remaining tasks of
a Run continue, because the run belongs to its pool.
"""

from __future__ import annotations

import itertools
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from pilotfish.applications.calls.python_call import chunked

Value = TypeVar("Value")


class Submits(Protocol):
    _cancels_rest: bool

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]: ...


class OrderedMap:
    """Adds ``map``, ``starmap`` and ``imap_unordered`` to classes that have ``submit``."""

    _cancels_rest = True
    """Whether the remaining tasks are cancelled if the program stops reading the results."""

    def map(
        self: Submits,
        fn: Callable[..., Value],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[Value]:
        """Submits one call of ``fn`` per input, as in the standard library. Returns an iterator over the results, in the order of the
        inputs.

        ``timeout``: maximum number of seconds to wait for all results, as in the standard library. ``chunksize``: number of calls per task;
        more than 1 is rarely needed. ``buffersize``: maximum number of submitted tasks whose results the program has not read yet.

        If the program stops reading, for example after Ctrl-C, an Executor cancels the remaining tasks. The remaining tasks of a Run
        continue; ``run.cancel()`` cancels them.
        """
        return OrderedMap.starmap(self, fn, zip(*iterables, strict=False), timeout=timeout, chunksize=chunksize, buffersize=buffersize)

    def starmap(
        self: Submits,
        fn: Callable[..., Value],
        rows: Iterable[Iterable[Any]],
        *,
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[Value]:
        """Submits one call ``fn(*row)`` per row. Returns an iterator over the results in the order of the rows. The options are as in
        ``map``."""
        futures = _submit_rows(self, fn, rows, chunksize, buffersize)
        results = _results(futures, timeout, buffersize, self._cancels_rest)
        return results if chunksize == 1 else itertools.chain.from_iterable(results)

    def imap_unordered(
        self: Submits,
        fn: Callable[..., Value],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[Value]:
        """Submits one call of ``fn`` per input. Returns an iterator that yields each result as soon as it arrives. The options are as in
        ``map``."""
        futures = _submit_rows(self, fn, zip(*iterables, strict=False), chunksize, buffersize)
        results = _unordered_results(futures, timeout, buffersize, self._cancels_rest)
        return results if chunksize == 1 else itertools.chain.from_iterable(results)


def _submit_rows(
    submitter: Submits, fn: Callable[..., Any], rows: Iterable[Iterable[Any]], chunksize: int, buffersize: int | None
) -> Iterator[Future[Any]]:
    """Yields one future per row, or per ``chunksize`` rows. Taking a future from the iterator submits its task."""
    _check_sizes(chunksize, buffersize)
    if chunksize == 1:
        return (submitter.submit(fn, *row) for row in rows)
    chunk = chunked(fn)
    return (submitter.submit(chunk, part) for part in _chunks(rows, chunksize))


def _check_sizes(chunksize: int, buffersize: int | None) -> None:
    if chunksize < 1:
        raise ValueError("chunksize must be >= 1.")
    if buffersize is not None and (isinstance(buffersize, bool) or not isinstance(buffersize, int)):
        raise TypeError("buffersize must be an integer or None")
    if buffersize is not None and buffersize < 1:
        raise ValueError("buffersize must be None or > 0")


def _chunks(rows: Iterable[Iterable[Any]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    rows = iter(rows)
    while chunk := [tuple(row) for row in itertools.islice(rows, size)]:
        yield chunk


def _take_result(holder: list[Future[Value]], timeout: float | None, cancel: bool) -> Value:
    """Takes the only future out of ``holder`` and waits for its result. ``cancel``: whether to cancel the future if no result arrives."""
    future = holder.pop()
    try:
        return future.result(timeout)
    finally:
        if cancel:
            future.cancel()
        del future


def _results(futures: Iterator[Future[Value]], timeout: float | None, buffersize: int | None, cancel: bool) -> Iterator[Value]:
    """Yields the results in the order of ``futures``. A task is submitted when its future is taken from ``futures``. At first,
    ``buffersize`` futures are taken. After that, one more future is taken each time the program asks for a result. If ``buffersize`` is
    None, all futures are taken at once.

    ``cancel``: whether to cancel the remaining futures if the program stops reading the results.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    ahead = deque(itertools.islice(futures, buffersize))

    def draw() -> Iterator[Value]:
        try:
            while ahead:
                left = None if deadline is None else deadline - time.monotonic()
                first = [ahead.popleft()]
                if buffersize is not None:
                    ahead.extend(itertools.islice(futures, 1))
                # _take_result empties the list ``first``. So while the program uses the result, this generator has no reference to it.
                yield _take_result(first, left, cancel)
        finally:
            for future in ahead if cancel else ():
                future.cancel()

    return draw()


def _unordered_results(futures: Iterator[Future[Value]], timeout: float | None, buffersize: int | None, cancel: bool) -> Iterator[Value]:
    """Yields each result as soon as it arrives. The number of submitted tasks whose results were not read yet is at most ``buffersize``."""
    deadline = None if timeout is None else time.monotonic() + timeout
    ended: queue.SimpleQueue[Future[Value]] = queue.SimpleQueue()
    unread: set[Future[Value]] = set()

    def submit(count: int | None) -> None:
        for future in itertools.islice(futures, count):
            unread.add(future)
            future.add_done_callback(ended.put)

    def draw() -> Iterator[Value]:
        try:
            while unread:
                try:
                    first = [ended.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))]
                except queue.Empty:
                    raise TimeoutError from None
                unread.discard(first[0])
                if buffersize is not None:
                    submit(1)
                yield _take_result(first, None, cancel)
        finally:
            for future in unread if cancel else ():
                future.cancel()

    submit(buffersize)
    return draw()
