"""Tasks of several nodes: all their workers at once and of one pilot, one of them told; and whatever becomes of one ends it for all."""

from __future__ import annotations

import pytest

from pilotfish.core import state_snapshot
from pilotfish.core.apply import apply
from pilotfish.core.explain import task_reasons
from pilotfish.core.pilots.unmet_demand import view_for_factory
from pilotfish.core.policy_interface import AssignmentProposal, PolicyView
from pilotfish.core.state import State, Task, Worker
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import Content, ProducedContent
from pilotfish.model.settings import PoolSettings
from pilotfish.model.site import PilotSize, Site
from pilotfish.model.states import ASSIGNED, CANCELLED, DONE, DRAINING, FAILED, READY, RUNNING
from pilotfish.model.task import Request, RunOptions, TaskSpec
from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.matchers import LocalityMatcher
from pilotfish.policies.multi_node_placement import RESERVE_AFTER_S
from tests.support.machine_stage import CLIENT, Stage, fail
from tests.support.state_check import fingerprint
from tests.unit.core.test_site_events import add, stage_with

WIDE = TaskSpec("exec", request=Request(2.0, nodes=2), launch={"sandbox": True})
LONG = 60_000_000
"""Microseconds: nothing that takes so long is sent ahead."""
POND = Site(backend="slurm", cores=2, walltime_s=3600.0)
KEPT = "c" * 64


class Pair(Stage):
    """Two workers of one pilot."""

    def __init__(self, cores: float = 2.0, policy: Dispatcher | None = None) -> None:
        super().__init__(PoolSettings(lease_s=1000.0), policy=policy)
        self.first = self.join("a", cores, pilot="p", info={"hostname": "node1"})
        self.second = self.join("b", cores, pilot="p", info={"hostname": "node2"})

    def worker(self, name: str) -> Worker:
        return self.machine.state.workers[name]

    def is_empty(self, name: str) -> bool:
        return not self.worker(name).held and self.worker(name).free == self.worker(name).capacity

    def begin(self, spec: TaskSpec = WIDE) -> Task:
        (task,) = self.work(spec)
        self.started(self.first, task)
        return task


def names(stage: Stage, task: Task) -> list[str]:
    return [worker.id for worker in stage.machine.state.multi_node_workers.get(task, [])]


# --- beginning and ending ---------------------------------------------------------------------------------------------------------


def test_it_gets_room_at_both_and_only_the_first_is_told_with_the_hosts_of_all() -> None:
    stage = Pair()
    (task,) = stage.work(WIDE)
    (assign,) = stage.sent(m.Assign)
    assert stage.sent(m.Assign, stage.first) == [assign] and [sent.task for sent in assign.tasks] == [task.id]
    assert assign.specs[0].launch == {"sandbox": True, "hosts": ["node1", "node2"]}
    assert names(stage, task) == ["a", "b"]
    assert [stage.worker(name).free["cores"] for name in "ab"] == [0, 0]
    assert stage.machine.state.runs[1].occupied == 40_000


def test_others_do_not_get_its_room_and_do_when_it_is_done() -> None:
    stage = Pair()
    task = stage.begin()
    others = stage.work(count=2)
    assert [other.state for other in others] == [READY, READY]
    stage.finish(stage.first, task, wall_us=LONG)
    assert task.state == DONE and not stage.machine.state.multi_node_workers
    assert [other.state for other in others] == [ASSIGNED, ASSIGNED]


def test_what_it_leaves_free_is_for_others_at_once() -> None:
    stage = Pair(cores=3.0)
    stage.work(WIDE)
    others = stage.work(count=2)
    assert [other.state for other in others] == [ASSIGNED, ASSIGNED]


def test_hosts_are_said_anew_for_each_attempt() -> None:
    stage = Pair()
    task = stage.begin(TaskSpec("exec", request=Request(2.0, nodes=2), retries=1))
    stage.lose("b")
    stage.join("c", 2.0, pilot="p", info={"hostname": "node3"})
    (assign,) = stage.sent(m.Assign)
    assert assign.specs[0].launch["hosts"] == ["node1", "node3"]
    assert task.attempt == 2


@pytest.mark.parametrize("workers", [["", ""], ["p", "q"]], ids=["no pilot", "two pilots"])
def test_workers_that_are_not_of_one_pilot_do_not_count(workers: list[str]) -> None:
    stage = Stage()
    for number, pilot in enumerate(workers):
        stage.join(f"w{number}", 2.0, pilot=pilot)
    (task,) = stage.work(WIDE)
    assert task.state == READY
    answer = task_reasons.explain_task(stage.machine, task)
    assert answer["reasons"][0]["code"] == "too-few-nodes"
    assert "2 nodes of one pilot" in answer["sentence"]


def test_it_says_where_it_is() -> None:
    stage = Pair()
    task = stage.begin()
    codes = [reason["code"] for reason in task_reasons.explain_task(stage.machine, task)["reasons"]]
    assert "several-nodes" in codes
    assert stage.ask("task", task=f"1.{task.id & 0xFFFFFFFF}")["spec"]["nodes"] == 2


# --- what goes wrong --------------------------------------------------------------------------------------------------------------


def test_the_loss_of_one_that_was_told_nothing_ends_the_attempt_and_is_charged_as_a_loss() -> None:
    stage = Pair()
    task = stage.begin()
    stage.lose("b")
    assert [kill.items for kill in stage.sent(m.Kill, stage.first)] == [[(task.id, 1)]]
    assert task.state == READY and task.failure_counts is not None and (task.failure_counts.losses, task.failure_counts.deaths) == (1, 0)
    assert stage.is_empty("a")
    stage.finish(stage.first, task)
    assert task.state == READY, "its late result changes nothing"
    stage.join("b2", 2.0, pilot="p")
    assert names(stage, task) == ["a", "b2"]


def test_the_loss_of_the_first_frees_the_others() -> None:
    stage = Pair()
    task = stage.begin()
    stage.lose("a")
    assert task.state == READY and stage.is_empty("b")
    assert task.failure_counts is not None and task.failure_counts.losses == 1


def test_it_is_never_a_suspect_and_ends_when_it_was_lost_too_often() -> None:
    stage = Pair()
    task = stage.begin(TaskSpec("exec", request=Request(2.0, nodes=2), losses=3))
    for number in range(4):
        assert task.state == ASSIGNED or number == 0
        stage.lose("b" if number == 0 else f"b{number}")
        assert not task.suspect
        if number < 3:
            stage.join(f"b{number + 1}", 2.0, pilot="p")
    assert task.state == FAILED and stage.is_empty("a")


def test_a_failure_frees_all_and_it_is_tried_again() -> None:
    stage = Pair()
    task = stage.begin(TaskSpec("exec", request=Request(2.0, nodes=2), retries=1))
    stage.finish(stage.first, task, failure=fail())
    assert task.state == ASSIGNED and task.attempt == 2 and names(stage, task) == ["a", "b"]
    stage.finish(stage.first, task, failure=fail())
    assert task.state == FAILED and stage.is_empty("a") and stage.is_empty("b")


def test_it_is_started_from_another_worker_if_it_avoids_the_first() -> None:
    stage = Pair()
    task = stage.begin()
    stage.finish(stage.first, task, failure=fail("killed"))
    assert task.state == ASSIGNED and task.attempt == 2 and names(stage, task) == ["b", "a"]


def test_a_failure_while_one_of_its_workers_cannot_be_reached_is_not_its_own_doing() -> None:
    """Its other parts notice sooner than the master that a node is gone."""
    stage = Pair()
    task = stage.begin()
    stage.tell(i.LinkClosed(stage.second))
    stage.finish(stage.first, task, failure=fail("exit"))
    assert task.state == READY and task.failure_counts is not None and (task.failure_counts.losses, task.failure_counts.failures) == (1, 0)
    assert task.failure is not None and task.failure.blame == "worker" and "worker b" in task.failure.message
    stage.second = stage.join("b", 2.0, pilot="p", info={"hostname": "node2"})
    stage.finish(stage.machine.connections[task.worker.id].link if task.worker else 0, task, failure=fail("exit"))  # type: ignore[arg-type]
    assert task.state == FAILED, "this time all of them were there"


def test_of_workers_that_call_now_and_then_nobody_is_missed() -> None:
    stage = Stage(PoolSettings(lease_s=1000.0))
    first, second = (stage.join(name, 2.0, pilot="p", poll_s=30.0) for name in "ab")
    (task,) = stage.work(WIDE)
    stage.started(first, task)
    stage.tell(i.LinkClosed(second))
    stage.finish(first, task, failure=fail("exit"))
    assert task.state == FAILED


def test_cancelling_it_frees_all() -> None:
    stage = Pair()
    task = stage.begin()
    stage.ask("cancel", run=1)
    assert task.state == CANCELLED and stage.is_empty("a") and stage.is_empty("b")
    assert [kill.items for kill in stage.sent(m.Kill, stage.first)] == [[(task.id, 1)]]


def test_who_was_told_nothing_may_come_back_and_have_nothing() -> None:
    stage = Pair()
    task = stage.begin()
    stage.tell(i.LinkClosed(stage.second))
    stage.second = stage.join("b", 2.0, pilot="p", info={"hostname": "node2"})
    assert task.state == RUNNING and names(stage, task) == ["a", "b"]


def test_who_is_to_drain_is_told_when_it_is_over() -> None:
    """It knows of nothing that it should finish first, and would go at once."""
    stage = Pair()
    task = stage.begin()
    stage.tell(i.AgentMessage(stage.second, m.Draining("withdrawn")))
    assert stage.worker("b").state == DRAINING and not stage.sent(m.Drain, stage.second)
    stage.tell(i.AgentMessage(stage.second, m.Heartbeat([])))
    assert not stage.sent(m.Drain, stage.second)
    stage.finish(stage.first, task)
    assert task.state == DONE
    stage.tell(i.AgentMessage(stage.second, m.Heartbeat([])))
    assert stage.sent(m.Drain, stage.second)


def test_one_that_leaves_because_its_time_is_over_tells_how_long_the_next_must_have() -> None:
    stage = Stage(PoolSettings(lease_s=1000.0))
    stage.join("a", 2.0, pilot="p", ends_in_s=100.0)
    second = stage.join("b", 2.0, pilot="p", ends_in_s=100.0)
    (task,) = stage.work(WIDE)
    stage.started(1, task)
    stage.wait(95.0, quietly=False)
    stage.tell(i.AgentMessage(second, m.Leave("the time of this pilot is nearly over")))
    assert task.state == READY and task.shape.least_s > 90.0 and task.shape.nodes == 2
    assert task.failure_counts is not None and not task.failure_counts.losses


def test_it_outlives_the_master_and_a_compacted_journal() -> None:
    stage = Pair()
    task = stage.begin()
    state = State()
    for fact in state_snapshot.dump(stage.machine.state):
        apply(state, fact, stage.machine.state.at)
    assert fingerprint(state) == fingerprint(stage.machine.state)
    held = dict(stage.held)
    stage.restart()
    again = stage.machine.state.task(task.id)
    assert [worker.id for worker in stage.machine.state.multi_node_workers[again]] == ["a", "b"] and again.worker is stage.worker("a")
    stage.second = stage.join("b", 2.0, pilot="p")
    stage.first = stage.join("a", 2.0, pilot="p", holding=[(task.id, 1, m.STARTED)])
    stage.held[stage.first] = held[1]
    stage.finish(stage.first, again)
    assert again.state == DONE and stage.is_empty("a") and stage.is_empty("b")


# --- law ----------------------------------------------------------------------------------------------------------------------------


class Told(Dispatcher):
    """Proposes what a test asks for, and nothing else."""

    def __init__(self) -> None:
        super().__init__(LocalityMatcher())
        self.wish: AssignmentProposal | None = None

    def propose(self, view: PolicyView) -> list[AssignmentProposal]:  # type: ignore[override]
        wish, self.wish = self.wish, None
        return [wish] if wish is not None else []


def propose(stage: Pair, proposal: AssignmentProposal) -> bool:
    assert isinstance(stage.policy, Told)
    refused = stage.machine.refused_proposals
    stage.policy.wish = proposal
    stage.machine.decide_again = True
    stage.tell()
    return stage.machine.refused_proposals == refused


def test_what_is_not_lawful_is_refused() -> None:
    stage = Pair(policy=Told())
    stage.join("elsewhere", 2.0, pilot="q")
    stage.join("small", 1.0, pilot="p")
    first, second = stage.work(WIDE, count=2)
    (single,) = stage.work()
    a, b, elsewhere, small = (stage.worker(name) for name in ("a", "b", "elsewhere", "small"))
    assert not propose(stage, AssignmentProposal(a, [first]))
    assert not propose(stage, AssignmentProposal(a, [first], other_workers=[a]))
    assert not propose(stage, AssignmentProposal(a, [first], other_workers=[elsewhere]))
    assert not propose(stage, AssignmentProposal(a, [first], other_workers=[small]))
    assert not propose(stage, AssignmentProposal(a, [first, second], other_workers=[b]))
    assert not propose(stage, AssignmentProposal(a, [first], ahead=1, other_workers=[b]))
    assert not propose(stage, AssignmentProposal(a, [single], other_workers=[b]))
    assert propose(stage, AssignmentProposal(a, [first], other_workers=[b]))
    assert not propose(stage, AssignmentProposal(a, [second], other_workers=[b]))


@pytest.mark.parametrize("request_", [Request(1.0, nodes=0), Request(1.0, 4.0, nodes=2)], ids=["none", "moldable"])
def test_what_makes_no_sense_is_refused_at_the_door(request_: Request) -> None:
    stage = Pair()
    stage.tell(i.ClientMessage(1_000_000, m.Open("run", RunOptions())))
    stage.tell(i.ClientMessage(1_000_000, m.Submit(1, 0, 0, [TaskSpec("exec", request=request_)], [0], [(0, 1)], {}), [b"", b"x"]))
    assert stage.sent(m.Problem) and not stage.machine.state.runs[1].tasks


# --- its turn -----------------------------------------------------------------------------------------------------------------------


def _stream(stage: Pair, spec: TaskSpec, task: Task, most: int) -> int:
    """Tasks end one after the other until this one has its workers: how many have."""
    for ended in range(most):
        if task.state == ASSIGNED:
            return ended
        stage.wait(RESERVE_AFTER_S / 4, quietly=False)
        link = (stage.first, stage.second)[ended % 2]
        if stage.held.get(link):
            stage.finish(link, stage.machine.state.task(next(iter(stage.held[link]))), wall_us=LONG)
    return most


def test_it_is_not_starved_by_a_stream_of_small_ones() -> None:
    """After a while, two workers of one pilot are kept free for it: it waits no longer than for what runs there then."""
    stage = Pair()
    small = TaskSpec("python", request=Request(1.0))
    tasks = stage.work(small, count=60)
    (wide,) = stage.work(WIDE)
    ended = _stream(stage, small, wide, 40)
    assert wide.state == ASSIGNED and names(stage, wide) == ["a", "b"]
    assert ended <= 4 + 4 + 2, "those of the time of patience, and those that ran then"
    assert any(task.state == READY for task in tasks)


def test_what_is_more_urgent_goes_before_it_also_where_room_is_kept_for_it() -> None:
    stage = Pair()
    urgent = TaskSpec("python", request=Request(1.0), priority=5)
    tasks = stage.work(urgent, count=12)
    (wide,) = stage.work(WIDE)
    _stream(stage, urgent, wide, 40)
    assert wide.state == ASSIGNED and all(task.state == DONE for task in tasks)


def test_two_that_wait_for_room_do_not_keep_it_from_each_other() -> None:
    stage = Pair()
    stage.join("c", 2.0, pilot="p")
    stage.work(TaskSpec("python", request=Request(2.0)), count=3)
    (first,) = stage.work(WIDE)
    (second,) = stage.work(TaskSpec("exec", request=Request(2.0, nodes=2), time_s=50.0))
    stage.wait(2 * RESERVE_AFTER_S, quietly=False)
    for link in (1, 2, 3):
        stage.finish(link, wall_us=LONG)
    stage.wait(1.0, quietly=False)
    assert (first.state, second.state) == (ASSIGNED, READY)
    stage.finish(1, first, wall_us=LONG)
    stage.wait(1.0, quietly=False)
    assert second.state == ASSIGNED


def test_a_stream_of_them_does_not_starve_a_large_one_that_has_one_node() -> None:
    stage = Pair(cores=4.0)
    half = TaskSpec("exec", request=Request(2.0, nodes=2))
    stage.work(half, count=40)
    (large,) = stage.work(TaskSpec("python", request=Request(4.0)))
    for _ in range(30):
        if large.state == ASSIGNED:
            break
        stage.wait(RESERVE_AFTER_S / 2, quietly=False)
        held = list(stage.held[stage.first])
        if held:
            stage.finish(stage.first, stage.machine.state.task(held[0]), wall_us=LONG)
    assert large.state == ASSIGNED
    assert stage.machine.state.runs[1].counts[READY] > 0


# --- its files ----------------------------------------------------------------------------------------------------------------------


def _kept_at_lyon(stage: Pair, nodes: int) -> Task:
    """One that needs what was kept at another site, which has so many nodes of one pilot."""
    links = [stage.join(f"l{number}", 2.0, pilot="q") for number in range(nodes)]
    for state in (stage.machine.state, stage.shadow):
        for number in range(nodes):
            state.workers[f"l{number}"].site = "lyon"
    (maker, *_) = stage.work(TaskSpec("python", request=Request(2.0)), count=2 + nodes)
    held = next(link for link in links if stage.held.get(link))
    made = stage.machine.state.task(next(iter(stage.held[held])))
    item = m.ResultItem(made.id, made.attempt, None, LONG, 1, 1, 1, [ProducedContent(KEPT, 1000, False)])
    stage.held[held].clear()
    stage.tell(i.AgentMessage(held, m.Results(0, [item]), [b"r"]))
    stage.tell(i.ClientMessage(CLIENT, m.Close(maker.shape.run.id)))
    run = stage.open_run("uses")
    stage.tell(i.ClientMessage(CLIENT, m.Submit(run, 0, 0, [WIDE], [0], [(0, 1)], {}, contents={0: (Content(KEPT, 1000),)}), [b"", b"x"]))
    return stage.task(run, 0)


def test_nobody_is_kept_free_for_one_whose_files_are_elsewhere() -> None:
    stage = Pair()
    wide = _kept_at_lyon(stage, nodes=2)
    others = stage.work(TaskSpec("python", request=Request(2.0)), count=4)
    stage.wait(3 * RESERVE_AFTER_S, quietly=False)
    for link in (stage.first, stage.second):
        stage.finish(link, stage.machine.state.task(next(iter(stage.held[link]))), wall_us=LONG)
    assert wide.state == READY, "there is no room where it could run"
    assert [task.worker.id for task in others if task.worker is not None and task.worker.site == ""] == ["a", "b"]


def test_one_whose_files_are_where_too_few_nodes_are_goes_anywhere() -> None:
    """It will say what is missing, and does not wait for ever."""
    stage = Pair()
    wide = _kept_at_lyon(stage, nodes=1)
    for link in (stage.first, stage.second):
        stage.finish(link, stage.machine.state.task(next(iter(stage.held[link]))), wall_us=LONG)
    stage.wait(2 * RESERVE_AFTER_S, quietly=False)
    assert names(stage, wide) == ["a", "b"]


# --- pilots -------------------------------------------------------------------------------------------------------------------------


def test_a_pilot_with_so_many_nodes_is_wanted_and_no_second_one() -> None:
    stage = stage_with(pond=POND)
    stage.work(WIDE)
    found = view_for_factory(stage.machine.state, stage.now).demand
    assert (found.sizes, found.cores) == ([PilotSize(2.0, 2)], 4.0)
    pilot = add(stage, size=PilotSize(2.0, 2, 3600.0))
    assert view_for_factory(stage.machine.state, stage.now).demand.sizes == []
    stage.join("w1", 2.0, pilot=pilot)
    found = view_for_factory(stage.machine.state, stage.now).demand
    assert (found.sizes, found.spare) == ([], [])


def test_pilots_of_one_node_each_do_not_serve_it() -> None:
    stage = stage_with(pond=POND)
    stage.work(WIDE)
    for number in range(2):
        stage.join(f"w{number}", 2.0, pilot=add(stage, size=PilotSize(2.0, 1, 3600.0)))
    assert view_for_factory(stage.machine.state, stage.now).demand.sizes == [PilotSize(2.0, 2)]


def test_where_pilots_have_one_node_it_waits_and_says_so() -> None:
    stage = stage_with(pond=Site(backend="sge", cores=2))
    (task,) = stage.work(WIDE, sites=("pond",))
    assert view_for_factory(stage.machine.state, stage.now).demand.sizes == []
    (reason,) = task_reasons.explain_task(stage.machine, task)["reasons"]
    assert reason["code"] == "too-few-nodes" and "have 1" in reason["text"]
