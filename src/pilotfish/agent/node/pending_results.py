"""Keeps results until the master acknowledges them. The results of an agent have the numbers 0, 1, 2, …"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Deque, Iterator, List, Optional, Tuple

from ...portable.failures import Failure
from .attempts import FINISHED, Attempt

Item = Tuple[Any, ...]
"""(failure or None, wall_us, cpu_us, rss_kib, payload[, produced contents[, number of bytes of output that are stored nowhere]])

A produced content is [digest, size, at_master, at_worker, name, mode].
"""

MAX_FRAME_BYTES = 1 << 20
MAX_FRAME_ITEMS = 2048
AMBIGUOUS = ("exit", "killed", "slot-lost")
AMBIGUOUS_WITHOUT_BATCH = ("killed", "slot-lost")
"""If no batch system ends the pilot, a task seldom exits because of a signal. Then an exit with an error is reported at once: the core
would be idle while the failure waits."""
BATCH_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "_CONDOR_JOB_AD")
"""Environment variables of batch jobs. A master and the agents on its machine can run in a batch job."""
AMBIGUOUS_S = 0.2
"""Seconds that an ambiguous failure waits before it is sent. A failure is ambiguous if the end of the pilot can be its cause: a batch
system that ends a pilot sends signals to the agent and to its tasks. If the agent is stopped within this time, the failure is dropped,
because the task was not at fault."""


class FinishedAttempt:
    """The result of one attempt."""

    __slots__ = ("task", "attempt", "failure", "wall_us", "cpu_us", "rss_kib", "payload", "produced", "left_out", "send_from")

    def __init__(self, attempt: Attempt, item: Item, now: float, ambiguous: Tuple[str, ...]) -> None:
        self.task = attempt.task
        self.attempt = attempt.attempt
        self.failure: Optional[Failure]
        self.failure, self.wall_us, self.cpu_us, self.rss_kib, self.payload = item[:5]
        self.produced: List[Any] = item[5] if len(item) > 5 else []
        self.left_out: int = item[6] if len(item) > 6 else 0
        waits = self.failure is not None and (self.failure[0] in ambiguous or "SIGTERM" in self.failure[2])
        self.send_from = now + AMBIGUOUS_S if waits else now

    def row(self) -> List[Any]:
        row = [self.task, self.attempt, self.failure, self.wall_us, self.cpu_us, self.rss_kib, len(self.payload)]
        if self.left_out:
            return [*row, self.produced, self.left_out]
        return [*row, self.produced] if self.produced else row


class PendingResults:
    """Results by number. All results that are not acknowledged are sent again on each new connection."""

    def __init__(self) -> None:
        self.kept: OrderedDict[int, FinishedAttempt] = OrderedDict()
        self.unsent: Deque[int] = deque()
        self.ambiguous: Tuple[str, ...] = AMBIGUOUS
        """The causes of ambiguous failures."""
        self._next_number = 0

    def keep(self, attempt: Attempt, item: Item, now: float) -> None:
        self.kept[self._next_number] = FinishedAttempt(attempt, item, now, self.ambiguous)
        self.unsent.append(self._next_number)
        self._next_number += 1

    def acknowledge(self, first: int, last: int) -> List[str]:
        """Deletes the results with the numbers ``first`` to ``last``, which the master has acknowledged. Returns the digests of their
        produced contents that are in the cache of this worker."""
        digests: List[str] = []
        for number in range(max(0, first), min(last, self._next_number - 1) + 1):
            result = self.kept.pop(number, None)
            if result is not None and result.produced:
                digests.extend(content[0] for content in result.produced if content[3])
        return digests

    def drop_ambiguous(self, now: float) -> None:
        for number in [number for number, result in self.kept.items() if result.send_from > now]:
            del self.kept[number]

    def resend_all(self) -> None:
        self.unsent = deque(self.kept)

    def holding(self) -> List[List[int]]:
        return [[result.task, result.attempt, FINISHED] for result in self.kept.values()]

    def frames(self, now: float) -> Iterator[Tuple[List[Any], List[Any]]]:
        """Yields (header, body parts) of frames with unsent results. Frames are small, so that heartbeats do not wait long."""
        later: List[int] = []
        rows: List[List[Any]] = []
        parts: List[Any] = []
        size = first = next_number = 0
        for number in self.unsent:
            result = self.kept.get(number)
            if result is None:
                continue
            if result.send_from > now:
                later.append(number)
                continue
            length = len(result.payload)
            # One character can need six bytes in JSON.
            weight = length + (6 * len(result.failure[2]) if result.failure else 0)
            weight += sum([128 + 6 * len(row[4]) for row in result.produced])
            if rows and (number != next_number or size + weight > MAX_FRAME_BYTES or len(rows) >= MAX_FRAME_ITEMS):
                yield ["results", first, rows], parts
                rows, parts, size = [], [], 0
            if not rows:
                first = number
            rows.append(result.row())
            if length:
                parts.append(result.payload)
            size += weight
            next_number = number + 1
        if rows:
            yield ["results", first, rows], parts
        self.unsent = deque(later)
