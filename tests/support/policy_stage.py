"""A stage that assigns no tasks: tests call the policy directly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pilotfish.core.policy_interface import AssignmentProposal, PolicyView
from pilotfish.core.state import Task, TaskShape, Worker
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import Content
from pilotfish.model.task import TaskSpec
from tests.support.machine_stage import CLIENT, Stage


class Nothing:
    """A policy that proposes nothing."""

    def propose(self, view: PolicyView) -> list[AssignmentProposal]:
        return []

    def next_look_at(self, view: PolicyView) -> float | None:
        return None

    def why(self, task: Task) -> str:
        return ""

    def describe(self) -> str:
        return ""


def digest(name: str) -> str:
    return name.encode().hex().rjust(64, "0")


class Idle(Stage):
    """A stage with contents by short names; tests give the size of each when a task first needs it."""

    def __init__(self) -> None:
        super().__init__(policy=Nothing())
        self.link: dict[str, int] = {}
        self.options: dict[str, Any] = {}
        """Options of the next runs."""

    def enter(self, name: str, cores: float = 1.0, holds: Sequence[str] = (), **tags: str) -> Worker:
        self.link[name] = self.join(name, cores=cores, tags=tags)
        self.holds(name, *holds)
        return self.machine.state.workers[name]

    def holds(self, name: str, *contents: str) -> None:
        if contents:
            self.tell(i.AgentMessage(self.link[name], m.CacheReport([digest(one) for one in contents], [], True)))

    def need(self, *contents: dict[str, int], spec: TaskSpec | None = None) -> list[Task]:
        """Submit a run of tasks of one spec, each with its inputs: {name: bytes}."""
        run = self.open_run(f"run{self.machine.state.next_run}", **self.options)
        needed = {
            number: tuple(Content(digest(name), size, f"/inputs/{name}", 1, 1) for name, size in one.items())
            for number, one in enumerate(contents)
            if one
        }
        tasks = [(0, 1)] * len(contents)
        message = m.Submit(run, 0, 0, [spec or TaskSpec("python")], [0], tasks, contents=needed)
        self.tell(i.ClientMessage(CLIENT, message, [b"", *[b"x"] * len(contents)]))
        return self.machine.state.runs[run].tasks

    def view(self, sites: Sequence[tuple[Worker, list[Worker]]] = ()) -> PolicyView:
        """The view as the machine makes it: workers of a site master are not among those that are served directly."""
        served_workers = {worker.id for _, subjects in sites for worker in subjects}
        workers = [worker for worker in self.machine.state.workers.values() if worker.id not in served_workers]
        return PolicyView(self.machine.state, self.now, 0.05, lambda worker: True, lambda able: (list(sites), workers))

    def shapes(self) -> list[TaskShape]:
        return list(self.machine.state.ready)
