"""Results that the master has not acknowledged yet, numbered 0, 1, 2 … over the agent's life. Pure; ``machine.py`` is the only user."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Deque, Iterator, List, Optional, Tuple

from ...portable.failures import Failure
from .attempts import FINISHED, Attempt

Item = Tuple[Any, ...]
"""(failure or None, wall_us, cpu_us, rss_kib, payload[, contents that were made: [digest, size, home, here, name, mode] each])"""

FRAME_BYTES = 1 << 20
FRAME_ITEMS = 2048
DOUBTFUL = ("exit", "killed", "slot-lost")
DOUBT_S = 0.2
"""A batch system that ends a pilot sends the signal to its agent and to the tasks alike: a failure of that kind is kept for so long before
it is told. If by then the agent was told to end, it is not the task's failure, and is never told."""


class FinishedAttempt:
    """One result, as it is kept."""

    __slots__ = ("task", "attempt", "failure", "wall_us", "cpu_us", "rss_kib", "payload", "made", "told_from")

    def __init__(self, attempt: Attempt, item: Item, now: float) -> None:
        self.task = attempt.task
        self.attempt = attempt.attempt
        self.failure: Optional[Failure]
        self.failure, self.wall_us, self.cpu_us, self.rss_kib, self.payload = item[:5]
        self.made: List[Any] = item[5] if len(item) > 5 else []
        doubtful = self.failure is not None and (self.failure[0] in DOUBTFUL or "SIGTERM" in self.failure[2])
        self.told_from = now + DOUBT_S if doubtful else now

    def row(self) -> List[Any]:
        row = [self.task, self.attempt, self.failure, self.wall_us, self.cpu_us, self.rss_kib, len(self.payload)]
        return [*row, self.made] if self.made else row


class PendingResults:
    """Kept until acknowledged; sent once per connection."""

    def __init__(self) -> None:
        self.kept: OrderedDict[int, FinishedAttempt] = OrderedDict()
        self.unsent: Deque[int] = deque()
        self._next_number = 0

    def keep(self, attempt: Attempt, item: Item, now: float) -> None:
        self.kept[self._next_number] = FinishedAttempt(attempt, item, now)
        self.unsent.append(self._next_number)
        self._next_number += 1

    def acknowledge(self, first: int, last: int) -> List[str]:
        """The contents that these tasks had made: the master knows of them now."""
        known: List[str] = []
        for number in range(max(0, first), min(last, self._next_number - 1) + 1):
            done = self.kept.pop(number, None)
            if done is not None and done.made:
                known.extend(content[0] for content in done.made if content[3])
        return known

    def forget_doubtful(self, now: float) -> None:
        for number in [number for number, done in self.kept.items() if done.told_from > now]:
            del self.kept[number]

    def send_all_again(self) -> None:
        self.unsent = deque(self.kept)

    def holding(self) -> List[List[int]]:
        return [[done.task, done.attempt, FINISHED] for done in self.kept.values()]

    def frames(self, now: float) -> Iterator[Tuple[List[Any], List[Any]]]:
        """(header, body parts) of all that is to be sent: consecutive numbers, and small enough that a beat never waits long behind one."""
        later: List[int] = []
        rows: List[List[Any]] = []
        parts: List[Any] = []
        size = first = following = 0
        for number in self.unsent:
            done = self.kept.get(number)
            if done is None:
                continue
            if done.told_from > now:
                later.append(number)
                continue
            length = len(done.payload)
            # A message counts with the most that JSON may make of it.
            weight = length + (6 * len(done.failure[2]) if done.failure else 0) + sum([128 + 6 * len(row[4]) for row in done.made])
            if rows and (number != following or size + weight > FRAME_BYTES or len(rows) >= FRAME_ITEMS):
                yield ["results", first, rows], parts
                rows, parts, size = [], [], 0
            if not rows:
                first = number
            rows.append(done.row())
            if length:
                parts.append(done.payload)
            size += weight
            following = number + 1
        if rows:
            yield ["results", first, rows], parts
        self.unsent = deque(later)
