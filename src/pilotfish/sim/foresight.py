"""When a run will be over, and what would make it sooner: many futures of one moment, and what they have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from math import exp, inf, log
from statistics import fmean

import numpy as np

from pilotfish.core.state import State
from pilotfish.model.ids import run_of, task_id
from pilotfish.model.states import DONE
from pilotfish.sim.forked import Forked
from pilotfish.sim.moment import AS_IT_IS, Moment, Variation
from pilotfish.sim.rehearsal import Stint

LEAST_REPLICAS, MOST_REPLICAS = 20, 60
COMPLETIONS = 20_000
"""So many tasks that end are imagined for one answer, if that allows for enough replicas."""
ALONE = 4_000
"""With no more than these, it is not worth while to start other processes."""
LEAST_S = 1e-3
INSIDE = 0.8
"""The part of all futures that a band is to hold."""
MARGIN = 1.2
"""Bands are so much wider than the futures say, which know nothing of what was not modelled."""

Told = Callable[[int, int], None]
"""How many futures are there, and of how many."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Of the seconds to the end: along the chain of tasks that determines it, how much is waiting for workers, execution and staging. And
    how long it takes from the moment when the first worker runs out of work."""

    waiting_s: float = 0.0
    execution_s: float = 0.0
    staging_s: float = 0.0
    tail_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Future:
    """``end_s``: from now; infinite if some tasks can run nowhere, which are ``stuck``."""

    end_s: float
    parts: Parts
    stuck: int
    guessed: dict[str, int]


@dataclass(slots=True)
class Foresight:
    variation: Variation
    ends_s: list[float]
    """One for each seed, in order: those of two variations can be compared one by one."""
    parts: Parts
    stuck: int
    guessed: dict[str, int] = field(default_factory=dict)

    @property
    def median_s(self) -> float:
        return self.quantile(0.5)

    @property
    def merit_s(self) -> float:
        """To rank variations by: the geometric mean of their ends. With the same seeds for all, what differs is due to the variations; the
        median of a few tells less of that."""
        return exp(fmean(log(max(end, LEAST_S)) for end in self.ends_s)) if inf not in self.ends_s else inf

    def band(self, factor: float = 1.0) -> tuple[float, float]:
        """Where the end is in four of five cases. ``factor``: so many times as wide as the futures say."""
        low, middle, high = self.quantile((1 - INSIDE) / 2), self.median_s, self.quantile((1 + INSIDE) / 2)
        return widened(low, middle, factor * MARGIN), widened(high, middle, factor * MARGIN)

    def quantile(self, q: float) -> float:
        ends = sorted(self.ends_s)
        place = q * (len(ends) - 1)
        below = int(place)
        above = min(below + 1, len(ends) - 1)
        # Some may be infinite.
        return ends[below] if place == below or ends[below] == ends[above] else ends[below] + (ends[above] - ends[below]) * (place - below)

    def chance_to_beat(self, other: Foresight) -> float:
        pairs = list(zip(self.ends_s, other.ends_s, strict=True))
        return sum(1.0 if mine < theirs else 0.5 if mine == theirs else 0.0 for mine, theirs in pairs) / len(pairs)


def widened(edge: float, middle: float, factor: float) -> float:
    return edge if middle <= 0 or edge <= 0 or edge == float("inf") else float(middle * (edge / middle) ** factor)


def imagine(moment: Moment, variation: Variation, seed: int, run: int | None) -> Future:
    """One future, up to the end of one run or of all."""
    world = Forked(moment, variation, seed)
    state = world.machine.state
    parents = _parents(state)
    world.begin()
    world.go_on_to_the_end(run)
    runs = [state.runs[run]] if run is not None else list(state.runs.values())
    stuck = sum(one.unfinished for one in runs)
    own = {one.id: None for one in runs}
    stints = [stint for stint in world.played.stints if run_of(stint.task) in own]
    end = max((stint.ended for stint in stints), default=world.forked_at)
    parts = _parts(world.played.stints, stints, parents, world.forked_at)
    return Future(float("inf") if stuck else end - world.forked_at, parts, stuck, world.guessed)


def replicas_for(left: int, variations: int = 1) -> int:
    return max(LEAST_REPLICAS, min(MOST_REPLICAS, COMPLETIONS // max(1, left * variations)))


def foresee(
    moment: Moment,
    run: int | None,
    variations: Sequence[Variation] = (AS_IT_IS,),
    replicas: int = 0,
    told: Told | None = None,
    cores: int = 0,
) -> list[Foresight]:
    """The same seeds for all variations."""
    left = _left(moment.restore(), run)
    count = replicas or replicas_for(left, len(variations))
    jobs = [(variation, seed) for seed in range(count) for variation in range(len(variations))]
    cores = cores or len(os.sched_getaffinity(0))
    futures: dict[tuple[int, int], Future] = {}
    source = _here if cores == 1 or left * len(jobs) <= ALONE else _in_processes
    for job, future in source(moment, variations, run, jobs, cores):
        futures[job] = future
        if told is not None:
            told(len(futures), len(jobs))
    return [_together(each, [futures[place, seed] for seed in range(count)]) for place, each in enumerate(variations)]


def _together(variation: Variation, futures: list[Future]) -> Foresight:
    middle = sorted(futures, key=lambda future: future.end_s)[len(futures) // 2]
    guessed = futures[0].guessed
    return Foresight(variation, [future.end_s for future in futures], middle.parts, max(future.stuck for future in futures), guessed)


Job = tuple[int, int]
_common: tuple[Moment, Sequence[Variation], int | None] | None = None


def _here(moment: Moment, variations: Sequence[Variation], run: int | None, jobs: list[Job], cores: int) -> Iterator[tuple[Job, Future]]:
    for job in jobs:
        yield job, imagine(moment, variations[job[0]], job[1], run)


def _in_processes(
    moment: Moment, variations: Sequence[Variation], run: int | None, jobs: list[Job], cores: int
) -> Iterator[tuple[Job, Future]]:
    with ProcessPoolExecutor(cores, initializer=_remember, initargs=(moment, variations, run)) as pool:
        under_way = {pool.submit(_imagine_one, job): job for job in jobs}
        for done in as_completed(under_way):
            yield under_way[done], done.result()


def _remember(moment: Moment, variations: Sequence[Variation], run: int | None) -> None:
    global _common
    _common = moment, variations, run


def _imagine_one(job: Job) -> Future:
    assert _common is not None
    moment, variations, run = _common
    return imagine(moment, variations[job[0]], job[1], run)


def _left(state: State, run: int | None) -> int:
    return state.unfinished if run is None else state.runs[run].unfinished


# --- what the time goes into --------------------------------------------------------------------------------------------------------


def _parents(state: State) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for run in state.runs.values():
        for task in run.tasks if run.unfinished else ():
            if task.state < DONE:
                for child in task.children or ():
                    found.setdefault(task_id(run.id, child), []).append(task.id)
    return found


def _parts(everything: list[Stint], own: list[Stint], parents: dict[int, list[int]], now: float) -> Parts:
    """Back from the last task to end: what it waited for is who ended last before it began, at its host or among those it needs."""
    if not own:
        return Parts()
    at_host: dict[int, list[Stint]] = {}
    by_task: dict[int, Stint] = {}
    for one in everything:  # in the order of ending
        at_host.setdefault(one.host, []).append(one)
        by_task[one.task] = one
    ends = {host: np.array([stint.ended for stint in stints]) for host, stints in at_host.items()}
    last = own[-1]
    tail_s = last.ended - max(now, min(stints[-1].ended for stints in at_host.values()))
    waiting = execution = staging = 0.0
    stint: Stint | None = last
    while stint is not None:
        given, began = max(now, stint.given), max(now, stint.began)
        execution += stint.ended - began
        staging += began - given
        place = int(np.searchsorted(ends[stint.host], given, side="right")) - 1
        before = [at_host[stint.host][place]] if place >= 0 else []
        before += [by_task[parent] for parent in parents.get(stint.task, ()) if parent in by_task and by_task[parent].ended <= given]
        stint = max((one for one in before if one.ended > now and one is not stint), key=lambda one: one.ended, default=None)
        waiting += given - (stint.ended if stint is not None else now)
    return Parts(waiting, execution, staging, tail_s)
