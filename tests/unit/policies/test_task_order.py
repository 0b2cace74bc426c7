from __future__ import annotations

import random
from itertools import islice

import pytest

from pilotfish.core.apply import apply
from pilotfish.core.state import Run, State, Task
from pilotfish.core.tasks.transitions import dequeue, enqueue
from pilotfish.model import facts as f
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.states import DONE, WAITING
from pilotfish.model.task import RunOptions, TaskSpec
from pilotfish.policies.task_order import MIN_INTERVAL_S, CriticalPathOrder, UpwardRanks

Deps = dict[int, list[int]]


class Growing:
    """A run that is filled bit by bit."""

    def __init__(self) -> None:
        self.state = State()
        apply(self.state, f.RunOpened(1, "uid", RunOptions()), 0.0)
        apply(self.state, f.SpecsAdded(1, 0, [TaskSpec("python")]), 0.0)
        self.asked = 0

    @property
    def run(self) -> Run:
        return self.state.runs[1]

    def add(self, count: int, deps: Deps) -> None:
        apply(self.state, f.TasksAdded(1, len(self.run.tasks), [0] * count, [b""] * count, deps), 0.0)

    def seconds(self, task: Task) -> float:
        self.asked += 1
        return 1.0 + (task.id & INDEX_MASK) % 7


def index(task: Task) -> int:
    return task.id & INDEX_MASK


def test_a_rank_is_the_longest_way_to_the_end() -> None:
    growing = Growing()
    growing.add(5, {1: [0], 2: [0], 3: [1, 2]})
    seconds = {0: 2.0, 1: 10.0, 2: 1.0, 3: 5.0, 4: 7.0}
    assert list(UpwardRanks().of(growing.run, lambda task: seconds[index(task)])) == [17.0, 15.0, 6.0, 5.0, 7.0]


def test_a_run_in_which_nobody_waits_has_no_ranks_and_nobody_is_asked() -> None:
    growing = Growing()
    growing.add(1000, {})
    assert not UpwardRanks().of(growing.run, growing.seconds)
    assert growing.asked == 0


def test_ranks_are_kept_until_somebody_says_that_forecasts_changed() -> None:
    growing = Growing()
    growing.add(3, {1: [0], 2: [1]})
    ranks = UpwardRanks()
    first = list(ranks.of(growing.run, growing.seconds))
    asked = growing.asked
    assert list(ranks.of(growing.run, lambda task: 100.0)) == first
    assert growing.asked == asked
    ranks.forget(growing.run)
    assert list(ranks.of(growing.run, lambda task: 100.0)) == [300.0, 200.0, 100.0]
    ranks.forget(growing.run)
    assert list(ranks.of(growing.run, growing.seconds)) == first


def test_a_growing_run_is_ranked_anew_now_and_then_and_when_it_is_closed() -> None:
    growing = Growing()
    growing.add(100, {number: [number - 1] for number in range(1, 100)})
    ranks = UpwardRanks()
    ranks.of(growing.run, lambda task: 1.0)
    growing.add(1, {100: [99]})
    assert list(ranks.of(growing.run, lambda task: 1.0))[-2:] == [1.0, 1.0]  # a little growth: the newcomer alone
    apply(growing.state, f.RunClosed(1, "closed"), 0.0)
    assert list(ranks.of(growing.run, lambda task: 1.0))[:2] == [101.0, 100.0]


def test_filling_a_large_run_bit_by_bit_costs_little_more_than_at_once() -> None:
    growing, ranks = Growing(), UpwardRanks()
    for _ in range(200):
        first = len(growing.run.tasks)
        growing.add(20, {number: [number - 1] for number in range(max(1, first), first + 20)})
        ranks.of(growing.run, growing.seconds)
    assert growing.asked < 20 * len(growing.run.tasks)


def test_tasks_that_are_done_have_no_rank() -> None:
    growing = Growing()
    growing.add(3, {1: [0], 2: [1]})
    growing.run.tasks[0].state = DONE
    assert list(UpwardRanks().of(growing.run, lambda task: 1.0)) == [0.0, 2.0, 1.0]


@pytest.mark.parametrize("seed", range(5))
def test_ranks_fall_along_every_dependency(seed: int) -> None:
    dice = random.Random(seed)
    growing = Growing()
    deps = {number: dice.sample(range(number), min(number, dice.randrange(4))) for number in range(1, 500)}
    growing.add(500, deps)
    assert growing.run.counts[WAITING]
    ranks = UpwardRanks().of(growing.run, growing.seconds)
    for child, parents in deps.items():
        assert all(ranks[parent] > ranks[child] for parent in parents)


def test_a_chain_of_a_hundred_thousand_is_no_deeper_than_any_other() -> None:
    growing = Growing()
    growing.add(100_000, {number: [number - 1] for number in range(1, 100_000)})
    assert UpwardRanks().of(growing.run, lambda task: 1.0)[0] == 100_000


# --- the order of what is ready -----------------------------------------------------------------------------------------------------


def ready(growing: Growing, order: CriticalPathOrder, now: float = 0.0) -> list[int]:
    (shape,) = growing.state.ready
    return [index(task) for task in order.of(growing.state, shape, now)]


def test_the_head_of_the_longest_chain_is_first() -> None:
    growing, order = Growing(), CriticalPathOrder()
    growing.add(7, {4: [2], 5: [4], 6: [1]})
    assert ready(growing, order) == [2, 1, 0, 3]
    assert ready(growing, order) == [2, 1, 0, 3], "what was offered and not taken is offered again"


def test_what_is_taken_is_gone_and_what_becomes_ready_is_put_in_its_place() -> None:
    growing, order = Growing(), CriticalPathOrder()
    growing.add(7, {4: [2], 5: [4], 6: [1]})
    (shape,) = growing.state.ready
    for taken in islice(order.of(growing.state, shape, 0.0), 1):
        dequeue(growing.state, taken)
    assert ready(growing, order) == [1, 0, 3]
    child, back = growing.run.tasks[4], growing.run.tasks[2]
    enqueue(growing.state, child)
    assert ready(growing, order) == [1, 4, 0, 3]
    enqueue(growing.state, back, front=True)
    assert ready(growing, order) == [2, 1, 4, 0, 3]


def test_where_nobody_waits_the_queue_is_the_order() -> None:
    growing, order = Growing(), CriticalPathOrder()
    growing.add(3, {})
    (shape,) = growing.state.ready
    assert order.of(growing.state, shape, 0.0) is shape.queue


def test_ranks_follow_what_is_learnt_but_not_at_once() -> None:
    growing, order = Growing(), CriticalPathOrder()
    apply(growing.state, f.SpecsAdded(1, 1, [TaskSpec("python", "long")]), 0.0)
    apply(growing.state, f.TasksAdded(1, 0, [0, 1, 0, 0], [b""] * 4, {2: [0], 3: [2]}), 0.0)
    (shape,) = growing.state.ready
    assert [index(task) for task in order.of(growing.state, shape, 0.0)] == [0, 1]
    for _ in range(5):
        growing.state.forecasts.task_ended("python long", "w", "", 100.0)
        growing.state.forecasts.task_ended("python ", "w", "", 1.0)
    assert [index(task) for task in order.of(growing.state, shape, 1.0)] == [0, 1]
    assert [index(task) for task in order.of(growing.state, shape, 2 * MIN_INTERVAL_S)] == [1, 0]


@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_that_of_sorting_whatever_comes_and_goes(seed: int) -> None:
    dice = random.Random(seed)
    growing, order = Growing(), CriticalPathOrder()
    growing.add(60, {number: [dice.randrange(number)] for number in range(20, 60)})
    (shape,) = growing.state.ready
    outside: list[Task] = []
    for _ in range(60):
        ranks = UpwardRanks().of(growing.run, lambda task: 1.0)
        expected = sorted((index(task) for task in shape.queue), key=lambda one: (-ranks[one], one))
        taken = list(islice(order.of(growing.state, shape, 0.0), dice.randrange(4)))
        assert [index(task) for task in taken] == expected[: len(taken)]
        for task in taken:
            if len(shape.queue) > 1 and dice.random() < 0.7:
                dequeue(growing.state, task)
                outside.append(task)
        for _ in range(dice.choice((0, 0, 1, 3)) if outside else 0):
            # Also tasks that were taken before the last call, so that they come back beside tasks that the order knows.
            enqueue(growing.state, outside.pop(dice.randrange(len(outside))), front=dice.random() < 0.5)
            if not outside:
                break


def test_where_nobody_waits_the_most_costly_come_first() -> None:
    growing = Growing()
    growing.add(4, {})
    growing.run.costs.extend([2.0, 5.0, 3.0])
    shape = growing.run.tasks[0].shape
    assert [index(task) for task in CriticalPathOrder().of(growing.state, shape, 0.0)] == [1, 2, 0, 3]


def test_what_comes_back_between_others_is_offered() -> None:
    growing = Growing()
    growing.add(4, {})
    growing.run.costs.extend([1.0, 10.0, 5.0, 0.5])
    tasks, shape, order = growing.run.tasks, growing.run.tasks[0].shape, CriticalPathOrder()

    def offered(count: int) -> list[int]:
        return [index(task) for task in islice(order.of(growing.state, shape, 0.0), count)]

    for task in tasks[2:]:
        dequeue(growing.state, task)
    assert offered(2) == [1, 0]
    for task in tasks[:2]:
        dequeue(growing.state, task)
    for task in tasks[2:]:
        enqueue(growing.state, task)
    assert offered(1) == [2]
    dequeue(growing.state, tasks[2])
    for task in (tasks[1], tasks[0]):
        enqueue(growing.state, task, front=True)
    assert offered(4) == [1, 0, 3]
