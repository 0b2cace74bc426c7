"""How many tasks, and which, a site's master is lent."""

from __future__ import annotations

from pilotfish.core.policy_interface import DelegationProposal
from pilotfish.core.state import Task, Worker
from pilotfish.model.task import Request, TaskSpec
from pilotfish.policies.site_delegation import AHEAD_S, MIN_AHEAD, delegate, recall_delegated
from tests.support.policy_stage import Idle


def delegated(stage: Idle, *sites: list[Worker]) -> dict[str, list[Task]]:
    """To the first of each site."""
    delegations = delegate(stage.view([(workers[0], workers) for workers in sites]), stage.shapes())
    assert all(isinstance(delegation, DelegationProposal) for delegation in delegations)
    return {delegation.worker.id: delegation.tasks for delegation in delegations}


def site(stage: Idle, name: str, workers: int, cores: float = 1.0, **tags: str) -> list[Worker]:
    return [stage.enter(f"{name}{number}", cores=cores, **tags) for number in range(workers)]


def know(stage: Idle, seconds: float) -> None:
    """So long tasks take."""
    for shape in stage.shapes():
        shape.samples, shape.mean_us = 10, seconds * 1e6


def test_a_site_is_lent_what_can_begin_at_once_and_a_little_more() -> None:
    stage = Idle()
    tasks = stage.need(*[{}] * 100)
    assert delegated(stage, site(stage, "a", 5, cores=4.0)) == {"a0": tasks[: 20 + MIN_AHEAD]}, "the oldest"


def test_of_short_tasks_it_is_lent_as_many_again_and_of_long_ones_no_more_than_need_be() -> None:
    counts = []
    for seconds in (0.1, 1.0, 10 * AHEAD_S):
        stage = Idle()
        stage.need(*[{}] * 500)
        workers = site(stage, "a", 100)
        know(stage, seconds)
        counts.append(len(delegated(stage, workers)["a0"]))
    assert counts == [200, 200, 110]


def test_a_busy_site_is_lent_only_what_is_to_follow() -> None:
    stage = Idle()
    stage.need(*[{}] * 100)
    workers = site(stage, "a", 3)
    for worker in workers:
        worker.free = dict.fromkeys(worker.free, 0)
    assert len(delegated(stage, workers)["a0"]) == MIN_AHEAD


def test_it_is_lent_no_more_than_that_in_all() -> None:
    stage = Idle()
    tasks = stage.need(*[{}] * 100)
    workers = site(stage, "a", 20)
    workers[0].delegated = dict.fromkeys(tasks[:5])
    assert len(delegated(stage, workers)["a0"]) == 20 + MIN_AHEAD - 5
    workers[0].delegated = dict.fromkeys(tasks[: 20 + MIN_AHEAD])
    assert delegated(stage, workers) == {}


def test_tasks_whose_inputs_can_be_had_anywhere_count_like_those_without() -> None:
    stage = Idle()
    tasks = stage.need(*[{"input": 10}] * 100)
    workers = site(stage, "a", 20)
    workers[0].delegated = dict.fromkeys(tasks[:5])
    assert len(delegated(stage, workers)["a0"]) == 20 + MIN_AHEAD - 5


def test_no_task_is_lent_to_two_sites() -> None:
    stage = Idle()
    stage.need(*[{}] * 20)
    found = delegated(stage, site(stage, "a", 8), site(stage, "b", 8))
    assert not set(found["a0"]) & set(found["b0"])


def test_no_site_is_lent_what_it_cannot_begin_while_another_one_is_idle() -> None:
    stage = Idle()
    stage.need(*[{}] * 12)
    found = delegated(stage, site(stage, "a", 8), site(stage, "b", 8))
    assert {name: len(tasks) for name, tasks in found.items()} == {"a0": 8, "b0": 4}


def test_what_nobody_at_the_site_could_run_is_not_lent_to_it() -> None:
    stage = Idle()
    stage.need({}, spec=TaskSpec("python", request=Request(8.0)))
    (task,) = stage.need({}, spec=TaskSpec("python", requirement='kind == "wet"'))
    dry, wet = site(stage, "dry", 3, kind="dry"), site(stage, "wet", 3, kind="wet")
    assert delegated(stage, dry, wet) == {"wet0": [task]}


def test_one_worker_that_could_run_it_is_enough() -> None:
    stage = Idle()
    (task,) = stage.need({}, spec=TaskSpec("python", request=Request(8.0)))
    workers = [*site(stage, "a", 3), stage.enter("large", cores=8.0)]
    assert delegated(stage, workers) == {"a0": [task]}


def test_shapes_are_lent_in_the_order_in_which_they_are_given() -> None:
    stage = Idle()
    later = stage.need(*[{}] * 20)
    first = stage.need(*[{}] * 6, spec=TaskSpec("python", priority=1))
    workers = site(stage, "a", 8)
    shapes = sorted(stage.shapes(), key=lambda shape: -shape.priority)
    (delegation,) = delegate(stage.view([(workers[0], workers)]), shapes)
    assert delegation.tasks == first + later[: 2 + MIN_AHEAD]


def test_without_tasks_nothing_is_lent() -> None:
    stage = Idle()
    assert delegated(stage, site(stage, "a", 2)) == {}


# --- at the end -----------------------------------------------------------------------------------------------------------------------


def end(stage: Idle, *sites: list[Worker]) -> tuple[str, int]:
    """Nothing is left to lend: who is asked to hand back how many?"""
    for shape in stage.shapes():
        del stage.machine.state.ready[shape]
    recall = recall_delegated(stage.view([(workers[0], workers) for workers in sites]))
    return (recall.worker.id, len(recall.tasks)) if recall is not None else ("", 0)


def test_half_of_what_waits_at_one_site_is_called_back_for_another_that_is_idle() -> None:
    stage = Idle()
    tasks = stage.need(*[{}] * 8)
    a, b = site(stage, "a", 2), site(stage, "b", 2)
    for worker in a:
        worker.free = dict.fromkeys(worker.free, 0)
    for task in tasks:
        task.attempt = 1
    a[0].delegated = dict.fromkeys(tasks)
    assert end(stage, a, b) == ("a0", 4)


def test_what_came_back_once_does_not_come_back_again() -> None:
    stage = Idle()
    tasks = stage.need(*[{}] * 8)
    a, b = site(stage, "a", 2), site(stage, "b", 2)
    for task in tasks:
        task.attempt = 2
    a[0].delegated = dict.fromkeys(tasks)
    assert end(stage, a, b) == ("", 0)


def test_nothing_is_called_back_while_there_is_something_else_to_do() -> None:
    stage = Idle()
    tasks = stage.need(*[{}] * 8)
    a, b = site(stage, "a", 2), site(stage, "b", 2)
    a[0].delegated = dict.fromkeys(tasks)
    assert recall_delegated(stage.view([(a[0], a), (b[0], b)])) is None


def test_nothing_is_called_back_if_nobody_is_idle() -> None:
    stage = Idle()
    tasks = stage.need(*[{}] * 8)
    a, b = site(stage, "a", 2), site(stage, "b", 2)
    for worker in (*a, *b):
        worker.free = dict.fromkeys(worker.free, 0)
        worker.active = dict.fromkeys(tasks[:1], ())
    a[0].delegated = dict.fromkeys(tasks[1:])
    assert end(stage, a, b) == ("", 0)
