"""Combines many projections into a median and an interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, inf, log
from statistics import fmean

from pilotfish.core.state import State
from pilotfish.model.ids import run_of
from pilotfish.sim.process_map import in_parallel
from pilotfish.sim.projections.pool_snapshot import AS_IT_IS, PoolSnapshot, Variation
from pilotfish.sim.projections.projection import Projection
from pilotfish.sim.projections.time_breakdown import TimeBreakdown, parents_of, parts_of

LEAST_REPLICAS, MOST_REPLICAS = 20, 60
COMPLETIONS = 20_000
"""Target number of simulated task completions per prediction; it limits the number of samples."""
ALONE = 4_000
"""Maximum simulated tasks for one process. For fewer, starting more processes costs more than it saves."""
LEAST_S = 1e-3
INSIDE = 0.8
"""Probability that the interval holds the finish time."""
MARGIN = 1.2
"""Factor by which intervals are widened, because the samples miss effects that are not modelled."""

Told = Callable[[int, int], None]
"""Progress callback: finished samples, all samples."""


@dataclass(frozen=True, slots=True)
class ProjectedFinish:
    """Result of one sample. ``end_s``: seconds from now, infinite if tasks cannot run anywhere; ``stuck``: number of these tasks."""

    end_s: float
    parts: TimeBreakdown
    stuck: int
    guessed: dict[str, int]


@dataclass(slots=True)
class FinishEstimate:
    variation: Variation
    ends_s: list[float]
    """Finish times in the order of seeds, so that two variations can be compared seed by seed."""
    parts: TimeBreakdown
    stuck: int
    guessed: dict[str, int] = field(default_factory=dict)

    @property
    def median_s(self) -> float:
        return self.quantile(0.5)

    @property
    def merit_s(self) -> float:
        """Geometric mean of the finish times, for ranking variations.

        All variations use the same seeds, so differences come from the variations. The median of a few samples shows these differences
        less well.
        """
        return exp(fmean(log(max(end, LEAST_S)) for end in self.ends_s)) if inf not in self.ends_s else inf

    def band(self, factor: float = 1.0) -> tuple[float, float]:
        """Returns the 80 % interval. ``factor``: how much wider than the samples alone suggest."""
        low, middle, high = self.quantile((1 - INSIDE) / 2), self.median_s, self.quantile((1 + INSIDE) / 2)
        return widened(low, middle, factor * MARGIN), widened(high, middle, factor * MARGIN)

    def quantile(self, q: float) -> float:
        ends = sorted(self.ends_s)
        place = q * (len(ends) - 1)
        below = int(place)
        above = min(below + 1, len(ends) - 1)
        # Some values may be infinite.
        return ends[below] if place == below or ends[below] == ends[above] else ends[below] + (ends[above] - ends[below]) * (place - below)

    def chance_to_end_by(self, seconds: float) -> float:
        return sum(end <= seconds for end in self.ends_s) / len(self.ends_s)

    def chance_to_beat(self, other: FinishEstimate) -> float:
        pairs = list(zip(self.ends_s, other.ends_s, strict=True))
        return sum(1.0 if mine < theirs else 0.5 if mine == theirs else 0.0 for mine, theirs in pairs) / len(pairs)


def widened(edge: float, middle: float, factor: float) -> float:
    return edge if middle <= 0 or edge <= 0 or edge == float("inf") else float(middle * (edge / middle) ** factor)


def imagine(moment: PoolSnapshot, variation: Variation, seed: int, run: int | None) -> ProjectedFinish:
    """Simulates one sample until one run, or all runs, are finished."""
    world = Projection(moment, variation, seed)
    state = world.machine.state
    parents = parents_of(state)
    world.begin()
    world.go_on_to_the_end(run)
    runs = [state.runs[run]] if run is not None else list(state.runs.values())
    stuck = sum(one.unfinished for one in runs)
    own = frozenset(one.id for one in runs)
    end = max((stint.ended for stint in world.played.stints if run_of(stint.task) in own), default=world.forked_at)
    return ProjectedFinish(float("inf") if stuck else end - world.forked_at, parts_of(world, own, parents), stuck, world.guessed)


def replicas_for(left: int, variations: int = 1) -> int:
    return max(LEAST_REPLICAS, min(MOST_REPLICAS, COMPLETIONS // max(1, left * variations)))


def foresee(
    moment: PoolSnapshot,
    run: int | None,
    variations: Sequence[Variation] = (AS_IT_IS,),
    replicas: int = 0,
    told: Told | None = None,
    cores: int = 0,
) -> list[FinishEstimate]:
    """Estimates the finish time for each variation. All variations use the same seeds."""
    left = _left(moment.restore(), run)
    count = replicas or replicas_for(left, len(variations))
    jobs = [(variation, seed) for seed in range(count) for variation in range(len(variations))]
    futures: dict[Job, ProjectedFinish] = {}
    global _common
    _common = moment, variations, run
    for job, future in in_parallel(_imagine_one, jobs, 1 if left * len(jobs) <= ALONE else cores):
        futures[job] = future
        if told is not None:
            told(len(futures), len(jobs))
    return [_together(each, [futures[place, seed] for seed in range(count)]) for place, each in enumerate(variations)]


def _together(variation: Variation, futures: list[ProjectedFinish]) -> FinishEstimate:
    middle = sorted(futures, key=lambda future: future.end_s)[len(futures) // 2]
    guessed = futures[0].guessed
    return FinishEstimate(variation, [future.end_s for future in futures], middle.parts, max(future.stuck for future in futures), guessed)


Job = tuple[int, int]
_common: tuple[PoolSnapshot, Sequence[Variation], int | None]
"""Common input of all jobs. Forked processes inherit it."""


def _imagine_one(job: Job) -> tuple[Job, ProjectedFinish]:
    moment, variations, run = _common
    return job, imagine(moment, variations[job[0]], job[1], run)


def _left(state: State, run: int | None) -> int:
    return state.unfinished if run is None else state.runs[run].unfinished
