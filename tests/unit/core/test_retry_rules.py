"""Who pays for a failure, and how often a task is tried again."""

from __future__ import annotations

import pytest

from pilotfish.core.tasks.retry_rules import CRASH_BUDGET, KILLED_BUDGET, OOM_BUDGET, SUSPECT_AFTER
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import ASSIGNED, CANCELLED, DONE, FAILED, READY, RUNNING
from pilotfish.model.task import Request, TaskSpec
from tests.support.machine_stage import Stage, fail

GIB = 1 << 30


def test_a_task_fails_for_good_after_its_retries() -> None:
    stage = Stage()
    link = stage.join("w")
    (task,) = stage.work(TaskSpec("python", retries=2))
    for left in (2, 1, 0):
        stage.finish(link, task, failure=fail())
        assert task.state == (ASSIGNED if left else FAILED)
    assert task.attempt == 3


def test_a_failure_that_is_the_users_is_never_retried() -> None:
    stage = Stage()
    link = stage.join("w")
    (task,) = stage.work(TaskSpec("python", retries=5))
    stage.finish(link, task, failure=fail("version", "user"))
    assert task.state == FAILED
    assert task.attempt == 1


def test_a_lost_worker_does_not_eat_the_retries_of_a_task() -> None:
    stage = Stage()
    (task,) = stage.work(TaskSpec("python", retries=0, losses=10))
    for name in ("a", "b", "c"):
        link = stage.join(name)
        stage.finish(link, task, failure=fail("disk", "worker"))
        assert task.state in (READY, ASSIGNED)
        stage.tell(i.AgentMessage(link, m.Leave("done")))
    link = stage.join("d")
    stage.finish(link, task)
    assert task.state == DONE


@pytest.mark.parametrize("losses", [0, 1, 3])
def test_losses_have_a_budget_of_their_own(losses: int) -> None:
    stage = Stage()
    (task,) = stage.work(TaskSpec("python", losses=losses))
    for number in range(losses + 1):
        assert task.state == READY
        stage.join(f"w{number}")
        stage.wait(stage.settings.lease_s + 20)
    assert task.state == FAILED
    assert task.failure is not None
    assert task.failure.cause == "worker-lost"


def test_a_failure_that_the_worker_brought_about_is_tried_elsewhere() -> None:
    stage = Stage()
    bad, good = stage.join("bad"), stage.join("good")
    first, second = stage.work(count=2)
    stage.finish(bad, first, failure=fail("disk", "worker"))
    stage.finish(good, second)
    assert first.worker is not None
    assert first.worker.id == "good"


def test_a_task_that_crashes_its_slot_gets_few_chances() -> None:
    stage = Stage()
    link = stage.join("w")
    (task,) = stage.work()
    for _ in range(CRASH_BUDGET):
        stage.finish(link, task, failure=fail("crash"))
        assert task.state == ASSIGNED
    stage.finish(link, task, failure=fail("crash"))
    assert task.state == FAILED


def test_a_task_whose_slot_is_killed_gets_more_chances_than_one_that_crashes() -> None:
    stage = Stage()
    link = stage.join("w")
    (task,) = stage.work()
    for _ in range(KILLED_BUDGET):
        stage.finish(link, task, failure=fail("slot-lost", "worker"))
        assert task.state == ASSIGNED
    stage.finish(link, task, failure=fail("slot-lost", "worker"))
    assert task.state == FAILED


def test_a_task_out_of_memory_gets_twice_as_much_as_often_as_it_helps() -> None:
    stage = Stage()
    link = stage.join("w", capacity={"memory": 16.0 * GIB})
    (task,) = stage.work(TaskSpec("python", request=Request(memory=GIB)))
    granted = []
    for _ in range(OOM_BUDGET):
        stage.finish(link, task, failure=fail("oom"))
        granted.append(stage.sent(m.Assign)[0].tasks[0].memory)
    assert granted == [2 * GIB, 4 * GIB]
    stage.finish(link, task, failure=fail("oom"))
    assert task.state == FAILED


def test_a_task_that_had_all_the_memory_there_is_fails_at_once() -> None:
    stage = Stage()
    link = stage.join("w", capacity={"memory": float(GIB)})
    (task,) = stage.work(TaskSpec("python", request=Request(memory=GIB)))
    stage.finish(link, task, failure=fail("oom"))
    assert task.state == FAILED


def test_more_memory_than_twice_is_cut_to_what_the_largest_worker_has() -> None:
    stage = Stage()
    link = stage.join("w", capacity={"memory": 1.5 * GIB})
    (task,) = stage.work(TaskSpec("python", request=Request(memory=GIB)))
    stage.finish(link, task, failure=fail("oom"))
    assert stage.sent(m.Assign)[0].tasks[0].memory == GIB * 3 // 2


def _black_hole(stage: Stage) -> tuple[int, int]:
    """Two workers, one of which fails whatever it gets."""
    hole, good = stage.join("hole"), stage.join("good")
    first, second = stage.work(count=2)
    for task in (first, second):
        link = hole if task.worker is not None and task.worker.id == "hole" else good
        stage.finish(link, task)
    return hole, good


def test_a_worker_that_fails_everything_is_not_believed() -> None:
    """The first two failures there count; the third task gets a second opinion from a worker that does well."""
    stage = Stage(PoolSettings(quarantine_after=100))
    hole, good = _black_hole(stage)
    tasks = stage.work(count=8)
    outcomes = []
    while any(task.state < DONE for task in tasks):
        here = [task for task in tasks if task.worker is not None and task.worker.id == "hole"]
        if here:
            stage.finish(hole, here[0], failure=fail())
            outcomes.append(here[0].state)
            continue
        there = [task for task in tasks if task.worker is not None and task.worker.id == "good"]
        stage.finish(good, there[0])
    assert outcomes[:2] == [FAILED, FAILED]
    assert FAILED not in outcomes[2:]
    assert sum(task.state == DONE for task in tasks) == 6


def test_a_second_opinion_is_asked_for_once() -> None:
    stage = Stage(PoolSettings(quarantine_after=100))
    hole, _ = _black_hole(stage)
    for _ in range(2):
        (task,) = stage.work(TaskSpec("python"))
        link = hole if task.worker is not None and task.worker.id == "hole" else hole + 1
        if link == hole:
            stage.finish(hole, task, failure=fail())
    (task,) = stage.work(TaskSpec("python"))
    seen = 0
    while task.state == ASSIGNED and seen < 5:
        assert task.worker is not None
        stage.finish(hole if task.worker.id == "hole" else hole + 1, task, failure=fail())
        seen += 1
    assert task.state == FAILED
    assert seen <= 2


LONG_US = 60_000_000
"""So long that no worker gets tasks ahead."""
HERE = TaskSpec("python", tags={"place": "here"})


def _quarantined(settings: PoolSettings) -> Stage:
    """A worker that failed different tasks, one after the other, beside a worker where equal tasks succeed. Tasks wait for both."""
    stage = Stage(settings)
    good, hole = stage.join("good"), stage.join("hole", tags={"place": "here"})
    stage.work(count=4 * settings.quarantine_after)
    for _ in range(settings.quarantine_after):
        stage.finish(hole, failure=fail())
        stage.wait(1)
        stage.finish(good, wall_us=LONG_US)
    return stage


def test_a_worker_that_keeps_failing_is_quarantined_for_a_while_and_then_gets_work_again() -> None:
    settings = PoolSettings(quarantine_after=3, quarantine_s=60)
    stage = _quarantined(settings)
    assert stage.machine.state.workers["hole"].quarantined_until
    assert stage.machine.state.ready
    before = len(stage.machine.state.workers["hole"].active)
    stage.wait(settings.quarantine_s + 1, quietly=False)
    assert (before, len(stage.machine.state.workers["hole"].active)) == (0, 1)


def test_a_worker_that_breaks_while_all_others_are_in_long_tasks_fails_few_of_them() -> None:
    stage = Stage(PoolSettings(quarantine_after=3))
    good, hole = stage.join("good"), stage.join("hole")
    stage.work(count=40)
    stage.finish(good, wall_us=LONG_US)
    stage.finish(hole, wall_us=LONG_US)
    for _ in range(3):
        stage.wait(1)
        stage.finish(hole, failure=fail())
    assert stage.machine.state.workers["hole"].quarantined_until


def test_a_quarantine_ends_in_time_even_if_the_master_died_in_between() -> None:
    settings = PoolSettings(quarantine_after=3, quarantine_s=60)
    stage = _quarantined(settings)
    stage.restart()
    stage.join("hole", tags={"place": "here"})
    assert stage.machine.state.workers["hole"].quarantined_until
    stage.wait(settings.quarantine_s + 1, quietly=False)
    assert not stage.machine.state.workers["hole"].quarantined_until


def test_failing_tasks_of_new_runs_stop_no_worker_although_other_runs_succeed_elsewhere() -> None:
    """A person tries again and again until the program works."""
    stage = Stage(PoolSettings(quarantine_after=3))
    good, tried = stage.join("good", tags={"place": "there"}), stage.join("tried")
    for _ in range(4):
        stage.work(TaskSpec("python", tags={"place": "there"}))
        stage.work()
        stage.finish(tried, failure=fail())
        stage.wait(1)
        stage.finish(good, wall_us=LONG_US)
    assert not stage.machine.state.workers["tried"].quarantined_until


def test_a_quarantine_ends_as_soon_as_a_task_waits_that_fits_no_other_worker() -> None:
    stage = _quarantined(PoolSettings(quarantine_after=3))
    assert stage.machine.state.workers["hole"].quarantined_until
    stage.work(HERE)
    assert not stage.machine.state.workers["hole"].quarantined_until


def test_no_quarantine_begins_while_a_task_waits_that_fits_no_other_worker() -> None:
    stage = Stage(PoolSettings(quarantine_after=3))
    good, hole = stage.join("good"), stage.join("hole", tags={"place": "here"})
    stage.work(count=12)
    stage.work(HERE)
    for _ in range(3):
        stage.finish(hole, failure=fail())
        stage.wait(1)
        stage.finish(good, wall_us=LONG_US)
    assert not stage.machine.state.workers["hole"].quarantined_until


def test_the_last_good_worker_is_never_quarantined() -> None:
    stage = Stage(PoolSettings(quarantine_after=2))
    link = stage.join("only")
    for task in stage.work(count=6):
        stage.finish(link, task, failure=fail())
    assert not stage.machine.state.workers["only"].quarantined_until


def test_a_task_under_which_workers_die_must_run_alone_and_is_convicted_by_a_death_while_alone() -> None:
    stage = Stage()
    poison, neighbour = stage.work(count=2)
    for number in range(SUSPECT_AFTER):
        stage.join(f"w{number}", cores=2.0)
        assert poison.worker is not None
        assert neighbour.worker is poison.worker
        stage.lose(f"w{number}")
    assert poison.suspect
    assert neighbour.suspect
    stage.join("alone", cores=2.0)
    (convict,) = stage.machine.state.workers["alone"].active
    stage.lose("alone")
    assert convict.state == FAILED
    assert convict.failure is not None
    assert convict.failure.cause == "poison"
    innocent = neighbour if convict is poison else poison
    link = stage.join("next", cores=2.0)
    stage.finish(link, innocent)
    assert innocent.state == DONE


def test_silence_makes_no_suspects() -> None:
    stage = Stage()
    (task,) = stage.work()
    for number in range(4):
        stage.join(f"w{number}")
        stage.wait(stage.settings.lease_s + 20)
    assert not task.suspect
    assert task.state == READY


def test_a_worker_that_leaves_in_order_costs_its_tasks_nothing() -> None:
    stage = Stage()
    (task,) = stage.work(TaskSpec("python", losses=0))
    for number in range(5):
        link = stage.join(f"w{number}")
        stage.started(link, task)
        stage.tell(i.AgentMessage(link, m.Leave("the time of this pilot is over")))
    assert task.state == READY
    assert task.failure_counts is None


def test_what_waited_at_a_worker_behind_others_is_not_charged_with_its_silence() -> None:
    stage = Stage(PoolSettings(ahead_s=10.0))
    link = stage.join("w")
    (first,) = stage.work()
    stage.finish(link, first)
    tasks = stage.submit(1, TaskSpec("python"), 6)
    worker = stage.machine.state.workers["w"]
    assert len(worker.active) == 1
    assert len(worker.ahead) == 5
    stage.wait(stage.settings.lease_s + 20)
    charged = [task for task in tasks if task.failure_counts is not None]
    assert len(charged) == 2, "the one that had room, and the next, whose turn may have come"


def test_an_agent_that_was_started_anew_under_its_old_name_pays_for_what_it_ran() -> None:
    stage = Stage()
    (task,) = stage.work()
    link = stage.join("w")
    stage.started(link, task)
    assert task.state == RUNNING
    stage.join("w")
    assert task.failure_counts is not None
    assert task.failure_counts.deaths == 1


def test_a_poison_that_hides_behind_quick_tasks_is_charged_from_the_second_worker_on() -> None:
    """The results of the quick ones are lost with each worker, so that nobody knows that it was the turn of the last."""
    stage = Stage(PoolSettings(ahead_s=10.0))
    link = stage.join("w")
    (known,) = stage.work()
    stage.finish(link, known, wall_us=1000)
    *_, poison = stage.submit(known.id >> 32, TaskSpec("python"), 10)
    deaths = []
    for worker in ("w", "second"):
        if worker != "w":
            stage.join(worker)
        assert poison in stage.machine.state.workers[worker].ahead
        stage.lose(worker)
        deaths.append(poison.failure_counts.deaths if poison.failure_counts else 0)
    assert deaths == [0, 1]


def test_a_run_that_had_its_fill_of_failures_survives_the_death_of_a_worker_with_more_of_its_tasks() -> None:
    stage = Stage()
    tasks = stage.work(TaskSpec("python", losses=0), count=4, max_failures=1)
    stage.join("w", cores=4.0)
    stage.lose("w")
    assert sorted(task.state for task in tasks) == [FAILED, CANCELLED, CANCELLED, CANCELLED]


def test_no_worker_is_quarantined_if_no_equal_task_succeeds() -> None:
    """Where everything fails, the tasks are to blame, and shall say so instead of waiting for a worker."""
    stage = Stage(PoolSettings(quarantine_after=2))
    tasks = stage.work(count=4)
    links = {f"w{number}": stage.join(f"w{number}") for number in range(4)}
    for task in tasks:
        assert task.worker is not None
        stage.finish(links[task.worker.id], task)
    tasks = stage.work(TaskSpec("python", retries=1), count=40)
    for _ in range(100):
        for task in tasks:
            if task.worker is not None:
                stage.finish(links[task.worker.id], task, failure=fail())
    assert all(task.state == FAILED for task in tasks)
    workers = stage.machine.state.workers.values()
    assert not any(worker.quarantined_until for worker in workers)
