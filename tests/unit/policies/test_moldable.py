"""How many cores moldable tasks get: what was measured, the curve through it, and what is soonest for all that wait."""

from __future__ import annotations

import random

import pytest

from pilotfish.core import state_snapshot
from pilotfish.core.apply import apply
from pilotfish.core.explain import queries
from pilotfish.core.state import State, Task
from pilotfish.model.states import ASSIGNED
from pilotfish.model.task import UNIT, Request, TaskSpec
from pilotfish.policies.moldable import AmdahlCurve, best, choices, fit
from tests.support.machine_stage import Stage

SHARED = AmdahlCurve(0.0, 60.0)
HALF = AmdahlCurve(30.0, 30.0)
FIXED = AmdahlCurve(60.0, 0.0)


def measured(curve: AmdahlCurve, *cores: float, samples: int = 5) -> dict[int, tuple[int, float]]:
    return {round(number * UNIT): (samples, curve.seconds(number)) for number in cores}


@pytest.mark.parametrize("curve", [SHARED, HALF, FIXED, AmdahlCurve(5.0, 100.0)])
def test_the_curve_is_found_again_from_two_points(curve: AmdahlCurve) -> None:
    found = fit(measured(curve, 1, 8))
    assert found.seconds(3) == pytest.approx(curve.seconds(3))


def test_no_part_of_it_is_negative_whatever_was_measured() -> None:
    dice = random.Random(5)
    for _ in range(200):
        known = {dice.randint(1, 64) * UNIT: (dice.randint(1, 50), dice.uniform(0.0, 100.0)) for _ in range(dice.randint(0, 5))}
        curve = fit(known)
        assert curve.fixed_s >= 0 and curve.shared_s >= 0


def test_from_one_point_all_is_taken_to_be_shared() -> None:
    assert fit(measured(HALF, 4)).seconds(8) == pytest.approx(HALF.seconds(4) / 2)


@pytest.mark.parametrize(
    ("curve", "waiting", "cores"),
    [
        (SHARED, 1000, 1),  # the queue is long: the fewest core-seconds
        (HALF, 1000, 1),
        (HALF, 16, 1),
        (SHARED, 1, 16),  # the tail: as many as shorten the end
        (SHARED, 4, 4),
        (HALF, 4, 4),
        (HALF, 3, 5),
        (FIXED, 1, 1),  # which is none more, if they do not help
    ],
)
def test_all_that_wait_are_done_soonest(curve: AmdahlCurve, waiting: int, cores: int) -> None:
    """On one worker with 16 free cores."""
    assert best(curve, choices(UNIT, 16 * UNIT), waiting, {16 * UNIT: 1}) == cores * UNIT


def test_only_cores_of_one_worker_count_together() -> None:
    assert best(SHARED, choices(UNIT, 16 * UNIT), 1, {4 * UNIT: 4}) == 4 * UNIT
    assert best(SHARED, choices(UNIT, 16 * UNIT), 8, {4 * UNIT: 4}) == 2 * UNIT


def test_fractions_and_wide_ranges_have_few_choices() -> None:
    assert choices(UNIT // 2, 3 * UNIT) == [5_000, 10_000, 20_000, 30_000]
    wide = choices(UNIT, 1000 * UNIT)
    assert wide[0] == UNIT and len(wide) <= 65 and wide[-1] <= 1000 * UNIT


class Bench(Stage):
    """One worker, and moldable tasks that take as long as a curve says."""

    def __init__(self, curve: AmdahlCurve, cores: float, count: int) -> None:
        super().__init__()
        self.curve = curve
        self.link = self.join("w", cores)
        self.tasks = self.work(TaskSpec("exec", request=Request(1.0, 8.0)), count)
        self.granted: list[float] = []

    def step(self) -> None:
        """The one that has least left ends."""
        worker = self.machine.state.workers["w"]
        task = min(worker.active, key=lambda task: (self.curve.seconds(worker.active[task][0][1] / UNIT), task.id))
        cores = worker.active[task][0][1] / UNIT
        self.granted.append(cores)
        self.finish(self.link, task, wall_us=round(self.curve.seconds(cores) * 1e6))


def test_the_first_ones_try_different_numbers_and_the_rest_get_what_pays() -> None:
    bench = Bench(HALF, cores=16.0, count=100)
    given = [needs[0][1] // UNIT for needs in bench.machine.state.workers["w"].active.values()]
    assert set(given) == {1, 3, 8} and given.count(8) == given.count(3) == 1
    for _ in range(90):
        bench.step()
    assert bench.granted[-40:] == [1.0] * 40, "while many wait, the fewest core-seconds"
    (known,) = bench.machine.state.speedups.values()
    assert fit(known).seconds(2) == pytest.approx(HALF.seconds(2), rel=0.01)


def test_in_the_tail_they_get_more_if_that_helps() -> None:
    bench = Bench(SHARED, cores=16.0, count=20)
    while any(task.state <= ASSIGNED for task in bench.tasks) and bench.machine.state.workers["w"].active:
        bench.step()
    again = bench.work(TaskSpec("exec", request=Request(1.0, 8.0)), 2)
    worker = bench.machine.state.workers["w"]
    assert [worker.active[task][0][1] // UNIT for task in again] == [8, 8]


def test_in_the_tail_they_get_no_more_if_it_does_not_help() -> None:
    bench = Bench(FIXED, cores=16.0, count=20)
    while bench.machine.state.workers["w"].active:
        bench.step()
    again = bench.work(TaskSpec("exec", request=Request(1.0, 8.0)), 2)
    worker = bench.machine.state.workers["w"]
    assert [worker.active[task][0][1] // UNIT for task in again] == [1, 1]


def test_people_are_shown_what_was_learnt() -> None:
    bench = Bench(HALF, cores=16.0, count=20)
    for _ in range(12):
        bench.step()
    rows = queries.QUERIES["forecasts"](bench.machine, {})["forecasts"]
    shown = {row["what"].partition(" on ")[2]: row["forecast"] for row in rows if " on " in row["what"]}
    assert shown == {f"{n} core{'s' * (n > 1)}": pytest.approx(HALF.seconds(n)) for n in (1, 3, 8)}


def test_what_was_learnt_is_in_a_snapshot() -> None:
    bench = Bench(HALF, cores=4.0, count=6)
    bench.step()
    state = State()
    for fact in state_snapshot.dump(bench.machine.state):
        apply(state, fact, bench.machine.state.at)
    assert state.speedups == bench.machine.state.speedups != {}


def makespan(curve: AmdahlCurve, cores: float, count: int, fixed: int | None = None) -> float:
    """Through the real machine; ``fixed``: what it is without choosing."""
    stage = Stage()
    link = stage.join("w", cores)
    request = Request(1.0, 8.0) if fixed is None else Request(float(fixed))
    stage.work(TaskSpec("exec", request=request), count)
    worker, now = stage.machine.state.workers["w"], 0.0
    running: dict[Task, float] = {}
    while worker.active:
        for task, needs in worker.active.items():
            running.setdefault(task, now + curve.seconds(needs[0][1] / UNIT))
        task = min(worker.active, key=lambda task: (running[task], task.id))
        now = running.pop(task)
        stage.finish(link, task, wall_us=round(curve.seconds(worker.active[task][0][1] / UNIT) * 1e6))
    return now


@pytest.mark.parametrize("curve", [SHARED, HALF, FIXED], ids=["all shared", "half shared", "nothing shared"])
@pytest.mark.parametrize("count", [2, 17, 100])
def test_choosing_is_nearly_as_good_as_the_best_fixed_number(curve: AmdahlCurve, count: int) -> None:
    """The price of trying, when few wait, is one long task."""
    fixed = min(makespan(curve, 16.0, count, cores) for cores in (1, 2, 4, 8))
    assert makespan(curve, 16.0, count) <= fixed + curve.seconds(1)
