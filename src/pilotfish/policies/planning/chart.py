"""Holds a Gantt chart with a row for each lane of a worker and for each link to a site.

A lane is one core of a worker. Workers of one site form a group if they are equally fast and can run the same tasks. For each group and
each number of lanes, planning needs only two times: see ``LaneColumns``. The groups of a site are divided into blocks. Each block is one
row of an array. All rows have the same length, so that numpy can process all groups at once.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

BUCKETS_PER_DOUBLING = 4
"""Tasks whose durations differ by less than a factor of about 2**(1/4) count as equally long."""

MAX_BLOCK_LENGTH = 32
"""Maximum number of groups in a block. With longer blocks, each update takes longer. With shorter blocks, each choice compares more
blocks."""


@dataclass(frozen=True, slots=True)
class GanttChart:
    """The chart: when each lane and each link becomes free, and when each file arrives at each site. Each field is a list or an array. All
    times are seconds on the same clock."""

    lane_worker: npt.ArrayLike
    lane_free_s: npt.ArrayLike
    worker_site: npt.ArrayLike
    worker_slowness: npt.ArrayLike
    """For each worker: its time for a task, divided by the time on a host of usual speed."""
    site_link_free_s: npt.ArrayLike
    site_bandwidth: npt.ArrayLike
    """Bytes per second from the master, more than 0."""
    site_latency_s: npt.ArrayLike
    """Seconds that are added to the time of every transfer."""
    site_launch_s: npt.ArrayLike
    """Seconds from the assignment of a task to its start."""
    file_bytes: npt.ArrayLike
    arrival_s: npt.ArrayLike
    """[file, site]: the time when the file arrives at the site, or inf if it must still be sent."""


@dataclass(frozen=True, slots=True)
class TaskBatch:
    """Tasks that the planning treats as equal, in the order in which they should start. ``seconds``: the duration of each task on a host of
    slowness 1."""

    seconds: Sequence[float] | Floats
    files: tuple[int, ...] = ()
    width: int = 1
    """Lanes of one worker that each task needs."""
    allowed: Booleans | None = None
    """For each worker: whether it can run the tasks. None means that all workers can run them."""
    tasks: Sequence[int] | Integers = ()
    """The numbers by which the caller identifies the tasks."""


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """One transfer over the link of a site."""

    file: int
    site: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Placement:
    """One task, placed on lanes of a worker, and the transfers that were planned for this task."""

    batch: int
    index: int
    """Position of the task in the batch."""
    worker: int
    lanes: tuple[int, ...]
    start_s: float
    end_s: float
    transfers: tuple[PlannedTransfer, ...]


def batches_of(
    files: Sequence[tuple[int, ...]],
    seconds: npt.ArrayLike,
    widths: Sequence[int] | None = None,
    allowed: Sequence[Booleans | None] | None = None,
) -> list[TaskBatch]:
    """Makes batches of tasks that need the same files, have the same width, can run on the same workers and are about equally long. The
    batches are in the order of their first tasks."""
    durations = np.asarray(seconds, dtype=np.float64)
    if not len(durations):
        return []
    numbers: dict[tuple[tuple[int, ...], int, int], int] = {}
    keys = zip(files, widths or repeat(1), number_masks(allowed)[0] if allowed else repeat(0), strict=False)
    kinds = np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), dtype=np.int64, count=len(durations))
    buckets = np.floor(np.log2(np.maximum(durations, 1e-6)) * BUCKETS_PER_DOUBLING).astype(np.int64)
    buckets -= buckets.min()
    _, first, inverse = np.unique(kinds * (buckets.max() + 1) + buckets, return_index=True, return_inverse=True)
    order = np.argsort(first[inverse], kind="stable")
    ends = np.cumsum(np.bincount(inverse, minlength=len(first))[np.argsort(first)])
    batches = []
    begin = 0
    for end in ends.tolist():
        tasks = order[begin:end]
        first_task = int(tasks[0])
        batches.append(
            TaskBatch(
                durations[tasks], files[first_task], widths[first_task] if widths else 1, allowed[first_task] if allowed else None, tasks
            )
        )
        begin = end
    return batches


def number_masks(masks: Iterable[Booleans | None]) -> tuple[list[int], list[Booleans]]:
    """Gives each mask a number. A mask says, for each worker, whether the worker can run a task. Equal masks get the same number. None
    allows all workers and gets the number 0. Returns two lists: the number of each given mask, and the distinct masks in the order of their
    numbers 1, 2, …"""
    numbers_of: dict[bytes, int] = {}
    known: dict[int, int] = {id(None): 0}
    distinct, numbers = [], []
    for mask in masks:
        number = known.get(id(mask))
        if number is None and mask is not None:
            content = np.asarray(mask, dtype=bool).tobytes()
            if content not in numbers_of:
                numbers_of[content] = len(numbers_of) + 1
                distinct.append(mask)
            number = known[id(mask)] = numbers_of[content]
        numbers.append(number or 0)
    return numbers, distinct


class LaneColumns:
    """Times at which lanes are free. The arrays have three axes: number of lanes (as position in ``widths``), block, and position of the
    group in the block. ``free_s``: the earliest time at which a worker of the group has this number of free lanes. ``next_s``: the value
    that ``free_s`` would have without one of these lanes."""

    def __init__(self, chart: GanttChart, widths: list[int], masks: list[Booleans], now: float) -> None:
        self.widths = widths
        self._sort_lanes(chart, now)
        site, slowness = np.asarray(chart.worker_site, dtype=np.int64), np.asarray(chart.worker_slowness, dtype=np.float64)
        self._group_workers(site, slowness, masks)
        self._lay_blocks(site, slowness, np.asarray(chart.site_launch_s, dtype=np.float64))

    def _sort_lanes(self, chart: GanttChart, now: float) -> None:
        owner = np.asarray(chart.lane_worker, dtype=np.int64)
        free = np.maximum(np.asarray(chart.lane_free_s, dtype=np.float64), now)
        workers = len(np.asarray(chart.worker_site))
        order = np.lexsort((free, owner))
        counts = np.bincount(owner, minlength=workers)
        begins = np.cumsum(counts) - counts
        pairs = list(zip(free[order].tolist(), order.tolist(), strict=True))
        self._lanes = [pairs[begin : begin + count] for begin, count in zip(begins.tolist(), counts.tolist(), strict=True)]
        """For each worker: pairs of a time and a lane. The lane is free from this time on. The earliest time comes first."""
        sorted_free = np.append(free[order], np.inf)
        nth = {n: sorted_free[np.where(counts >= n, begins + n - 1, -1)] for width in self.widths for n in (width, width + 1)}
        self._worker_free = np.array([nth[width] for width in self.widths])
        self._worker_next = np.array([nth[width + 1] for width in self.widths])

    def _group_workers(self, site: Integers, slowness: Floats, masks: list[Booleans]) -> None:
        """Makes groups of workers. The groups are sorted by site. Within a site, the fastest group comes first. If a task would end at the
        same time in several groups of a site, the first of these groups gets the task."""
        mask_number = np.zeros(len(site))
        if masks:
            mask_number[:] = np.unique(np.packbits(np.array(masks, dtype=bool), axis=0), axis=1, return_inverse=True)[1].reshape(-1)
        table = np.array([mask_number, slowness, site])
        order = np.lexsort(table)
        table = table[:, order]
        begins = np.flatnonzero(np.append(True, (table[:, 1:] != table[:, :-1]).any(axis=0))) if len(order) else np.zeros(0, dtype=np.int64)
        self._members = np.split(order, begins[1:])
        self._first_of_group = order[begins]

    def _lay_blocks(self, site: Integers, slowness: Floats, launch_s: Floats) -> None:
        group_site = site[self._first_of_group]
        counts = np.bincount(group_site, minlength=len(launch_s))
        fair_length = 4 * len(group_site) // max(1, int(np.count_nonzero(counts)))
        length = int(max(1, min(counts.max(initial=1), fair_length, MAX_BLOCK_LENGTH)))
        blocks = -(-counts // length)
        ends = np.cumsum(blocks)
        self.blocks_of_site = [slice(int(end - count), int(end)) for end, count in zip(ends, blocks, strict=True)]
        self.site_of_block = np.repeat(np.arange(len(blocks)), blocks)
        position = np.arange(len(group_site)) - (np.cumsum(counts) - counts)[group_site]
        self._cell = ((ends - blocks)[group_site] * length + position).astype(np.int64)
        """For each group: its position in the array of all blocks."""
        self.shape = (int(blocks.sum()), length)
        self.slowness = self._spread(slowness[self._first_of_group], 1.0)
        self.launch_s = self._spread(launch_s[group_site], 0.0)
        self._group_at = dict(zip(self._cell.tolist(), range(len(group_site)), strict=True))
        self.free_s = np.full((len(self.widths), *self.shape), np.inf)
        self.next_s = np.full_like(self.free_s, np.inf)
        for group in range(len(group_site)):
            self._update_group(group)

    def _spread(self, of_groups: Floats, elsewhere: float) -> Floats:
        spread = np.full(self.shape[0] * self.shape[1], elsewhere)
        spread[self._cell] = of_groups
        return spread.reshape(self.shape)

    def penalty(self, mask: Booleans) -> Floats:
        """Returns the seconds to add to the end times of each group: infinity if the mask forbids the group, otherwise 0."""
        return self._spread(np.where(np.asarray(mask, dtype=bool)[self._first_of_group], 0.0, np.inf), 0.0)

    def occupy(self, block: int, position: int, width: int, start_s: float, end_s: float) -> tuple[int, tuple[int, ...]]:
        """Occupies ``width`` lanes of one worker of a group from ``start_s`` to ``end_s``. Chooses lanes that are free at ``start_s`` and
        became free last. Returns the worker and the lanes."""
        group = self._group_at[block * self.shape[1] + position]
        members = self._members[group]
        worker = int(members[0])
        if len(members) > 1:
            free = self._worker_free[self.widths.index(width), members]
            worker = int(members[np.where(free <= start_s, free, -np.inf).argmax()])
        lanes = self._lanes[worker]
        in_time = bisect_right(lanes, (start_s, np.inf))
        taken = tuple(lane for _, lane in lanes[in_time - width : in_time])
        del lanes[in_time - width : in_time]
        for lane in taken:
            insort(lanes, (end_s, lane))
        for index, wanted in enumerate(self.widths):
            self._worker_free[index, worker] = lanes[wanted - 1][0] if wanted <= len(lanes) else np.inf
            self._worker_next[index, worker] = lanes[wanted][0] if wanted < len(lanes) else np.inf
        self._update_group(group)
        return worker, taken

    def _update_group(self, group: int) -> None:
        members = self._members[group]
        block, position = divmod(int(self._cell[group]), self.shape[1])
        for index in range(len(self.widths)):
            if len(members) == 1:
                self.free_s[index, block, position] = self._worker_free[index, members[0]]
                self.next_s[index, block, position] = self._worker_next[index, members[0]]
                continue
            free = self._worker_free[index, members]
            first = free.argmin()
            self.free_s[index, block, position] = free[first]
            free[first] = self._worker_next[index, members[first]]
            self.next_s[index, block, position] = free.min()


class LinkColumns:
    """The files at each site, and the running and planned transfers to each site. On each link, transfers run one after the other."""

    def __init__(self, chart: GanttChart, now: float) -> None:
        self.free_s = np.maximum(np.asarray(chart.site_link_free_s, dtype=np.float64), now)
        self._arrival_s = np.array(chart.arrival_s, dtype=np.float64).reshape(len(np.asarray(chart.file_bytes)), len(self.free_s))
        sizes, bandwidth = np.asarray(chart.file_bytes, dtype=np.float64), np.asarray(chart.site_bandwidth, dtype=np.float64)
        self._duration_s = np.asarray(chart.site_latency_s, dtype=np.float64) + sizes[:, None] / bandwidth
        self._nothing = np.full(len(self.free_s), -np.inf)

    def needs(self, files: Sequence[int]) -> tuple[Floats, Floats]:
        """Returns two values for each site. The first value: when those of the ``files`` are at the site that are already there or in a
        running or planned transfer. It is -inf if there are none. The second value: how long the transfers of all other files take
        together. It is -inf if there are no other files."""
        if not files:
            return self._nothing, self._nothing
        rows = list(files)
        arrival = self._arrival_s[rows]
        missing = arrival == np.inf
        if not missing.any():
            return arrival.max(axis=0), self._nothing
        there = np.where(missing, -np.inf, arrival).max(axis=0)
        return there, np.where(missing.any(axis=0), np.where(missing, self._duration_s[rows], 0.0).sum(axis=0), -np.inf)

    def send(self, files: Sequence[int], site: int) -> tuple[PlannedTransfer, ...]:
        """Plans transfers of those ``files`` that the site lacks, after all other transfers on the link."""
        sent = []
        for file in files:
            if self._arrival_s[file, site] == np.inf:
                start_s = float(self.free_s[site])
                end_s = start_s + float(self._duration_s[file, site])
                self._arrival_s[file, site] = self.free_s[site] = end_s
                sent.append(PlannedTransfer(file, site, start_s, end_s))
        return tuple(sent)
