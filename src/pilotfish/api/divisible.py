"""Implements ``divide`` and ``iterate`` for divisible loads. Each worker gets a chunk that fits its speed.

Adaptive workload balancing (AWLB) computes the chunk sizes from the times of earlier chunks. If workers join, leave or become slow, the
sizes change in the next round of ``divide`` or in the next iteration of ``iterate``.
"""

from __future__ import annotations

import math
import queue
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import msgspec

from pilotfish.api.balance_report import BalanceReport, Iteration, WorkerShare
from pilotfish.api.executor import CANNOT_SEND
from pilotfish.api.futures import TaskFuture
from pilotfish.api.run import Run
from pilotfish.applications.calls.python_call import CallEncoder
from pilotfish.applications.task_options import TASK_KEYWORDS, TaskKeywords, TaskOptions, check_known, read_task_options
from pilotfish.errors import BadInput, PilotfishError, TaskFailed
from pilotfish.policies.load_balancing import (
    CapacityEstimates,
    ChunkMeasurement,
    LoadModel,
    RatioSearch,
    WorkerCapacity,
    compute_transfer_ratios,
    equal_parts,
    heterogeneity,
    plan,
    time_of,
    whole_units,
)
from pilotfish.portable.expressions.evaluation import parse

JOIN_TIMEOUT_S = 5.0
"""Maximum seconds to wait for the first worker. If the pool was just started, its first worker needs some time."""
CHUNKS_WITHOUT_WORKERS = 8
"""Number of equal chunks if no worker has joined yet. When these chunks wait, the factory can request pilots for them."""
PROBE = 0.05
"""Fraction of the load that ``divide`` sends first to measure the workers."""
MAX_IMBALANCE = 1.15
"""Maximum ratio between the time of the slowest worker and the mean time. If the ratio in a round is larger, ``divide`` keeps a part of the
load for a further round with better chunk sizes."""
MAX_ROUNDS = 6
BASELINE_ITERATIONS = 2
"""Number of iterations with equal chunks for ``baseline=True``. One is not enough: the first includes the start-up of the workers."""


BALANCING_OPTIONS = {
    "cut": "`cut(start, stop)` returns the argument of the function for these units; default: that range, or that slice of the load",
    "baseline": "`True`: equal chunks in the first two iterations (or a number of iterations), to measure the speed-up by balancing",
    "ratio": "f_c, bytes transferred per unit, if the sizes of chunks and results do not show this number. If you give two bounds"
    " `(low, high)`, the iterations search the best value between them",
    "progress": "`False`: hide the progress line, which is shown on a terminal only",
}


class Balancing(TaskKeywords, total=False):
    """Keyword arguments of ``divide`` and ``iterate``. Each chunk is a task; task options such as ``memory`` apply to every chunk."""

    cut: Callable[[int, int], Any]
    baseline: bool | int
    ratio: float | tuple[float, float]
    progress: bool


def divide(
    run: Run,
    work: Callable[[Any], Any],
    load: int | Sequence[Any],
    combine: Callable[[list[Any]], Any] | None = None,
    **options: Unpack[Balancing],
) -> BalanceReport:
    """Executes a load once. ``load`` is a number of units or a sequence. ``work(piece)`` executes one part of the load.

    ``combine([result, …])`` gets the results in the order of the load. The return value of ``combine`` is the ``value`` of the report.
    Without ``combine``, ``value`` is the list of results.

    ``divide`` sends the load in rounds. The first round is a small part of the load, to measure the workers. Each further round is half of
    the remaining load. The last round is the whole remaining load. It comes when the chunk sizes are good: all workers had been measured
    before a round, and took about the same time in that round. The sixth round is always the last.
    """
    balancer = _Balancer(run, work, load, options)
    results: list[Any] = []
    for number in range(1, MAX_ROUNDS + 1):
        units = balancer.left
        if number == 1:
            units = min(units, max(1, len(balancer.slots), round(PROBE * units)))
        elif number < MAX_ROUNDS and not balancer.is_even:
            units = -(-units // 2)
        results += balancer.run_round(units, f"round {number}", lambda piece: (piece,))
        if not balancer.left:
            break
    balancer.report.value = results if combine is None else combine(results)
    return balancer.report


def iterate(
    run: Run,
    step: Callable[[Any, Any], Any],
    load: int | Sequence[Any],
    iterations: int,
    state: Any = None,
    update: Callable[[Any, list[Any]], Any] | None = None,
    **options: Unpack[Balancing],
) -> BalanceReport:
    """Executes a load repeatedly. ``load`` is a number of units or a sequence. ``step(piece, state)`` executes one part of the load. The
    argument ``state`` is the state of the first iteration.

    After each iteration, ``update(state, [result, …])`` returns the next state. Without ``update``, the next state is the list of results.
    To end the loop early, ``update`` raises StopIteration; ``StopIteration(value)`` also sets the last state. The ``value`` of the report
    is the last state.
    """
    if not _is_count(iterations) or iterations < 0:
        raise BadInput(f"iterations: {iterations!r} is not a number of iterations", "write iterations=20")
    balancer = _Balancer(run, step, load, options)
    report = balancer.report
    report.value = state
    for number in range(iterations):
        balancer.done = 0
        results = balancer.run_round(balancer.left, f"iteration {number + 1} of {iterations}", lambda piece: (piece, report.value))
        try:
            report.value = results if update is None else update(report.value, results)
        except StopIteration as end:
            report.value = report.value if end.value is None else end.value
            break
    return report


class _Balancer:
    """Divides a load into chunks. Each round uses the measurements of all earlier rounds."""

    def __init__(self, run: Run, function: Callable[..., Any], load: int | Sequence[Any], options: Balancing) -> None:
        if not isinstance(run, Run):
            raise BadInput(f"run: {run!r} is not a run", "with pilotfish.Run() as run: ...")
        check_known(options, (*TASK_KEYWORDS, *BALANCING_OPTIONS), "divisible work")
        if "rank" in options:
            raise BadInput(f"rank: {options['rank']!r} cannot be asked for: each chunk is for one worker", "use requirement or tags")
        for name, given in (("the function", function), ("cut", options.get("cut", len))):
            if not callable(given):
                raise BadInput(f"{name}: {given!r} is not a function", "write a function's name, without calling it")
        self.load, self._cut = _read_load(load, options.get("cut"))
        self._baseline = _read_baseline(options.get("baseline", False))
        self._fixed_ratio, self._search = _read_ratio(options.get("ratio"))
        task_options = {key: value for key, value in options.items() if key in TASK_KEYWORDS}
        self._workers = ChunkWorkers(run, function, read_task_options(task_options), options.get("progress", True))
        self._estimates = CapacityEstimates()
        self.done = 0
        self._slots: list[str] | None = None
        self._notes: list[str] = []
        self.report = BalanceReport()

    @property
    def left(self) -> int:
        return self.load - self.done

    @property
    def slots(self) -> list[str]:
        """The workers for the next round, one entry per chunk that can run at the same time. So a worker can be listed several times."""
        if self._slots is None:
            self._slots = self._workers.wait_for_slots(0.0 if self.report.iterations else JOIN_TIMEOUT_S) if self.load else []
            for worker, benchmark in self._workers.benchmarks.items():
                self._estimates.set_benchmark(worker, benchmark)
        return self._slots

    @property
    def is_even(self) -> bool:
        """True if all workers had been measured before the last round began, and took about the same time in the last round."""
        last = self.report.iterations[-1]
        times = [share.compute_s + share.transfer_s for share in last.shares.values()]
        return last.planned_s is not None and max(times) <= MAX_IMBALANCE * sum(times) / len(times)

    # --- one round --------------------------------------------------------------------------------------------------------------------

    def run_round(self, units: int, title: str, arguments: Callable[[Any], tuple[Any, ...]]) -> list[Any]:
        """Executes the next ``units`` units of the load and returns the results in order."""
        if not units:
            self.report.iterations.append(Iteration(0.0, {}, (), 0.0, 0.0, 0.0))
            return []
        slots = self.slots
        self._notes = []
        balanced = len(self.report.iterations) >= self._baseline
        workers = [self._estimates.capacity(slot) for slot in slots]
        application = self._application()
        chunks, planned_s = self._chunks(units, workers, application, balanced)
        begun = time.monotonic()
        self._workers.do(chunks, lambda start, stop: arguments(self._cut(start, stop)), title, planned_s or 0.0, self._divide_late_chunk)
        seconds = time.monotonic() - begun
        self.done += units
        done = [part for chunk in chunks for part in chunk.counted]
        self._update_estimates(done, set(slots))
        self._record(done, slots, seconds, planned_s, balanced)
        if self._search is not None and balanced and planned_s is not None:
            self._search.report(seconds / units)
        self._slots = None
        return [part.value for part in done]

    def _application(self) -> LoadModel:
        measured = self._estimates.application()
        ratio = self._search.ratio if self._search is not None else self._fixed_ratio
        return measured if ratio is None else LoadModel(ratio, measured.chunk_bytes)

    def _chunks(
        self, units: int, workers: Sequence[WorkerCapacity], application: LoadModel, balanced: bool
    ) -> tuple[list[Chunk], float | None]:
        if not workers:
            sizes = equal_parts(units, CHUNKS_WITHOUT_WORKERS)
            return consecutive_chunks(sizes, [""] * len(sizes), self.done), None
        names = [worker.name for worker in workers]
        if not balanced:
            return consecutive_chunks(equal_parts(units, len(names)), names, self.done), None
        sizes = whole_units(plan(workers, application, units), workers, application, units)
        known = all(self._estimates.knows(worker.name) for worker in workers)
        return consecutive_chunks(sizes, names, self.done), time_of(sizes, workers, application) if known else None

    def _divide_late_chunk(self, late_chunk: Chunk, idle: list[str]) -> None:
        if not idle:
            return
        workers = [self._estimates.capacity(worker) for worker in idle]
        application = self._application()
        sizes = whole_units(plan(workers, application, late_chunk.units), workers, application, late_chunk.units)
        late_chunk.replacements = consecutive_chunks(sizes, idle, late_chunk.start)
        for chunk in late_chunk.replacements:
            chunk.avoid = late_chunk.avoid
        elapsed_s = time.monotonic() - late_chunk.sent_at
        self._estimates.observe_unfinished(late_chunk.avoid, late_chunk.units, elapsed_s)
        where = f"units {late_chunk.start:,} to {late_chunk.stop - 1:,} at worker {late_chunk.avoid}"
        self._notes.append(f"{where} were late after {elapsed_s:.3g} s and also sent to {len(late_chunk.replacements)} idle workers")

    # --- afterwards -------------------------------------------------------------------------------------------------------------------

    def _update_estimates(self, done: Sequence[Chunk], slots: set[str]) -> None:
        measured = [
            ChunkMeasurement(chunk.worker, chunk.units, chunk.compute_s, max(0.0, chunk.total_s - chunk.compute_s), chunk.moved_bytes)
            for chunk in done
        ]
        self._estimates.observe(measured)
        self._estimates.reduce_slowness(sorted(slots - {chunk.worker for chunk in done}))

    def _record(self, done: Sequence[Chunk], slots: Sequence[str], seconds: float, planned_s: float | None, balanced: bool) -> None:
        shares: dict[str, WorkerShare] = {}
        for chunk in done:
            before = shares.get(chunk.worker, WorkerShare(0, 0.0, 0.0))
            transfer_s = max(before.transfer_s, chunk.total_s - chunk.compute_s, 0.0)
            shares[chunk.worker] = WorkerShare(before.units + chunk.units, max(before.compute_s, chunk.compute_s), transfer_s)
        workers = [self._estimates.capacity(slot) for slot in slots or list(shares)]
        application = self._application()
        units = sum(share.units for share in shares.values())
        self.report.iterations.append(
            Iteration(
                seconds,
                shares,
                tuple(worker for worker in dict.fromkeys(slots) if worker not in shares),
                time_of(equal_parts(units, len(workers)), workers, application),
                heterogeneity(compute_transfer_ratios(workers)),
                application.ratio,
                planned_s,
                balanced,
                tuple(self._notes),
            )
        )


def _is_count(value: Any) -> bool:
    """Tests whether the value is a whole number of Python or of a library such as numpy."""
    return hasattr(value, "__index__") and not isinstance(value, bool) and not hasattr(value, "__len__")


def _read_load(load: int | Sequence[Any], cut: Callable[[int, int], Any] | None) -> tuple[int, Callable[[int, int], Any]]:
    if _is_count(load):
        if load < 0:  # type: ignore[operator]
            raise BadInput(f"load: {load} units cannot be done", "give a number of units, 0 or more")
        return int(load), cut or range  # type: ignore[arg-type]
    try:
        count = len(load)  # type: ignore[arg-type]
        load[0:0]  # type: ignore[index]
    except (TypeError, KeyError) as error:
        raise BadInput(f"load: {load!r:.100} can be neither counted nor cut", "give a number of units, or a list or an array") from error
    return count, cut or (lambda start, stop: load[start:stop])  # type: ignore[index]


def _read_baseline(baseline: Any) -> int:
    if not isinstance(baseline, int) or baseline < 0:
        raise BadInput(f"baseline: {baseline!r} is neither true nor false, nor a number of iterations", "write baseline=True")
    return BASELINE_ITERATIONS if baseline is True else baseline


def _read_ratio(ratio: Any) -> tuple[float | None, RatioSearch | None]:
    try:
        if isinstance(ratio, tuple):
            return None, RatioSearch(*ratio)
        if ratio is None or 0 <= float(ratio) < float("inf"):
            return None if ratio is None else float(ratio), None
        raise ValueError(ratio)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"ratio: {ratio!r} is not a number of bytes for each unit", "leave it out, or give two bounds: ratio=(1, 1e6)"
        ) from error


# --- chunks: sent to workers, timed, and repeated if they are late ------------------------------------------------------------------------

TICK_S = 0.1
EXPLAIN_AFTER_S = 3.0
"""If no chunk has started after this many seconds, the program prints why the chunks wait."""
LATE_RATIO = 3.0
"""A chunk is late if its elapsed time exceeds LATE_RATIO times the expected time, plus GRACE_S."""
GRACE_S = 1.0
"""See LATE_RATIO. Also the seconds until the search is repeated for idle workers that can take over a late chunk."""
Arguments = Callable[[int, int], tuple[Any, ...]]
"""Function that returns the arguments of the work function for the units from start to stop."""


@dataclass(slots=True, eq=False)
class Chunk:
    start: int
    stop: int
    worker: str = ""
    """The worker that should execute the chunk. After the end of the chunk: the worker that executed it."""
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
    """If this chunk is late: chunks for idle workers, which together have the same units as this chunk."""

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
    """Makes consecutive chunks of these sizes, one per worker. A worker with size 0 gets no chunk."""
    chunks = []
    for size, worker in zip(sizes, workers, strict=True):
        if size > 0:
            chunks.append(Chunk(start, start + size, worker))
            start += size
    return chunks


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function. The wrapper returns three values: the result of the function, the name of the worker, and the seconds that the
    function took. The wrapper must not import this package, because slots do not have this package."""

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
    """Sends chunks to the workers of a run, and receives their results."""

    def __init__(self, run: Run, function: Callable[..., Any], options: TaskOptions, progress: bool) -> None:
        self._session = run._session
        self._why = run.why
        self._function = timed(function)
        self._options = options
        self._sites = run._session.sites
        self._calls: dict[tuple[str, str], CallEncoder] = {}
        self._shows_progress = progress and sys.stderr is not None and sys.stderr.isatty()
        self.benchmarks: dict[str, float] = {}
        """Speed of each worker according to the benchmark at its start."""

    def slots(self) -> list[str]:
        """Returns the connected workers, one entry per chunk that can run at the same time. So a worker can be listed several times."""
        rows = [
            row
            for row in self._session.client.ask("workers")
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
        """Returns the connected workers. If no worker is connected, waits up to ``timeout_s`` seconds for the first worker."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.slots()) and time.monotonic() < deadline:
            time.sleep(TICK_S)
        return found

    # --- one round of chunks ----------------------------------------------------------------------------------------------------------

    def do(
        self, chunks: list[Chunk], arguments: Arguments, title: str, planned_s: float, divide_late_chunk: Callable[[Chunk, list[str]], None]
    ) -> None:
        """Executes all chunks. ``divide_late_chunk(chunk, idle_workers)`` can store new chunks with the units of a late chunk in
        ``chunk.replacements``. These new chunks are executed, too."""
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
            # After a normal end, only late chunks with replacements are left to cancel. After an error or Ctrl-C, any chunk can be left.
            self._cancel_unfinished([chunk for chunk in sent if not chunk.ended])
            self._clear_progress()

    def _send(self, chunk: Chunk, arguments: Arguments, ends: queue.SimpleQueue[tuple[Chunk, float]]) -> None:
        future: TaskFuture[Any] = TaskFuture(self._session)
        try:
            spec, payload = self._calls_for(chunk).encode(self._function, arguments(chunk.start, chunk.stop), {})
        except CANNOT_SEND as error:
            what = f"units {chunk.start:,} to {chunk.stop - 1:,} cannot be sent: {type(error).__name__}: {error}"
            raise BadInput(what, "the function, its state and the result of cut must be picklable") from error
        chunk.moved_bytes = len(payload) if isinstance(payload, bytes) else sum(memoryview(part).nbytes for part in payload)
        chunk.future, chunk.sent_at = future, time.monotonic()
        self._session.submit(future, spec, payload)
        future.add_done_callback(lambda _: ends.put((chunk, time.monotonic())))

    def _calls_for(self, chunk: Chunk) -> CallEncoder:
        """Returns the encoder for the call of a chunk. The call prefers ``chunk.worker``. If ``chunk.worker`` is busy or lost, any other
        worker except ``chunk.avoid`` can execute the chunk."""
        key = chunk.worker, chunk.avoid
        if key not in self._calls:
            conditions = [f"({self._options.requirement})"] if self._options.requirement else []
            if chunk.avoid:
                conditions.append(f"worker != {_quoted(chunk.avoid)}")
            options = msgspec.structs.replace(
                self._options, requirement=" and ".join(conditions), rank=f"worker == {_quoted(chunk.worker)}" if chunk.worker else ""
            )
            self._calls[key] = CallEncoder(self._session.spec_number, options)
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
        """Returns the idle workers that could take over ``late_chunk`` from its worker. Returns an empty list if ``late_chunk`` has no
        worker yet. Stores the worker of the late chunk in ``late_chunk.avoid``."""
        assert late_chunk.future is not None
        late_chunk.looked_at = time.monotonic()
        late_chunk.avoid = self._session.client.ask("task", task=late_chunk.future.task_id)["worker"] or ""
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
                pass  # the program gets the error when it waits for a result
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
    """Returns the speed of each worker: the median of the benchmark results of all workers with its type of processor. Leaves out workers
    for which there are no such results.

    The result of a single worker is inaccurate, because agents that start together on one node slow each other down.
    """
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
    """Returns the unfinished chunks that are late. Returns no chunks until half of the chunks have ended.

    A chunk is late if its elapsed time exceeds LATE_RATIO times the expected time, plus GRACE_S. The expected time is the larger of two
    numbers: ``planned_s`` and the median time of the ended chunks. Leaves out late chunks that already have replacements, and late chunks
    for which idle workers were searched in the last GRACE_S seconds.
    """
    ended = [chunk.total_s for chunk in chunks if chunk.ended]
    if not ended or 2 * len(ended) < len(chunks):
        return []
    expected_s = max(statistics.median(ended), planned_s if planned_s < math.inf else 0.0)
    now = time.monotonic()
    waiting = [chunk for chunk in chunks if not chunk.done and not chunk.replacements and chunk.looked_at < now - GRACE_S]
    return [chunk for chunk in waiting if chunk.sent_at < now - LATE_RATIO * expected_s - GRACE_S]
