"""Sends chunks to workers, times and repeats them: idle workers also get the units of late chunks."""

from __future__ import annotations

import math
import queue
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pilotfish.api.executor import CANNOT_SEND
from pilotfish.api.futures import TaskFuture
from pilotfish.api.run import Run
from pilotfish.applications.python_call import CallEncoder
from pilotfish.applications.task_options import TaskOptions
from pilotfish.errors import BadInput, PilotfishError, TaskFailed
from pilotfish.portable.expressions.evaluation import parse

TICK_S = 0.1
EXPLAIN_AFTER_S = 3.0
"""Seconds until the user is told why no chunk has started."""
LATE_RATIO = 3.0
"""Ratio of elapsed to expected time above which a chunk is late."""
GRACE_S = 1.0
"""Additional seconds until a chunk is late, and seconds between two searches for idle workers."""
Arguments = Callable[[int, int], tuple[Any, ...]]
"""Returns the arguments of the function for units start to stop."""


@dataclass(slots=True, eq=False)
class Chunk:
    start: int
    stop: int
    worker: str = ""
    """The intended worker; after the end, the worker that did it."""
    avoid: str = ""
    future: TaskFuture[Any] | None = None
    sent_at: float = 0.0
    looked_at: float = 0.0
    moved_bytes: int = 0
    ended: bool = False
    total_s: float = 0.0
    compute_s: float = 0.0
    value: Any = None
    replacements: list[Chunk] = field(default_factory=list)
    """The same units in chunks for idle workers, because this chunk is late."""

    @property
    def units(self) -> int:
        return self.stop - self.start

    @property
    def done(self) -> bool:
        return self.ended or (bool(self.replacements) and all(chunk.ended for chunk in self.replacements))

    @property
    def counted(self) -> list[Chunk]:
        return [self] if self.ended else self.replacements


def consecutive_chunks(sizes: Sequence[int], workers: Sequence[str], start: int) -> list[Chunk]:
    """Makes consecutive chunks, one for each worker with units."""
    chunks = []
    for size, worker in zip(sizes, workers, strict=True):
        if size > 0:
            chunks.append(Chunk(start, start + size, worker))
            start += size
    return chunks


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function to return its worker and duration, too. Defined here because slots do not have this package."""

    def run_chunk(*arguments: Any) -> tuple[Any, str, float]:
        import contextlib
        import os
        import time

        worker = os.environ.get("PILOTFISH_WORKER", "")
        begun = time.perf_counter()
        try:
            value = function(*arguments)
        except BaseException as error:
            with contextlib.suppress(AttributeError, TypeError):
                error.pilotfish_worker = worker  # type: ignore[attr-defined]
            raise
        return value, worker, time.perf_counter() - begun

    run_chunk.__name__ = run_chunk.__qualname__ = f"{getattr(function, '__name__', 'call')} (chunk)"
    return run_chunk


class ChunkWorkers:
    """The workers of a run, each with its chunks of a load."""

    def __init__(self, run: Run, function: Callable[..., Any], options: TaskOptions, progress: bool) -> None:
        self._session = run._session
        self._why = run.why
        self._function = timed(function)
        self._options = options
        self._sites = run._session.upload.sites
        self._calls: dict[tuple[str, str], CallEncoder] = {}
        self._shows_progress = progress and sys.stderr is not None and sys.stderr.isatty()
        self.benchmarks: dict[str, float] = {}
        """Speed of each worker by the benchmark at its start; the median over equal processors."""

    def slots(self) -> list[str]:
        """Returns the connected workers; each is listed once per chunk that it can run at the same time."""
        rows = [
            row
            for row in self._session.session.ask("workers")
            if row["connected"] and row["state"] in ("idle", "busy") and self._qualifies(row)
        ]
        self.benchmarks = _benchmarks(rows)
        return [row["worker"] for row in rows for _ in range(self._slot_count(row["capacity"]))]

    def _qualifies(self, row: Mapping[str, Any]) -> bool:
        options = self._options
        if self._sites and row["site"] not in self._sites:
            return False
        if any(row["tags"].get(name) != value for name, value in options.tags.items()):
            return False
        return not options.requirement or parse(options.requirement).holds(row["properties"])

    def _slot_count(self, capacity: Mapping[str, float]) -> int:
        return min((int(capacity.get(name, 0) / amount + 1e-6) for name, amount in self._options.request.amounts()), default=1)

    def wait_for_slots(self, timeout_s: float) -> list[str]:
        """Returns the connected workers; waits up to ``timeout_s`` seconds for the first."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.slots()) and time.monotonic() < deadline:
            time.sleep(TICK_S)
        return found

    # --- one round of chunks ----------------------------------------------------------------------------------------------------------

    def do(
        self, chunks: list[Chunk], arguments: Arguments, title: str, planned_s: float, divide_late_chunk: Callable[[Chunk, list[str]], None]
    ) -> None:
        """Executes all chunks. ``divide_late_chunk`` gets each late chunk with the idle workers and may set ``replacements``."""
        ends: queue.SimpleQueue[tuple[Chunk, float]] = queue.SimpleQueue()
        sent: list[Chunk] = []
        begun = time.monotonic()
        explained = False
        try:
            for chunk in chunks:
                sent.append(chunk)
                self._send(chunk, arguments, ends)
            while not all(chunk.done for chunk in chunks):
                self._draw_progress(title, chunks)
                try:
                    self._record_end(*ends.get(timeout=TICK_S), title)
                except queue.Empty:
                    explained = explained or self._explain_wait(begun, chunks)
                    for chunk in _late_chunks(chunks, planned_s):
                        divide_late_chunk(chunk, self._idle(chunk, chunks))
                        for part in chunk.replacements:
                            sent.append(part)
                            self._send(part, arguments, ends)
        finally:
            # Cancels late chunks that were replaced and, after an error or Ctrl-C, all others: their results are not needed.
            self._cancel_unfinished([chunk for chunk in sent if not chunk.ended])
            self._clear_progress()

    def _send(self, chunk: Chunk, arguments: Arguments, ends: queue.SimpleQueue[tuple[Chunk, float]]) -> None:
        future: TaskFuture[Any] = TaskFuture(self._session)
        try:
            spec, payload = self._calls_for(chunk).encode(self._function, arguments(chunk.start, chunk.stop), {})
        except CANNOT_SEND as error:
            what = f"units {chunk.start:,} to {chunk.stop - 1:,} cannot be sent: {type(error).__name__}: {error}"
            raise BadInput(what, "cut, state and the function must be such that they can be pickled") from error
        chunk.moved_bytes = len(payload) if isinstance(payload, bytes) else sum(memoryview(part).nbytes for part in payload)
        chunk.future, chunk.sent_at = future, time.monotonic()
        self._session.submit(future, spec, payload)
        future.add_done_callback(lambda _: ends.put((chunk, time.monotonic())))

    def _calls_for(self, chunk: Chunk) -> CallEncoder:
        """Uses a rank, not a requirement: if the worker is gone or full, another one is better than none."""
        key = chunk.worker, chunk.avoid
        if key not in self._calls:
            conditions = [f"({self._options.requirement})"] if self._options.requirement else []
            if chunk.avoid:
                conditions.append(f"worker != {_quoted(chunk.avoid)}")
            options = msgspec.structs.replace(
                self._options,
                requirement=" and ".join(conditions),
                rank=f"worker == {_quoted(chunk.worker)}" if chunk.worker else "",
            )
            self._calls[key] = CallEncoder(self._session.register, options)
        return self._calls[key]

    def _record_end(self, chunk: Chunk, at: float, title: str) -> None:
        assert chunk.future is not None
        if chunk.future.cancelled():
            raise TaskFailed(f"{title}, units {chunk.start:,} to {chunk.stop - 1:,}: the task {chunk.future.task_id} was cancelled")
        error = chunk.future.exception()
        if isinstance(error, PilotfishError) and not isinstance(error, TaskFailed):
            raise error  # an error of the pool, not of the chunk
        if error is not None:
            where = getattr(error, "pilotfish_worker", "") or chunk.worker
            place = f"{title}, units {chunk.start:,} to {chunk.stop - 1:,}" + (f", at worker {where}" if where else "")
            hint = getattr(error, "hint", "") or f"its task: pilotfish logs {chunk.future.task_id}"
            message = str(error) if isinstance(error, TaskFailed) else f"{type(error).__name__}: {error}"
            raise TaskFailed(f"{place}: {message}", hint, getattr(error, "cause", "exception")) from error
        chunk.value, worker, chunk.compute_s = chunk.future.result()
        chunk.worker = worker or chunk.worker
        chunk.total_s = at - chunk.sent_at
        item = chunk.future._ended
        chunk.moved_bytes += item.length if item is not None else 0
        chunk.ended = True

    def _idle(self, late_chunk: Chunk, chunks: Sequence[Chunk]) -> list[str]:
        """Returns idle workers for a late chunk and sets ``avoid`` to its worker; empty if the chunk is not running."""
        assert late_chunk.future is not None
        late_chunk.looked_at = time.monotonic()
        late_chunk.avoid = self._session.session.ask("task", task=late_chunk.future.task_id)["worker"] or ""
        if not late_chunk.avoid:
            return []
        idle = [slot for slot in self.slots() if slot != late_chunk.avoid]
        for chunk in chunks:
            if not chunk.done and chunk is not late_chunk:
                for busy in chunk.replacements or [chunk]:
                    if busy.worker in idle:
                        idle.remove(busy.worker)
        return idle

    def _cancel_unfinished(self, chunks: Sequence[Chunk]) -> None:
        running = [chunk.future for chunk in chunks if chunk.future is not None and not chunk.future.done() and not chunk.future.cancel()]
        if running:
            self._session.cancel_tasks([future.index for future in running])

    # --- terminal output --------------------------------------------------------------------------------------------------------------

    def _explain_wait(self, begun: float, chunks: Sequence[Chunk]) -> bool:
        if time.monotonic() < begun + EXPLAIN_AFTER_S:
            return False
        if not any(chunk.ended or (chunk.future is not None and chunk.future.running()) for chunk in chunks) and sys.stderr is not None:
            self._clear_progress()
            try:
                print(self._why(), file=sys.stderr, flush=True)
            except PilotfishError:
                pass  # callers that wait for a result get the error
        return True

    def _draw_progress(self, title: str, chunks: Sequence[Chunk]) -> None:
        if self._shows_progress:
            sys.stderr.write(f"\r\x1b[K{title}  {sum(chunk.done for chunk in chunks)}/{len(chunks)} chunks")
            sys.stderr.flush()

    def _clear_progress(self) -> None:
        if self._shows_progress:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _benchmarks(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Takes the median over equal processors: agents that start together on one node disturb each other's benchmarks."""
    kinds = {row["worker"]: row["info"].get("cpu") or row["worker"] for row in rows}
    measured: dict[Any, list[float]] = {}
    for row in rows:
        benchmark = row["info"].get("benchmark")
        if isinstance(benchmark, (int, float)) and 0 < benchmark < math.inf:
            measured.setdefault(kinds[row["worker"]], []).append(float(benchmark))
    return {worker: statistics.median(measured[kind]) for worker, kind in kinds.items() if kind in measured}


def _quoted(name: str) -> str:
    return f"'{name}'" if '"' in name else f'"{name}"'


def _late_chunks(chunks: Sequence[Chunk], planned_s: float) -> list[Chunk]:
    """Returns the late chunks. The expected time is known once half of the chunks have ended."""
    ended = [chunk.total_s for chunk in chunks if chunk.ended]
    if not ended or 2 * len(ended) < len(chunks):
        return []
    expected_s = max(statistics.median(ended), planned_s if planned_s < math.inf else 0.0)
    now = time.monotonic()
    waiting = [chunk for chunk in chunks if not chunk.done and not chunk.replacements and chunk.looked_at < now - GRACE_S]
    return [chunk for chunk in waiting if chunk.sent_at < now - LATE_RATIO * expected_s - GRACE_S]
