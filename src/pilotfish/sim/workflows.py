"""Workflows for rehearsals: their tasks and who waits for whom, and whether an order in which they ran was lawful."""

from __future__ import annotations

from collections.abc import Iterable

from pilotfish.applications.wfcommons import Workflow
from pilotfish.sim.rehearsal import Stint
from pilotfish.sim.workload import Work


def work_of(workflow: Workflow) -> Work:
    """Computations and their order. Files are left out: what a task makes is taken to be on a disk that all share."""
    tasks = workflow.tasks
    return Work(
        seconds=[max(task.seconds, 1e-3) for task in tasks],
        kinds=[task.program for task in tasks],
        cores=[task.cores for task in tasks],
        after=[task.parents for task in tasks],
    )


def unlawful(workflow: Workflow, stints: Iterable[Stint]) -> list[tuple[int, int]]:
    """Pairs of a task that began before the other one, which it needs, had ended."""
    ran = {stint.task: stint for stint in stints}
    return [(index, parent) for index, task in enumerate(workflow.tasks) for parent in task.parents if ran[index].began < ran[parent].ended]
