"""What goes where, and when: packing, moldable tasks, priorities, dependencies, pauses, walltimes, sending ahead and calling back."""

from __future__ import annotations

from pilotfish.core.policy_interface import AssignmentProposal, PolicyView, RecallProposal
from pilotfish.core.state import Task
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.ids import show_task
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import ASSIGNED, CANCELLED, DONE, DRAINING, FAILED, JOINED, READY, WAITING
from pilotfish.model.task import Request, RunOptions, TaskSpec
from pilotfish.policies.dispatcher import STALE_S
from pilotfish.policies.multi_node_placement import RESERVE_AFTER_S
from tests.support.machine_stage import CLIENT, Stage, fail

GIB = 1 << 30


def test_tasks_are_packed_by_everything_they_need() -> None:
    stage = Stage()
    stage.join("w", cores=4.0, capacity={"memory": 4.0 * GIB, "gpus": 1.0, "licence": 2.0})
    hungry = stage.work(TaskSpec("python", request=Request(1.0, memory=3 * GIB)), count=2)
    graphic = stage.work(TaskSpec("python", request=Request(1.0, gpus=1.0)), count=2)
    licensed = stage.work(TaskSpec("python", request=Request(0.5, custom={"licence": 1.0})), count=3)
    placed = [[task.state == ASSIGNED for task in tasks] for tasks in (hungry, graphic, licensed)]
    assert placed == [[True, False], [True, False], [True, True, False]]


def test_fractions_of_cores_add_up_exactly() -> None:
    stage = Stage()
    link = stage.join("w", cores=1.0)
    tasks = stage.work(TaskSpec("python", request=Request(0.1)), count=11)
    assert sum(task.state == ASSIGNED for task in tasks) == 10
    for task in tasks[:10]:
        stage.finish(link, task)
    assert stage.machine.state.workers["w"].free["cores"] + 1000 == stage.machine.state.workers["w"].capacity["cores"]


def test_moldable_tasks_share_what_is_free_within_their_range() -> None:
    stage = Stage()
    link = stage.join("w", cores=9.0)
    first, second = stage.work(TaskSpec("python", request=Request(2.0, 6.0)), count=2)
    (assign,) = stage.sent(m.Assign)
    assert {sent.task: sent.cores for sent in assign.tasks} == {first.id: 4.0, second.id: 4.0}
    stage.finish(link, first)
    assert stage.machine.state.workers["w"].free["cores"] == 50_000
    (alone,) = stage.work(TaskSpec("python", request=Request(1.0, 20.0)))
    assert [sent.cores for sent in stage.sent(m.Assign)[0].tasks] == [5.0] and alone.state == ASSIGNED


def test_the_higher_priority_goes_first_and_equals_in_order() -> None:
    stage = Stage()
    link = stage.join("w")
    stage.work()
    low = stage.work(TaskSpec("python", priority=-1))[0]
    first, second = stage.work(TaskSpec("python", priority=5), count=2)
    order = []
    for _ in range(4):
        (current,) = stage.held[link]
        order.append(current)
        stage.finish(link, wall_us=10_000_000)
    assert order[1:] == [first.id, second.id, low.id]


def test_a_task_waits_for_all_that_it_needs() -> None:
    stage = Stage()
    run = stage.open_run()
    first, second, last = stage.submit(run, TaskSpec("python"), 3, {2: [0, 1]})
    link = stage.join("w", cores=3.0)
    assert (first.state, second.state, last.state) == (ASSIGNED, ASSIGNED, WAITING)
    stage.finish(link, first)
    assert last.state == WAITING
    stage.finish(link, second)
    assert last.state == ASSIGNED


def test_what_needs_a_task_that_ended_badly_never_runs_and_so_on_down_the_line() -> None:
    stage = Stage()
    run = stage.open_run()
    first, second, third = stage.submit(run, TaskSpec("python"), 3, {1: [0], 2: [1]})
    link = stage.join("w")
    stage.finish(link, first, failure=fail())
    assert (second.state, third.state) == (FAILED, FAILED)
    assert third.failure is not None
    assert third.failure.cause == "dependency"
    (late,) = stage.submit(run, TaskSpec("python"), 1, {0: [2]})
    assert late.state == FAILED, "also if it is submitted afterwards"
    assert late.failure is not None and late.failure.message == "task 1.0, which it needs, failed", "the task that failed first"
    for task in (second, third, late):
        commands = stage.ask("why", task=show_task(task.id))["reasons"][0]["commands"]
        assert commands == ["pilotfish why 1.0", "pilotfish rerun 1 --failed"], "it has no output, and the first task explains the failure"


def test_what_needs_a_cancelled_task_says_that_it_was_cancelled() -> None:
    stage = Stage()
    first, second = stage.submit(stage.open_run(), TaskSpec("python"), 2, {1: [0]})
    stage.ask("cancel", tasks=[show_task(first.id)])
    assert second.state == FAILED and second.failure is not None
    assert second.failure.message == "task 1.0, which it needs, was cancelled"


def test_a_run_is_cancelled_when_it_had_its_fill_of_failures() -> None:
    stage = Stage()
    link = stage.join("w")
    tasks = stage.work(count=5, max_failures=2)
    stage.finish(link, tasks[0], failure=fail())
    assert stage.machine.state.runs[1].counts[CANCELLED] == 0
    stage.finish(link, tasks[1], failure=fail())
    assert [task.state for task in tasks] == [FAILED, FAILED, CANCELLED, CANCELLED, CANCELLED]
    assert stage.machine.state.runs[1].finished


def test_tasks_that_never_ran_do_not_count_as_failures_of_their_run() -> None:
    stage = Stage()
    link = stage.join("w")
    run = stage.open_run(max_failures=2)
    tasks = stage.submit(run, TaskSpec("python"), 6, {1: [0], 2: [0], 3: [1]})
    stage.finish(link, tasks[0], failure=fail())
    assert [task.state for task in tasks[:4]] == [FAILED] * 4
    assert tasks[5].state != CANCELLED
    stage.finish(link, tasks[4], failure=fail())
    assert tasks[5].state == CANCELLED and tasks[5].failure is not None
    assert tasks[5].failure.message == "2 tasks failed"


def test_a_paused_run_starts_nothing_and_its_running_tasks_go_on() -> None:
    stage = Stage()
    link = stage.join("w")
    first, second = stage.work(count=2)
    stage.ask("pause", run=1)
    stage.finish(link, first)
    assert (first.state, second.state) == (DONE, READY)
    stage.ask("resume", run=1)
    assert second.state == ASSIGNED


def test_cancelled_tasks_are_stopped_where_they_run() -> None:
    stage = Stage()
    link = stage.join("w")
    (task,) = stage.work()
    stage.ask("cancel", run=1)
    (kill,) = stage.sent(m.Kill, link)
    assert kill.items == [(task.id, 1)]
    stage.finish(link, task)
    assert task.state == CANCELLED, "its late result changes nothing"


def test_a_task_is_not_begun_where_it_could_not_end() -> None:
    stage = Stage()
    stage.join("ending", ends_in_s=60.0)
    long, short = stage.work(TaskSpec("python", time_s=120.0))[0], stage.work(TaskSpec("python", time_s=30.0))[0]
    assert (long.state, short.state) == (READY, ASSIGNED)


def test_a_large_task_is_not_starved_by_a_stream_of_small_ones() -> None:
    stage = Stage()
    link = stage.join("w", cores=2.0)
    stage.work(count=2)
    (large,) = stage.work(TaskSpec("python", request=Request(2.0)))
    small = stage.work(TaskSpec("python", time_s=1.0), count=50)
    for _ in range(20):
        if large.state == ASSIGNED:
            break
        stage.wait(RESERVE_AFTER_S / 2, quietly=False)
        stage.finish(link, stage.machine.state.task(next(iter(stage.held[link]))))
    assert large.state == ASSIGNED
    assert any(task.state == READY for task in small)


def _worker_with_short_tasks(stage: Stage) -> int:
    link = stage.join("first")
    (known,) = stage.work()
    stage.finish(link, known, wall_us=1000)
    return link


def test_short_tasks_are_sent_ahead_only_when_nobody_has_room_for_them() -> None:
    stage = Stage()
    _worker_with_short_tasks(stage)
    stage.join("second")
    spec_run = stage.machine.state.runs[1]
    first, second = stage.submit(spec_run.id, TaskSpec("python"), 2)
    assert first.worker is not None
    assert second.worker is not None
    assert first.worker is not second.worker
    stage.submit(spec_run.id, TaskSpec("python"), 4)
    assert any(worker.ahead for worker in stage.machine.state.workers.values())


def test_long_tasks_are_never_sent_ahead() -> None:
    stage = Stage()
    link = stage.join("w")
    (known,) = stage.work()
    stage.finish(link, known, wall_us=5_000_000)
    stage.submit(1, TaskSpec("python"), 4)
    assert not stage.machine.state.workers["w"].ahead


def test_what_waits_behind_a_long_task_is_called_back_for_a_worker_that_idles() -> None:
    stage = Stage()
    slow = _worker_with_short_tasks(stage)
    tasks = stage.submit(1, TaskSpec("python"), 4)
    assert len(stage.machine.state.workers["first"].ahead) == 3
    idle = stage.join("second")
    stage.wait(STALE_S / 2, quietly=False)
    assert not stage.machine.state.workers["first"].recalled
    effects = stage.wait(STALE_S, quietly=False)
    recalls = [effect.message for effect in effects if isinstance(effect, e.Send) and isinstance(effect.message, m.Recall)]
    assert len(recalls) == 1, "asked once"
    items = recalls[0].items
    assert [number for number, _ in items] == [task.id for task in tasks[1:]]
    stage.tell(i.AgentMessage(slow, m.Returned(items)))
    assert tasks[1].worker is not None
    assert tasks[1].worker.id == "second"
    assert idle in stage.held


def test_what_waits_is_called_back_also_while_others_are_ready_that_the_idle_worker_cannot_take() -> None:
    stage = Stage()
    _worker_with_short_tasks(stage)
    stage.submit(1, TaskSpec("python"), 4)
    (elsewhere,) = stage.work(TaskSpec("python", tags={"disk": "big"}))
    stage.join("second")
    stage.wait(2 * STALE_S, quietly=False)
    assert elsewhere.state == READY
    assert len(stage.machine.state.workers["first"].recalled) == 3


def test_a_worker_whose_task_was_cancelled_idles_from_then_on() -> None:
    stage = Stage(PoolSettings(idle_s=20.0))
    stage.join("w")
    stage.work()
    stage.wait(100.0, quietly=False)
    stage.ask("cancel", run=1)
    assert stage.machine.state.workers["w"].state == JOINED
    stage.wait(21.0, quietly=False)
    assert stage.machine.state.workers["w"].state == DRAINING


def test_the_pool_is_put_together_for_a_wide_task_whatever_strangers_have() -> None:
    stage = Stage(PoolSettings(local_cores=2))
    tags = {"disk": "big"}
    stage.join("stranger", cores=4.0)
    stage.work(TaskSpec("python", request=Request(2.0), tags=tags))
    (small,) = stage.machine.state.pilots
    stage.join("local", cores=2.0, pilot=small, tags=tags)
    stage.work(TaskSpec("python", request=Request(4.0), tags=tags))
    assert stage.machine.state.workers["local"].state == JOINED
    stage.ask("workers_set", local=4)
    assert stage.machine.state.workers["local"].state == DRAINING


def test_a_recall_that_was_lost_is_sent_again() -> None:
    stage = Stage()
    slow = _worker_with_short_tasks(stage)
    running, *waiting = stage.submit(1, TaskSpec("python"), 3)
    stage.join("second")
    stage.wait(2 * STALE_S, quietly=False)
    assert stage.machine.state.workers["first"].recalled
    stage.tell(i.LinkClosed(slow))
    holding = [(running.id, 1, m.STARTED), *((task.id, 1, m.QUEUED) for task in waiting)]
    link = stage.join("first", holding=holding)
    (recall,) = stage.sent(m.Recall, link)
    assert recall.items == [(task.id, 1) for task in waiting]


def test_the_machine_never_asks_to_be_called_in_the_past() -> None:
    stage = Stage()
    _worker_with_short_tasks(stage)
    stage.submit(1, TaskSpec("python"), 4)
    stage.join("second")
    stage.wait(3 * STALE_S, quietly=False)
    for _ in range(5):
        stage.tell()
        assert stage.machine.deadline is not None
        assert stage.machine.deadline > stage.now


def test_suspects_that_no_worker_suits_hold_up_nobody() -> None:
    """One waits for tags that nobody has: others that must run alone get their turn, and so do ordinary tasks."""
    stage = Stage()
    stuck = stage.work(TaskSpec("python", tags={"gpu": "yes"}))[0]
    other = stage.work(TaskSpec("python"))[0]
    for name in ("a", "b"):
        stage.join(name, cores=2.0, tags={"gpu": "yes"})
        stage.lose(name)
    assert stuck.suspect
    assert other.suspect
    link = stage.join("plain", cores=2.0)
    assert other.state == ASSIGNED
    stage.finish(link, other)
    ordinary = stage.work(count=2)
    assert all(task.state == ASSIGNED for task in ordinary)


def test_a_late_hello_of_an_abandoned_connection_changes_nothing() -> None:
    stage = Stage()
    (task,) = stage.work()
    old_link = stage.links + 1
    stage.links += 1
    new_link = stage.join("w")
    stage.started(new_link, task)
    hello = m.Hello("w", "", {"cores": 1.0}, {}, {}, None, 0.0, [])
    effects = stage.tell(i.AgentMessage(old_link, hello))
    assert [type(effect) for effect in effects] == [e.HangUp]
    assert task.attempt == 1
    assert stage.machine.connections["w"].link == new_link


def test_a_master_that_slept_gives_its_workers_time_to_come_back() -> None:
    stage = Stage()
    link = stage.join("w")
    (task,) = stage.work()
    stage.started(link, task)
    stage.now += 600
    stage.tell()
    assert task.worker is not None
    stage.tell(i.AgentMessage(link, m.Heartbeat([])))
    stage.wait(stage.settings.lease_s / 2, quietly=False)
    assert task.attempt == 1


def test_a_run_is_closed_only_when_its_client_has_been_gone_for_long_without_a_break() -> None:
    stage = Stage(PoolSettings(author_s=30))
    run = stage.open_run("mine")
    stage.tell(i.LinkClosed(CLIENT))
    stage.wait(20)
    stage.open_run("mine")
    stage.tell(i.LinkClosed(CLIENT))
    stage.wait(15)
    assert not stage.machine.state.runs[run].closed
    stage.wait(20)
    assert stage.machine.state.runs[run].closed


def test_a_pilot_that_was_to_end_is_cancelled_again_after_a_restart() -> None:
    stage = Stage()
    stage.work()
    stage.ask("workers_set", local=1)
    stage.tell(i.PilotAccepted("local-1", "job"))
    stage.join("local-1", pilot="local-1")
    stage.wait(stage.settings.lease_s + 20)
    stage.restart()
    assert e.CancelPilot("local-1") in stage.effects


class _Greedy:
    """A policy that ignores every rule."""

    def propose(self, view: PolicyView) -> list[AssignmentProposal | RecallProposal]:
        tasks = [task for shape in view.state.ready for task in shape.queue]
        return [AssignmentProposal(worker, tasks + tasks) for worker in view.workers]

    def next_look_at(self, view: PolicyView) -> float | None:
        return view.now - 100.0

    def why(self, task: Task) -> str:
        return ""

    def describe(self) -> str:
        return ""


def test_a_policy_that_proposes_nonsense_is_refused_and_cannot_make_the_host_spin() -> None:
    stage = Stage(policy=_Greedy())
    stage.join("w")
    (task,) = stage.work(TaskSpec("python"))
    assert task.state == READY
    assert stage.machine.refused_proposals
    assert stage.machine.deadline is not None
    assert stage.machine.deadline > stage.now


class _Careless:
    """A policy that looks at nothing but room."""

    def propose(self, view: PolicyView) -> list[AssignmentProposal | RecallProposal]:
        return [AssignmentProposal(worker, [task]) for shape in view.state.ready for task in shape.queue for worker in view.workers]

    def next_look_at(self, view: PolicyView) -> float | None:
        return None

    def why(self, task: Task) -> str:
        return ""

    def describe(self) -> str:
        return ""


def test_a_policy_cannot_place_a_task_where_it_may_not_run() -> None:
    stage = Stage(policy=_Careless())
    stage.join("w", cores=4.0, ends_in_s=100.0)
    (tagged,) = stage.work(TaskSpec("python", tags={"disk": "big"}))
    (long,) = stage.work(TaskSpec("python", time_s=200.0))
    (good,) = stage.work(TaskSpec("python", time_s=50.0))
    assert (tagged.state, long.state, good.state) == (READY, READY, ASSIGNED)


def test_who_only_watches_a_run_does_not_keep_it_open() -> None:
    stage = Stage(PoolSettings(author_s=30.0))
    run = stage.open_run("mine")
    stage.tell(i.LinkClosed(CLIENT))
    stage.tell(i.ClientMessage(CLIENT + 1, m.Open("mine", RunOptions(), feeds=False)))
    stage.tell(i.ClientMessage(CLIENT + 1, m.Watch(run, 0, False)))
    stage.wait(31)
    assert stage.machine.state.runs[run].incomplete
