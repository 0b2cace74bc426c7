"""Implements divide and iterate for divisible loads: one chunk per worker, sized for it.

Adaptive workload balancing (AWLB) finds the sizes from the times of earlier chunks. Workers that joined, left or became slow are
taken into account in the next iteration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

from pilotfish.api.balance_report import BalanceReport, Iteration, WorkerShare
from pilotfish.api.divisible_chunks import Chunk, ChunkWorkers, consecutive_chunks
from pilotfish.api.run import Run
from pilotfish.applications.task_options import TASK_KEYWORDS, TaskKeywords, check_known, read_task_options
from pilotfish.errors import BadInput
from pilotfish.policies.load_balancing import (
    CapacityEstimates,
    ChunkMeasurement,
    LoadModel,
    RatioSearch,
    WorkerCapacity,
    capacities,
    equal,
    heterogeneity,
    plan,
    time_of,
    whole,
)

JOIN_TIMEOUT_S = 5.0
"""Seconds to wait for the workers of a pool that was just started."""
CHUNKS_WITHOUT_WORKERS = 8
"""Number of equal chunks, and so of requested workers, if there is no worker yet."""
PROBE = 0.05
"""Fraction of a load for ``divide`` that is used to measure the workers."""
MAX_IMBALANCE = 1.15
"""Maximum ratio of the slowest worker's time to the mean; above it the sizes are not right yet."""
MAX_ROUNDS = 6
BASELINE_ITERATIONS = 2
"""Default number of iterations with equal chunks: two, because the first includes the start-up of the workers."""


class _Balancing(TypedDict, total=False):
    cut: Callable[[int, int], Any]
    baseline: bool | int
    ratio: float | tuple[float, float]
    progress: bool


BALANCING_OPTIONS = {
    "cut": "`cut(start, stop)` makes what the function gets for these units; else it is that range, or that slice of the load",
    "baseline": "`True`: equal chunks in the first two iterations (a number: in so many), so that what balancing brings is measured",
    "ratio": "f_c, bytes moved for each unit, where chunks and results do not show it; two bounds: the best is searched between them",
    "progress": "`False`: no line that moves while chunks are done; there is one on a terminal only",
}


class Balancing(_Balancing, TaskKeywords, total=False):
    """Keywords of ``divide`` and ``iterate``; task options apply to each chunk."""


def divide(
    run: Run,
    work: Callable[[Any], Any],
    load: int | Sequence[Any],
    combine: Callable[[list[Any]], Any] | None = None,
    **options: Unpack[Balancing],
) -> BalanceReport:
    """Do a load once. ``work(piece)`` does a part of it; ``combine([result, …])`` makes the report's value of the results, in order; else
    it is the list of them. ``load`` is a number of units, or a sequence.

    A small part goes first, to measure the workers; then half of what is left, until all take equally long; then the rest.
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
    """Do a load again and again. ``step(piece, state)`` does a part of it; ``update(state, [result, …])`` makes the next state, or raises
    StopIteration when that will do; without it, the next state is the list of results. The report's value is the last state."""
    if not _is_count(iterations) or iterations < 0:
        raise BadInput(f"iterations: {iterations!r} is not a number of iterations", "write iterations=20")
    balancer = _Balancer(run, step, load, options)
    report = balancer.report
    report.value = state
    for number in range(iterations):
        balancer.restart()
        results = balancer.run_round(balancer.left, f"iteration {number + 1} of {iterations}", lambda piece: (piece, report.value))
        try:
            report.value = results if update is None else update(report.value, results)
        except StopIteration as end:
            report.value = report.value if end.value is None else end.value
            break
    return report


class _Balancer:
    """Divides a load into chunks; each round uses the measurements of the rounds before."""

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
        self._done = 0
        self._slots: list[str] | None = None
        self._notes: list[str] = []
        self.report = BalanceReport()

    @property
    def left(self) -> int:
        return self.load - self._done

    @property
    def slots(self) -> list[str]:
        """Workers for chunks in this round; each is listed once per chunk that it can run at the same time."""
        if self._slots is None:
            self._slots = self._workers.wait_for_slots(0.0 if self.report.iterations else JOIN_TIMEOUT_S) if self.load else []
            for worker, benchmark in self._workers.benchmarks.items():
                self._estimates.expect(worker, benchmark)
        return self._slots

    @property
    def is_even(self) -> bool:
        """Whether all workers took about equally long in the last round, which was planned from measurements."""
        last = self.report.iterations[-1]
        times = [share.compute_s + share.transfer_s for share in last.shares.values()]
        return last.planned_s is not None and max(times) <= MAX_IMBALANCE * sum(times) / len(times)

    def restart(self) -> None:
        self._done = 0

    # --- one round --------------------------------------------------------------------------------------------------------------------

    def run_round(self, units: int, title: str, arguments: Callable[[Any], tuple[Any, ...]]) -> list[Any]:
        """Executes the next units; returns the results in order."""
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
        self._done += units
        done = [part for chunk in chunks for part in chunk.counted]
        self._update_estimates(done, set(slots))
        self._record(done, slots, seconds, planned_s, balanced)
        if self._search is not None and balanced and planned_s is not None:
            self._search.tell(seconds / units)
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
            sizes = equal(units, CHUNKS_WITHOUT_WORKERS)
            return consecutive_chunks(sizes, [""] * len(sizes), self._done), None
        names = [worker.name for worker in workers]
        if not balanced:
            return consecutive_chunks(equal(units, len(names)), names, self._done), None
        sizes = whole(plan(workers, application, units), workers, application, units)
        known = all(self._estimates.knows(worker.name) for worker in workers)
        return consecutive_chunks(sizes, names, self._done), time_of(sizes, workers, application) if known else None

    def _divide_late_chunk(self, late_chunk: Chunk, idle: list[str]) -> None:
        """Divides a late chunk among idle workers."""
        if not idle:
            return
        workers = [self._estimates.capacity(worker) for worker in idle]
        application = self._application()
        sizes = whole(plan(workers, application, late_chunk.units), workers, application, late_chunk.units)
        late_chunk.replacements = consecutive_chunks(sizes, idle, late_chunk.start)
        for chunk in late_chunk.replacements:
            chunk.avoid = late_chunk.avoid
        elapsed_s = time.monotonic() - late_chunk.sent_at
        self._estimates.held_up(late_chunk.avoid, late_chunk.units, elapsed_s)
        where = f"units {late_chunk.start:,} to {late_chunk.stop - 1:,} at worker {late_chunk.avoid}"
        self._notes.append(f"{where} were late after {elapsed_s:.3g} s, and were given to {len(late_chunk.replacements)} idle ones as well")

    # --- afterwards -------------------------------------------------------------------------------------------------------------------

    def _update_estimates(self, done: Sequence[Chunk], slots: set[str]) -> None:
        measured = [
            ChunkMeasurement(chunk.worker, chunk.units, chunk.compute_s, max(0.0, chunk.total_s - chunk.compute_s), chunk.moved_bytes)
            for chunk in done
        ]
        self._estimates.observe(measured)
        self._estimates.forgive(sorted(slots - {chunk.worker for chunk in done}))

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
                time_of(equal(units, len(workers)), workers, application),
                heterogeneity(capacities(workers)),
                application.ratio,
                planned_s,
                balanced,
                tuple(self._notes),
            )
        )


def _is_count(value: Any) -> bool:
    """Whether the value is a whole number of any library, such as numpy."""
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
