"""Two attempts of one task at the same time: the first result counts, whatever else happens to the two, and whenever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pilotfish.core import state_snapshot
from pilotfish.core.apply import apply
from pilotfish.core.policy_interface import AssignmentProposal, CopyProposal, DelegationProposal, PolicyView, RecallProposal
from pilotfish.core.state import State, Task, Worker
from pilotfish.core.tasks.speculative_copies import attempts
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import ProducedContent
from pilotfish.model.facts import decode_record
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import ASSIGNED, CANCELLED, DONE, FAILED, READY, RUNNING
from pilotfish.model.task import UNIT, Request, TaskSpec
from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.matchers import LocalityMatcher
from pilotfish.store.state_storage import apply_repaired, settle
from tests.support.machine_stage import Stage, fail
from tests.support.state_check import fingerprint

LONG = 60_000_000
"""Microseconds: nothing that takes so long is sent ahead."""


class Told(Dispatcher):
    """Proposes the copies that a test asks for."""

    def __init__(self) -> None:
        super().__init__(LocalityMatcher())
        self.wish: CopyProposal | None = None

    def propose(self, view: PolicyView) -> list[AssignmentProposal | DelegationProposal | RecallProposal | CopyProposal]:
        wish, self.wish = self.wish, None
        return [*super().propose(view), *([wish] if wish is not None else [])]


class Twins(Stage):
    """One task, which runs at ``first``, and its copy at ``second``, which says so if it is asked to."""

    def __init__(self, spec: TaskSpec | None = None, seen: bool = True, **options: Any) -> None:
        super().__init__(PoolSettings(lease_s=1000.0), policy=Told())
        self.first = self.join("first")
        (self.the_task,) = self.work(spec, **options)
        self.started(self.first, self.the_task)
        self.second = self.join("second")
        self.copy("second", self.the_task)
        if seen:
            self.started(self.second, self.the_task)

    def copy(self, worker: str, *tasks: Task) -> bool:
        """Whether the machine did as it was told."""
        refused = self.machine.refused_proposals
        assert isinstance(self.policy, Told)
        self.policy.wish = CopyProposal(self.machine.state.workers[worker], list(tasks))
        self.machine.decide_again = True
        self.tell()
        return self.machine.refused_proposals == refused

    def restart(self) -> None:
        held = dict(self.held)
        super().restart()
        self.held.update(held)

    @property
    def task_now(self) -> Task:
        return self.machine.state.task(self.the_task.id)

    @property
    def holders(self) -> dict[str, int]:
        return {worker.id: number for worker, number in attempts(self.machine.state, self.task_now)}

    def worker(self, name: str) -> Worker:
        return self.machine.state.workers[name]

    def is_empty(self, name: str) -> bool:
        worker = self.worker(name)
        return not worker.held and not worker.started and worker.free == worker.capacity

    def come_back(self, worker: str, stage: int = m.STARTED) -> int:
        """The agent connects again with all that it was given and has not told."""
        old = {"first": self.first, "second": self.second}[worker]
        held = self.held.get(old, {})
        link = self.join(worker, holding=[(task, attempt, stage) for task, attempt in held.items()])
        self.held[link] = held
        setattr(self, worker, link)
        return link


def through_a_snapshot(stage: Stage) -> None:
    """The journal is compacted, and the master killed."""
    state = State()
    for fact in state_snapshot.dump(stage.machine.state):
        apply(state, fact, stage.machine.state.at)
    assert fingerprint(state) == fingerprint(stage.machine.state)
    stage.start(state)


def test_a_copy_has_a_number_and_room_of_its_own() -> None:
    stage = Twins(seen=False)
    assert stage.holders == {"first": 1, "second": 2}
    assert stage.held[stage.second] == {stage.the_task.id: 2}
    assert stage.the_task.state == RUNNING
    assert stage.worker("second").free["cores"] == 0
    assert stage.the_task.shape.run.attempts == 2
    assert stage.ask("tasks", run=1)[0]["copy"] == "second"


@pytest.mark.parametrize("winner", ["first", "second"])
@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
def test_the_first_result_counts_and_the_other_attempt_is_killed(winner: str, seen: bool) -> None:
    stage = Twins(seen=seen)
    links = {"first": stage.first, "second": stage.second}
    loser = "second" if winner == "first" else "first"
    numbers = stage.holders
    stage.finish(links[winner], stage.the_task)
    assert stage.the_task.state == DONE
    assert stage.the_task.attempt == numbers[winner]
    assert [kill.items for kill in stage.sent(m.Kill, links[loser])] == [[(stage.the_task.id, numbers[loser])]]
    assert not stage.sent(m.Kill, links[winner])
    assert stage.is_empty("first") and stage.is_empty("second")
    assert not stage.machine.state.copies
    assert stage.worker(winner).done == 1 and stage.worker(loser).done == 0


def test_of_two_results_in_one_turn_one_counts() -> None:
    stage = Twins()
    items = {
        link: m.ResultItem(stage.the_task.id, stage.held[link][stage.the_task.id], None, 1, 1, 1, 1) for link in (stage.first, stage.second)
    }
    stage.tell(
        i.AgentMessage(stage.second, m.Results(0, [items[stage.second]]), [b"copy"]),
        i.AgentMessage(stage.first, m.Results(0, [items[stage.first]]), [b"original"]),
    )
    assert stage.the_task.output == b"copy"
    assert stage.machine.stale_results == 1
    assert len(stage.sent(m.Acked)) == 2, "the loser need not tell it again"


def test_a_late_result_of_the_loser_changes_nothing_and_what_it_made_is_let_go() -> None:
    stage = Twins()
    stage.finish(stage.first, stage.the_task)
    before = fingerprint(stage.machine.state)
    made = [ProducedContent("a" * 64, 10, False), ProducedContent("b" * 64, 10, True)]
    item = m.ResultItem(stage.the_task.id, 2, None, 1, 1, 1, 1, made)
    stage.tell(i.AgentMessage(stage.second, m.Results(0, [item]), [b"late"]))
    assert stage.the_task.output == b"r"
    assert fingerprint(stage.machine.state) == before
    assert [letting.digests for letting in stage.sent(m.ReleaseContents, stage.second)] == [["a" * 64]]
    assert [effect.digest for effect in stage.effects if isinstance(effect, e.ReleaseContent)] == ["b" * 64]


def test_what_both_made_alike_is_held_by_both() -> None:
    stage = Twins()
    made = [ProducedContent("a" * 64, 10, False)]
    for link, attempt in ((stage.first, 1), (stage.second, 2)):
        item = m.ResultItem(stage.the_task.id, attempt, None, 1, 1, 1, 1, made)
        stage.tell(i.AgentMessage(link, m.Results(0, [item]), [b"r"]))
    assert list(stage.machine.state.contents["a" * 64].holders) == ["first", "second"]
    assert not stage.sent(m.ReleaseContents)


@pytest.mark.parametrize("loser", ["first", "second"])
def test_when_one_fails_the_other_goes_on_and_no_retry_is_used_up(loser: str) -> None:
    stage = Twins(TaskSpec("python", retries=0))
    links = {"first": stage.first, "second": stage.second}
    other = "second" if loser == "first" else "first"
    numbers = stage.holders
    stage.finish(links[loser], stage.the_task, failure=fail())
    assert stage.the_task.state == RUNNING
    assert stage.holders == {other: numbers[other]}
    assert stage.the_task.failure_counts is not None and stage.the_task.failure_counts.failures == 0
    assert list(stage.worker(loser).streak) == [stage.the_task.id], "but the worker is watched"
    stage.finish(links[other], stage.the_task)
    assert stage.the_task.state == DONE


def test_when_both_fail_the_task_has_failed_once() -> None:
    stage = Twins(TaskSpec("python", retries=1))
    stage.finish(stage.second, stage.the_task, failure=fail())
    stage.finish(stage.first, stage.the_task, failure=fail())
    assert stage.the_task.failure_counts is not None and stage.the_task.failure_counts.failures == 1
    assert stage.the_task.state == ASSIGNED
    assert stage.the_task.attempt == 3, "no number is used twice"


def test_both_may_fail_for_good() -> None:
    stage = Twins(TaskSpec("python", retries=0))
    stage.finish(stage.first, stage.the_task, failure=fail())
    stage.finish(stage.second, stage.the_task, failure=fail())
    assert stage.the_task.state == FAILED
    assert not stage.machine.state.copies


@pytest.mark.parametrize("lost", ["first", "second"])
def test_the_loss_of_one_worker_leaves_the_other_attempt(lost: str) -> None:
    stage = Twins()
    other = "second" if lost == "first" else "first"
    numbers = stage.holders
    stage.lose(lost)
    assert stage.holders == {other: numbers[other]}
    assert stage.the_task.state == RUNNING
    assert stage.the_task.failure_counts is not None and stage.the_task.failure_counts.deaths == 1, (
        "what fells workers is found out all the same"
    )
    stage.finish({"first": stage.first, "second": stage.second}[other], stage.the_task)
    assert stage.the_task.state == DONE


def test_a_copy_that_is_left_alone_before_it_was_seen_running_is_assigned() -> None:
    stage = Twins(seen=False)
    stage.lose("first")
    assert stage.the_task.state == ASSIGNED
    stage.started(stage.second, stage.the_task)
    assert stage.the_task.state == RUNNING


def test_the_loss_of_both_workers_queues_the_task_again_with_a_new_number() -> None:
    stage = Twins()
    stage.lose("second")
    stage.lose("first")
    assert stage.the_task.state == READY
    assert stage.the_task.failure_counts is not None and stage.the_task.failure_counts.deaths == 2
    assert stage.the_task.suspect
    link = stage.join("third")
    assert stage.held[link] == {stage.the_task.id: 3}


def test_a_budget_of_losses_is_never_overdrawn_by_a_copy() -> None:
    stage = Twins(TaskSpec("python", losses=0))
    stage.lose("first")
    assert stage.the_task.state == RUNNING
    stage.lose("second")
    assert stage.the_task.state == FAILED


def test_a_task_has_one_copy_for_each_time_in_the_queue() -> None:
    stage = Twins()
    stage.tell(i.AgentMessage(stage.first, m.Leave("its time is over")))
    stage.join("third")
    assert not stage.copy("third", stage.the_task)
    stage.tell(i.AgentMessage(stage.second, m.Leave("its time is over")))
    third = stage.links
    assert stage.held[third] == {stage.the_task.id: 3}
    stage.started(third, stage.the_task)
    fourth = stage.join("fourth")
    assert stage.copy("fourth", stage.the_task)
    assert stage.held[fourth] == {stage.the_task.id: 4}


def test_a_cancelled_task_is_killed_at_both() -> None:
    stage = Twins()
    stage.ask("cancel", tasks=["1.0"])
    assert stage.the_task.state == CANCELLED
    assert {link: [kill.items for kill in stage.sent(m.Kill, link)] for link in (stage.first, stage.second)} == {
        stage.first: [[(stage.the_task.id, 1)]],
        stage.second: [[(stage.the_task.id, 2)]],
    }
    assert stage.is_empty("first") and stage.is_empty("second")
    assert not stage.machine.state.copies


def test_a_cancelled_run_can_be_forgotten() -> None:
    stage = Twins()
    stage.ask("cancel", run=1)
    stage.ask("forget", run=1)
    assert not stage.machine.state.runs and not stage.machine.state.copies


def test_a_paused_run_gets_no_copies_and_keeps_those_it_has() -> None:
    stage = Twins()
    stage.ask("pause", run=1)
    assert len(stage.holders) == 2
    stage.finish(stage.second, stage.the_task)
    assert stage.the_task.state == DONE


def test_a_draining_worker_finishes_its_copy() -> None:
    stage = Twins()
    stage.ask("drain", worker="second")
    stage.finish(stage.second, stage.the_task)
    assert stage.the_task.state == DONE


def test_a_full_disk_under_a_copy_is_nobodys_failure() -> None:
    stage = Twins()
    stage.finish(stage.second, stage.the_task, failure=fail("disk", "worker"))
    assert stage.holders == {"first": 1}
    assert stage.the_task.failure_counts is None


BETWEEN: list[Callable[[Twins], None]] = [Twins.restart, through_a_snapshot]


@pytest.mark.parametrize("between", BETWEEN, ids=["replay", "snapshot"])
@pytest.mark.parametrize("winner", ["first", "second"])
def test_a_new_master_knows_both_attempts(between: Callable[[Twins], None], winner: str) -> None:
    stage = Twins()
    between(stage)
    assert stage.holders == {"first": 1, "second": 2}
    link = stage.come_back("first")
    assert not stage.sent(m.Kill)
    other = stage.come_back("second")
    assert not stage.sent(m.Kill)
    stage.finish(link if winner == "first" else other, stage.task_now)
    assert stage.task_now.state == DONE
    assert len(stage.sent(m.Kill)) == 1


@pytest.mark.parametrize("between", BETWEEN, ids=["replay", "snapshot"])
def test_a_loser_that_comes_back_to_a_new_master_is_told_to_stop(between: Callable[[Twins], None]) -> None:
    stage = Twins()
    stage.tell(i.LinkClosed(stage.second))
    stage.finish(stage.first, stage.the_task)
    assert not stage.sent(m.Kill), "nobody listens"
    between(stage)
    stage.come_back("second")
    assert [kill.items for kill in stage.sent(m.Kill)] == [[(stage.the_task.id, 2)]]


@pytest.mark.parametrize("between", BETWEEN, ids=["replay", "snapshot"])
def test_a_new_master_gives_out_no_number_again(between: Callable[[Twins], None]) -> None:
    stage = Twins()
    stage.finish(stage.second, stage.the_task, failure=fail())
    between(stage)
    link = stage.come_back("first")
    stage.tell(i.AgentMessage(link, m.Leave("its time is over")))
    assert stage.task_now.attempt == 2
    link = stage.join("third")
    assert stage.held[link] == {stage.the_task.id: 3}


def test_a_copy_that_never_arrived_is_forgotten_when_its_agent_says_so() -> None:
    stage = Twins(seen=False)
    stage.held[stage.second] = {}
    stage.come_back("second")
    assert stage.holders == {"first": 1}
    assert stage.the_task.failure_counts is None


def test_an_agent_that_was_started_anew_has_lost_its_copy() -> None:
    stage = Twins()
    stage.held[stage.second] = {}
    stage.come_back("second")
    assert stage.holders == {"first": 1}
    assert stage.the_task.failure_counts is not None and stage.the_task.failure_counts.deaths == 1


def test_both_agents_come_back_with_results_and_the_first_to_come_has_won() -> None:
    stage = Twins()
    stage.restart()
    second = stage.come_back("second", m.FINISHED)
    first = stage.come_back("first", m.FINISHED)
    stage.finish(second, stage.task_now)
    stage.finish(first, stage.task_now)
    assert stage.task_now.state == DONE and stage.task_now.attempt == 2
    assert stage.machine.stale_results == 1


def test_a_copy_of_a_moldable_task_gets_as_much_as_the_first() -> None:
    stage = Twins()
    wide = stage.join("wide", cores=4.0)
    (task,) = stage.work(TaskSpec("python", request=Request(1.0, cores_max=3.0)))
    stage.started(wide, task)
    link = stage.join("as wide", cores=4.0)
    assert stage.copy("as wide", task)
    assert [sent.cores for assign in stage.sent(m.Assign, link) for sent in assign.tasks] == [3.0]
    assert stage.worker("as wide").free["cores"] == 1 * UNIT


def test_the_machine_refuses_copies_that_are_not_lawful() -> None:
    stage = Twins()
    stage.join("third")
    assert not stage.copy("third", stage.the_task), "it has one"
    (task,) = stage.work()
    assert not stage.copy("second", task), "it has not begun, and there is no room"
    (unwilling,) = stage.work(speculate=False)
    fourth = stage.join("fourth")
    stage.started(fourth, unwilling)
    stage.join("fifth")
    assert not stage.copy("fifth", unwilling), "its person said no"
    stage.started(3, task)
    assert not stage.copy("third", task), "it is there already"
    stage.ask("pause", run=2)
    assert not stage.copy("fifth", task), "it is paused"
    stage.ask("resume", run=2)
    assert stage.copy("fifth", task)


def test_a_task_under_which_a_worker_died_is_not_copied() -> None:
    stage = Stage(policy=Told())
    stage.join("first")
    (task,) = stage.work()
    stage.lose("first")
    second = stage.join("second")
    stage.started(second, task)
    stage.join("third")
    assert isinstance(stage.policy, Told)
    stage.policy.wish = CopyProposal(stage.machine.state.workers["third"], [task])
    stage.machine.decide_again = True
    stage.tell()
    assert stage.machine.refused_proposals == 1


def test_a_copy_is_explained() -> None:
    stage = Twins()
    answer = stage.ask("why", task="1.0")
    assert [reason["code"] for reason in answer["reasons"]] == ["placed", "copied"]


@pytest.mark.parametrize("hole", range(8))
def test_a_result_counts_whatever_the_journal_has_lost_about_the_two(hole: int) -> None:
    stage = Twins()
    stage.finish(stage.first, stage.the_task, failure=fail())
    stage.finish(stage.second, stage.the_task)
    state = State()
    facts = [(fact, turn.at) for turn in map(decode_record, stage.journal) for fact in turn.facts]
    about = [
        place
        for place, (fact, _) in enumerate(facts)
        if isinstance(fact, f.TasksAssigned | f.TasksStarted | f.TasksDuplicated | f.WorkerJoined | f.AttemptFailed)
    ]
    lost = about[hole] if hole < len(about) else -1
    for place, (fact, at) in enumerate(facts):
        if place < lost or lost < 0:
            apply(state, fact, at)
        elif place > lost:
            apply_repaired(state, fact, at)
    settle(state, stage.now)
    assert state.task(stage.the_task.id).state == DONE
    assert not state.copies
