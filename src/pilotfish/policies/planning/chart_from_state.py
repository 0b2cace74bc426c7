"""Builds a Gantt chart from the state, makes a plan with this chart, and translates the plan to tasks and workers. This module needs
numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pilotfish.core.data.replicas import can_get_inputs, needs
from pilotfish.core.policy_interface import PolicyView
from pilotfish.core.state import ContentRecord, Task, TaskShape, Worker
from pilotfish.model.task import CORES, UNIT
from pilotfish.policies.planning.chart import Booleans, GanttChart, batches_of
from pilotfish.policies.planning.heuristics import Heuristic, plan
from pilotfish.policies.planning.link_estimates import LinkEstimates

HORIZON_FACTOR = 1.25
"""A plan covers at least the longest transfer time multiplied by this factor. A shorter plan would contain no tasks for sites with slow
links."""


class ChartBuilder:
    """Makes one plan. ``ends``: for each task at a worker, its expected end."""

    def __init__(self, view: PolicyView, links: LinkEstimates, ends: Mapping[Task, float]) -> None:
        self._view = view
        self._links = links
        self._ends = ends
        self._workers = view.workers
        self._sites = list(dict.fromkeys(worker.site for worker in self._workers))
        self._bandwidths = [links.bandwidth(view, site) for site in self._sites]
        self._records: dict[ContentRecord, int] = {}
        self._file_numbers: dict[tuple[ContentRecord, ...], tuple[int, ...]] = {}
        self._suits: dict[TaskShape, Booleans] = {}
        self._widths: dict[TaskShape, int] = {}

    def plan(self, heuristic: Heuristic, tasks: Sequence[Task], seconds: Sequence[float], horizon_s: float) -> list[tuple[Worker, Task]]:
        """Returns pairs of worker and task in the order of their planned starts. ``seconds``: for each task, its time on a host of usual
        speed."""
        files = [self._files_of(task) for task in tasks]
        batches = batches_of(files, seconds, [self._width(task) for task in tasks], [self._allowed(task) for task in tasks])
        horizon_s = max(horizon_s, HORIZON_FACTOR * self._longest_transfer_s())
        placements = plan(self._chart(), batches, heuristic, self._view.now, horizon_s)
        placements.sort(key=lambda placement: placement.start_s)
        return [(self._workers[p.worker], tasks[int(batches[p.batch].tasks[p.index])]) for p in placements]

    def _files_of(self, task: Task) -> tuple[int, ...]:
        wanted = needs(task)
        numbers = self._file_numbers.get(wanted)
        if numbers is None:
            numbers = self._file_numbers[wanted] = tuple(self._records.setdefault(record, len(self._records)) for record in wanted)
        return numbers

    def _width(self, task: Task) -> int:
        """Returns the number of lanes (cores) of a worker that the task takes.

        The resource that counts is the one of which the task needs the largest fraction. For example, a task that needs half of the memory
        and a quarter of the cores takes half of the lanes. If the number differs between suitable workers, the smallest number is used, so
        that the task fits every suitable worker.
        """
        shape = task.shape
        if shape not in self._widths:
            suited = {worker.slots: worker for worker, suits in zip(self._workers, self._suited(shape), strict=True) if suits}.values()
            widths = [max(amount / worker.capacity[name] * worker.slots for name, amount in shape.needs) for worker in suited]
            self._widths[shape] = max(1, round(min(widths, default=1.0)))
        return self._widths[shape]

    def _allowed(self, task: Task) -> Booleans | None:
        """Returns a mask of the workers that can run the task, or None if all workers can run it. The mask excludes the worker where the
        task failed last, if other workers can run the task."""
        mask = self._suited(task.shape)
        if any(not (record.at_master or record.path) and record.holders for record in needs(task)):
            near = {site: can_get_inputs(self._view.state, task, site) for site in self._sites}
            mask = mask & np.array([near[worker.site] for worker in self._workers], dtype=bool)
        if task.failure_counts is not None and task.failure_counts.avoid:
            elsewhere = mask & np.array([worker.id != task.failure_counts.avoid for worker in self._workers], dtype=bool)
            mask = elsewhere if elsewhere.any() else mask
        return None if mask.all() else mask

    def _suited(self, shape: TaskShape) -> Booleans:
        if shape not in self._suits:
            self._suits[shape] = np.array([worker.suits(shape, self._view.now) for worker in self._workers], dtype=bool)
        return self._suits[shape]

    def _chart(self) -> GanttChart:
        view, links = self._view, self._links
        slowness = view.state.forecasts.slowness
        numbers = {site: number for number, site in enumerate(self._sites)}
        lanes = [self._lanes(worker) for worker in self._workers]
        return GanttChart(
            lane_worker=[number for number, free in enumerate(lanes) for _ in free],
            lane_free_s=[time for free in lanes for time in free],
            worker_site=[numbers[worker.site] for worker in self._workers],
            # Rounding makes hosts of about equal speed equal, so that there are fewer groups and planning is faster.
            worker_slowness=[round(slowness(worker.id, worker.site), 2) or 0.01 for worker in self._workers],
            site_link_free_s=[links.link_free_at(view, site) for site in self._sites],
            site_bandwidth=self._bandwidths,
            site_latency_s=[view.state.forecasts.latency(site) for site in self._sites],
            site_launch_s=[0.0] * len(self._sites),
            file_bytes=[record.size for record in self._records],
            arrival_s=np.array([[links.arrival(view, record, site) for site in self._sites] for record in self._records]),
        )

    def _lanes(self, worker: Worker) -> list[float]:
        """Returns, for each core of the worker, the time at which it will be free."""
        lanes: list[float] = []
        for task, amounts in (*worker.active.items(), *worker.ahead.items()):
            lanes += [self._ends[task]] * max(1, dict(amounts).get(CORES, 0) // UNIT)
        return lanes[: worker.slots] + [self._view.now] * (worker.slots - len(lanes))

    def _longest_transfer_s(self) -> float:
        largest = max((record.size for record in self._records), default=0)
        return max((largest / rate for rate in self._bandwidths), default=0.0)
