"""A policy hears what happens to workers and tasks, and may retire workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from pilotfish.core.policy_events import EVENT_KINDS, PolicyEvent, events_of
from pilotfish.core.policy_interface import PolicyView, Proposal, RetireProposal
from pilotfish.core.state import Worker
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.states import DONE, DRAINING, JOINED, READY
from pilotfish.model.task import Failure, TaskSpec
from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.matchers import LocalityMatcher
from tests.support.machine_stage import Stage


class Listener(Dispatcher):
    """Writes down what it hears, and when it was asked."""

    def __init__(self) -> None:
        super().__init__(LocalityMatcher())
        self.heard: list[str] = []
        self.events: list[PolicyEvent] = []

    def on_events(self, events: Sequence[PolicyEvent]) -> None:
        self.events += events
        self.heard += [event.kind for event in events]

    def propose(self, view: PolicyView) -> list[Proposal]:  # type: ignore[override]
        self.heard.append("asked")
        return list(super().propose(view))


class Retiring(Dispatcher):
    """Proposes to retire whatever ``choose`` gives."""

    def __init__(self, choose: Callable[[PolicyView], list[RetireProposal]]) -> None:
        super().__init__(LocalityMatcher())
        self.choose = choose

    def propose(self, view: PolicyView) -> list[Proposal]:  # type: ignore[override]
        return [*super().propose(view), *self.choose(view)]


def test_a_policy_hears_of_a_task_from_its_submission_to_its_end_and_before_it_is_asked() -> None:
    policy = Listener()
    stage = Stage(policy=policy)
    link = stage.join("w")
    assert policy.heard[policy.heard.index("worker-joined") + 1] == "asked"
    (task,) = stage.work()
    stage.finish(link, task)
    kinds = [kind for kind in policy.heard if kind.startswith("task-")]
    assert kinds == ["task-added", "task-assigned", "task-done"]
    assert {event.task for event in policy.events if event.kind.startswith("task-")} == {task.id}
    assert [event.worker for event in policy.events if event.kind == "task-done"] == ["w"]


def test_a_policy_hears_why_a_worker_is_gone() -> None:
    policy = Listener()
    stage = Stage(policy=policy)
    stage.join("w")
    stage.wait(stage.settings.lease_s + 30)
    (lost,) = [event for event in policy.events if event.kind == "worker-lost"]
    assert (lost.worker, "silent" in lost.reason) == ("w", True)


def test_a_policy_without_ears_is_asked_as_before() -> None:
    stage = Stage()
    stage.join("w")
    (task,) = stage.work()
    assert not hasattr(stage.machine.policy, "on_events") and task.state != READY


def test_every_kind_of_event_is_made_from_some_fact() -> None:
    failure = Failure("exit", "task", "exit status 1")
    rest = ("", False, 0, False, False, (0, 0, 0), b"")
    facts: list[f.Fact] = [
        f.WorkerJoined("w", "p", {}, {}, {}, None, 0.0),
        f.WorkerDraining("w", "why"),
        f.WorkerQuarantined("w", 9.0, "why"),
        f.WorkerQuarantined("w", 0.0, "over"),
        f.WorkerEnded("w", False, "why"),
        f.WorkerEnded("w", True, "why"),
        f.TasksAdded(1, 5, [0, 0], [b"", b""], {}),
        f.TasksAssigned("w", [1 << 32], 0, {}),
        f.TasksStarted("w", [1 << 32]),
        f.TasksReturned("w", [1 << 32], "why"),
        f.AttemptFailed("w", 1 << 32, failure, *rest),
        f.AttemptFailed("w", 1 << 32, failure, "failures", True, *rest[2:]),
        f.TasksDone("w", [1 << 32], [0], [0], [0], [b""]),
        f.TasksSkipped([1 << 32], failure),
        f.TasksCancelled([1 << 32], "why"),
        f.RunCancelled(1, "why"),
    ]
    events = events_of(facts)
    assert {event.kind for event in events} == set(EVENT_KINDS)
    assert [event.task & 0xFFFFFFFF for event in events if event.kind == "task-added"] == [5, 6]
    (failed,) = [event for event in events if event.kind == "attempt-failed"]
    assert (failed.worker, failed.cause, failed.reason, failed.run) == ("w", "exit", "exit status 1", 1)


def test_a_policy_may_retire_a_worker_which_is_drained_as_a_fact() -> None:
    stage = Stage(policy=Retiring(lambda view: [RetireProposal(worker, "too slow") for worker in view.workers if worker.id == "w"]))
    link = stage.join("w")
    stage.join("other")
    worker = stage.machine.state.workers["w"]
    assert (worker.state, worker.reason) == (DRAINING, "too slow")
    assert stage.machine.state.workers["other"].state == JOINED
    assert stage.machine.refused_proposals == 0
    stage.tell(i.AgentMessage(link, m.Heartbeat([])))
    assert stage.machine.refused_proposals == 0, "who drains is no longer shown to the policy"


def test_a_worker_that_is_retired_finishes_what_it_runs() -> None:
    stage = Stage(policy=Retiring(lambda view: [RetireProposal(one, "enough") for one in view.workers if one.active]))
    link = stage.join("w", cores=2.0)
    (task,) = stage.work(TaskSpec("python"))
    (second,) = stage.work(TaskSpec("python"))
    worker = stage.machine.state.workers["w"]
    assert (worker.state, task.worker, second.worker) == (DRAINING, worker, None)
    stage.finish(link, task)
    assert (task.state, second.state) == (DONE, READY)


def test_a_retirement_without_a_reason_or_of_a_worker_that_is_not_here_is_refused_and_counted() -> None:
    stranger = Worker("stranger", "", {"cores": 10_000}, 0.0)
    for choose in (
        lambda view: [RetireProposal(worker, "") for worker in view.workers],
        lambda view: [RetireProposal(stranger, "go")],
        lambda view: [RetireProposal(worker, "go") for worker in view.workers for _ in range(2)],
    ):
        stage = Stage(policy=Retiring(choose))
        stage.join("w")
        assert stage.machine.refused_proposals >= 1
        assert "stranger" not in stage.machine.state.workers


def test_what_is_no_proposal_at_all_is_refused_and_counted() -> None:
    stage = Stage(policy=Retiring(lambda view: ["nonsense"]))  # type: ignore[list-item]
    stage.join("w")
    assert stage.machine.refused_proposals >= 1
    assert RetireProposal in get_args(Proposal)
