"""Fills a Gantt chart with tasks by one of the heuristics Min-min, Max-min, Sufferage and XSufferage.

Words that this module uses:

* *Lane*: one core of a worker. A task that needs several cores takes several lanes of one worker.
* *Batch*: tasks that need the same files and the same number of lanes, can run on the same workers, and are about equally long.
* *Candidate*: the next task of a batch. At a given time, not every batch has a candidate: see the end of this text.
* *Family*: batches that need the same number of lanes, can run on the same workers, and need the same shared files. A file is shared if
  more than one task needs it.
* *Earliest end* of a task: its end if it runs on the lane where it ends first.

Each step places one task:

1. Compute when each candidate would end on each lane. 2. Choose the candidate with the best metric. 3. Place this candidate on the lane
where it ends first. If the site of this lane lacks some files of the task, plan transfers of these files after all other transfers to the
site.

The heuristics choose by these metrics:

* ``min-min``: the candidate with the smallest earliest end.
* ``max-min``: the candidate with the largest earliest end.
* ``sufferage``: the candidate with the largest difference between its end on the second best lane and its end on the best lane. If a
  candidate takes several lanes, its end on the second best lane is its earliest end without one of its best lanes.
* ``xsufferage``: the candidate with the largest difference between its earliest end at the second best site and its earliest end at the
  best site.

If there is no second lane or site, the difference is infinite. So with one site, all differences of XSufferage are equal. If differences
are equal, the candidate with the largest earliest end is chosen, because long tasks should not start last. If the earliest ends are equal
too, the candidate of the batch that comes first in the list of batches is chosen. With Min-min and Max-min, this last rule decides between
equal metrics.

If a candidate has the same earliest end on several workers, these rules choose the worker, in this order: first site, first group (the
groups of a site are sorted by speed), least idle time before the task, first worker.

(The appendix of the paper on APST contains a heuristic "MinMax". This module assumes that it is Max-min, which the text of the paper
describes.)

The number of candidates is limited, because each step compares all candidates. The limit is ``USUAL_CANDIDATES``. If there are more
families than this, the limit is the number of families, but at most ``MAX_CANDIDATES``. In a family whose batches need only shared files,
Min-min always chooses a shortest task, and Max-min a longest task. So with these two heuristics, such a family has only one candidate. At
the start, the families take turns: each family adds one batch, until the limit is reached. The order of the families is described at
``_representatives_first``. Within a family, the batch with the longest tasks comes first; with Min-min, the batch with the shortest tasks.
When the last task of a batch is placed, the next batch of the same family gets a candidate. If this family has no batch left, a batch of a
different family gets a candidate.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from pilotfish.policies.planning.chart import (
    Floats,
    GanttChart,
    Integers,
    LaneColumns,
    LinkColumns,
    Placement,
    PlannedTransfer,
    TaskBatch,
    number_masks,
)

Heuristic = Literal["min-min", "max-min", "sufferage", "xsufferage"]
HEURISTICS: tuple[Heuristic, ...] = get_args(Heuristic)
USUAL_CANDIDATES = 64
MAX_CANDIDATES = 256
"""Maximum number of candidates, even if there are more families than this."""

Family = tuple[tuple[int, ...], int, int]
"""The properties that all batches of a family have in common: shared files, width, number of the mask of allowed workers."""


def plan(chart: GanttChart, batches: Sequence[TaskBatch], heuristic: Heuristic, now: float, horizon_s: float = np.inf) -> list[Placement]:
    """Places tasks as long as at least one candidate could start on some lane before the horizon. The horizon is ``now`` + ``horizon_s``.

    The plan can contain tasks that start after the horizon. For example, a slow lane is free before the horizon, but the candidate ends
    first on a fast lane that becomes free after the horizon.
    """
    placements: list[Placement] = []
    if not any(len(batch.seconds) for batch in batches):
        return placements
    candidates = _Candidates(chart, batches, heuristic, now)
    while candidates.may_start(now + horizon_s) and (choice := candidates.choose()) is not None:
        placements.append(candidates.place(*choice))
    return placements


class _Queue:
    """Batches that have no candidate yet, by family (see ``Family``)."""

    def __init__(self, batches: Sequence[TaskBatch], masks: list[int], heuristic: Heuristic) -> None:
        users: Counter[int] = Counter()
        for batch in batches:
            for file in batch.files:
                users[file] += len(batch.seconds)
        families: dict[Family, list[int]] = {}
        self._family_of: dict[int, Family] = {}
        alone: set[Family] = set()
        for number, batch in enumerate(batches):
            if len(batch.seconds):
                shared = tuple([file for file in batch.files if users[file] > 1])
                family = self._family_of[number] = (shared, batch.width, masks[number])
                families.setdefault(family, []).append(number)
                if len(shared) < len(batch.files):
                    alone.add(family)
        self._one_suffices = set() if heuristic.endswith("sufferage") else set(families) - alone
        sign = 1 if heuristic == "min-min" else -1
        self._families = {
            family: deque(sorted(members, key=lambda n: sign * batches[n].seconds[0])) for family, members in families.items()
        }
        self._family_order = deque(_representatives_first(families))

    def places(self) -> int:
        """Returns the number of rows that the table of candidates should have."""
        wanted = sum(1 if family in self._one_suffices else len(members) for family, members in self._families.items())
        return min(wanted, MAX_CANDIDATES, max(len(self._families), USUAL_CANDIDATES))

    def take(self, after: int | None) -> int | None:
        """Returns the next batch for the table of candidates, or None if no further batch needs a row. ``after``: the batch whose row has
        become free, or None for a new row. The next batch of the same family gets the free row. If this family has no batch left, the other
        families take turns."""
        if after is not None and self._families[self._family_of[after]]:
            return self._families[self._family_of[after]].popleft()
        while self._family_order:
            family = self._family_order.popleft()
            if self._families[family]:
                if family not in self._one_suffices:
                    self._family_order.append(family)
                return self._families[family].popleft()
        return None


def _representatives_first(families: dict[Family, list[int]]) -> list[Family]:
    """Sorts families into two groups. The first group contains each family that needs no shared file, or that needs a shared file which no
    family before it in ``families`` needs. All other families follow."""
    seen: set[int] = set()
    with_new_files: list[Family] = []
    others: list[Family] = []
    for family in families:
        (others if family[0] and seen.issuperset(family[0]) else with_new_files).append(family)
        seen.update(family[0])
    return with_new_files + others


class _Candidates:
    """A table with one row per candidate, and one column per block of groups of workers (see ``chart``). A cell contains two values: the
    earliest end of the candidate on the workers of the block, and the group where it has this end."""

    def __init__(self, chart: GanttChart, batches: Sequence[TaskBatch], heuristic: Heuristic, now: float) -> None:
        mask_of, masks = number_masks(batch.allowed for batch in batches)
        self._batches, self._heuristic = batches, heuristic
        self._columns = LaneColumns(chart, sorted({batch.width for batch in batches}), masks, now)
        self._links = LinkColumns(chart, now)
        self._queue = _Queue(batches, mask_of, heuristic)
        rows, blocks, sites = self._queue.places(), self._columns.shape[0], len(self._links.free_s)
        self._rows = np.arange(rows)
        self._batch = np.full(rows, -1)
        self._done = [0] * len(batches)
        self._seconds_left: list[list[float]] = [[] for _ in range(rows)]
        """For each row: the seconds of each task of its batch. The next task is the last element."""
        self._users: dict[int, set[int]] = {}
        """For each file: the rows of the candidates that need this file."""
        self._seconds = np.zeros(rows)
        self._width = np.zeros(rows, dtype=np.int64)
        self._there, self._missing = np.full((rows, sites), np.inf), np.full((rows, sites), -np.inf)
        self._ready = np.full((rows, blocks), np.inf)
        self._penalty = np.zeros((rows, *self._columns.shape)) if masks else None
        self._best, self._second = np.full((rows, blocks), np.inf), np.full((rows, blocks), np.inf)
        self._where = np.zeros((rows, blocks), dtype=np.int64)
        self._first_blocks = np.unique(self._columns.site_of_block, return_index=True)[1]
        self._cells = np.arange(rows * blocks) * self._columns.shape[1]
        widest = max((span.stop - span.start for span in self._columns.blocks_of_site), default=0)
        self._scratch = np.empty((2, max(rows * widest, blocks) * self._columns.shape[1]))
        self._latest_pair: tuple[int, int, int] | None = None
        for row in range(rows if blocks else 0):
            self._enter(row, None)

    def _enter(self, row: int, after: int | None) -> None:
        """Gives a row of the table to the next batch that at least one worker can run. ``after``: the batch that had the row before."""
        while (number := self._queue.take(after)) is not None:
            after, batch = number, self._batches[number]
            self._batch[row] = number
            self._seconds_left[row] = np.asarray(batch.seconds, dtype=np.float64)[::-1].tolist()
            self._seconds[row] = self._seconds_left[row][-1]
            self._width[row] = self._columns.widths.index(batch.width)
            if self._penalty is not None:
                self._penalty[row] = 0.0 if batch.allowed is None else self._columns.penalty(batch.allowed)
            self._there[row], self._missing[row] = self._links.needs(batch.files)
            self._ready[row] = np.maximum(self._there[row], self._links.free_s + self._missing[row])[self._columns.site_of_block]
            self._refresh(slice(row, row + 1), slice(None))
            if self._best[row].min() < np.inf:
                for file in batch.files:
                    self._users.setdefault(file, set()).add(row)
                return
        self._there[row], self._missing[row], self._ready[row], self._best[row] = np.inf, -np.inf, np.inf, np.inf

    def _refresh(self, rows: slice, blocks: slice) -> None:
        """Computes cells of the table: one row and all blocks, or all rows and some blocks."""
        columns, length = self._columns, self._columns.shape[1]
        ready, seconds, width = self._ready[rows, blocks], self._seconds[rows, None], self._width[rows]
        # To save time, the arrays have long rows and reuse memory. Many short rows, or new arrays, would take longer than the sums
        # themselves.
        cells = self._cells[: ready.size].reshape(ready.shape)
        times, start = self._scratch[:, : ready.size * length].reshape(2, len(ready), -1)
        free, slowness, launch_s = columns.free_s[:, blocks], columns.slowness[blocks], columns.launch_s[blocks]
        np.multiply(seconds, slowness.reshape(-1), out=times)
        times += launch_s.reshape(-1)
        lanes_free = free[0].reshape(-1) if len(free) == 1 else free[width].reshape(len(ready), -1)
        times += np.maximum(lanes_free, ready.repeat(length, axis=1) if len(ready) == 1 else ready[:, :1], out=start)
        if self._penalty is not None:
            times += self._penalty[rows, blocks].reshape(len(ready), -1)
        where = times.reshape(*ready.shape, length).argmin(axis=2)
        best, flat = cells + where, times.reshape(-1)
        self._where[rows, blocks] = where
        self._best[rows, blocks] = flat[best]
        if self._heuristic == "sufferage":
            each = np.arange(where.shape[1])
            cost = seconds * slowness[each, where] + launch_s[each, where]
            flat[best] = np.maximum(columns.next_s[:, blocks][width[:, None], each, where], ready) + cost
            self._second[rows, blocks] = flat[cells + times.reshape(*ready.shape, length).argmin(axis=2)]

    def choose(self) -> tuple[int, int] | None:
        """Returns the row with the best metric, and the block where the candidate of this row ends first. Returns None if no candidate can
        run."""
        if not self._best.size:
            return None
        block = self._best.argmin(axis=1)
        least = self._best[self._rows, block]
        possible = least < np.inf
        if not possible.any():
            return None
        if self._heuristic == "min-min":
            equal = _largest(-least)
        elif self._heuristic == "max-min":
            equal = _largest(np.where(possible, least, -np.inf))
        else:
            second = self._second_site() if self._heuristic == "xsufferage" else self._second_lane(block)
            equal = _largest(np.subtract(second, least, out=np.full(len(least), -np.inf), where=possible))
            if len(equal) > 1:
                equal = equal[_largest(least[equal])]
        row = equal[0] if len(equal) == 1 else equal[self._batch[equal].argmin()]
        return int(row), int(block[row])

    def _second_lane(self, block: Integers) -> Floats:
        second = self._best.copy()
        second[self._rows, block] = self._second[self._rows, block]
        return _least(second)

    def _second_site(self) -> Floats:
        sites = np.minimum.reduceat(self._best, self._first_blocks, axis=1)
        sites[self._rows, sites.argmin(axis=1)] = np.inf
        return _least(sites)

    def place(self, row: int, block: int) -> Placement:
        columns, number = self._columns, int(self._batch[row])
        batch, seconds = self._batches[number], self._seconds_left[row].pop()
        site, position = int(columns.site_of_block[block]), int(self._where[row, block])
        transfers: tuple[PlannedTransfer, ...] = ()
        ready_s = float(self._there[row, site])
        if self._missing[row, site] > -np.inf:
            transfers = self._links.send(batch.files, site)
            ready_s = max(ready_s, transfers[-1].end_s)
        start_s = max(float(columns.free_s[self._width[row], block, position]), ready_s)
        end_s = start_s + float(columns.launch_s[block, position] + seconds * columns.slowness[block, position])
        worker, lanes = columns.occupy(block, position, batch.width, start_s, end_s)
        placement = Placement(number, self._done[number], worker, lanes, start_s, end_s, transfers)
        self._done[number] += 1
        if not self._seconds_left[row]:
            for file in batch.files:
                self._users[file].discard(row)
        if transfers:
            self._note_transfers(transfers, site)
        self._advance(row, seconds)
        self._refresh(slice(None), columns.blocks_of_site[site] if transfers else slice(block, block + 1))
        return placement

    def _note_transfers(self, transfers: tuple[PlannedTransfer, ...], site: int) -> None:
        """Updates the table after new transfers were planned: the link is busy for longer, and other candidates can use the transferred
        files."""
        for row in {row for transfer in transfers for row in self._users[transfer.file]}:
            self._there[row], self._missing[row] = self._links.needs(self._batches[self._batch[row]].files)
        ready = np.maximum(self._there[:, site], self._links.free_s[site] + self._missing[:, site])
        self._ready[:, self._columns.blocks_of_site[site]] = ready[:, None]

    def _advance(self, row: int, seconds: float) -> None:
        """Makes the next task of the batch the candidate. If the batch has no task left, the next batch gets the row."""
        if not self._seconds_left[row]:
            self._enter(row, int(self._batch[row]))
        elif self._seconds_left[row][-1] != seconds:
            self._seconds[row] = self._seconds_left[row][-1]
            self._refresh(slice(row, row + 1), slice(None))

    def may_start(self, limit: float) -> bool:
        """Returns True if at least one candidate could start at some worker before ``limit``. Stores the pair of candidate and worker that
        it has found, because the next call saves time by checking this pair first."""
        if limit == np.inf:
            return True
        columns = self._columns
        if self._latest_pair is not None:
            row, block, position = self._latest_pair
            penalty = 0.0 if self._penalty is None else self._penalty[self._latest_pair]
            if max(columns.free_s[self._width[row], block, position], self._ready[row, block]) + penalty < limit:
                return True
        start = np.maximum(columns.free_s[self._width], self._ready[:, :, None])
        if self._penalty is not None:
            start += self._penalty
        early = start < limit
        if not early.any():
            return False
        worst = np.where(early, start + self._seconds[:, None, None] * columns.slowness, -np.inf).argmax()
        row, block, position = (int(index) for index in np.unravel_index(worst, start.shape))
        self._latest_pair = (row, block, position)
        return True


def _least(table: Floats) -> Floats:
    """Returns the minimum of each row. (It uses argmin of numpy, which is faster than min for short rows.)"""
    least: Floats = table[np.arange(len(table)), table.argmin(axis=1)]
    return least


def _largest(values: Floats) -> Integers:
    return np.flatnonzero(values == values.max())
