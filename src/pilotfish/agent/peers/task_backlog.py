"""What a site's master was lent and has not given to anybody, by spec, so that it need not look through all of it for one agent.

An agent with room whom none of them suits in particular leaves those alone that suit another one, as long as there are others. If it has to
take one of them, it takes the latest: whom that suits has most likely just begun something else, and whom the oldest suits has room next.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain
from typing import Any, Dict, Iterator, List, Optional

HOLD_OFF_S = 600.0
"""So long a task waits for the agent that it suits, if others have room for it; then it is the next, whoever comes."""

Piles = Dict[int, "OrderedDict[int, BacklogTask]"]
"""By spec and task."""


class BacklogTask:
    """A task that was lent to us. ``row`` and ``payload`` as they came; ``at``: when."""

    __slots__ = ("row", "payload", "contents", "at")

    def __init__(self, row: List[Any], payload: bytes, at: float) -> None:
        self.row = row
        self.payload = payload
        self.contents = [[content[0], content[1]] for content in row[6]]
        self.at = at


class TaskBacklog:
    """``loans``: all of them; ``untold``: those that are to be told to the others. Those that were told are given."""

    def __init__(self) -> None:
        self.loans: Dict[int, BacklogTask] = {}
        self.untold: Dict[int, BacklogTask] = {}
        self._plain: Piles = {}
        self._liked: Piles = {}
        """Those that suit somebody more than others of their spec do."""

    @property
    def specs(self) -> Dict[int, None]:
        """Of those that were told."""
        return dict.fromkeys(chain(self._plain, self._liked))

    def told(self, spec: int) -> Iterator[int]:
        return chain(self._plain.get(spec, ()), self._liked.get(spec, ()))

    def put(self, loan: BacklogTask) -> None:
        task = loan.row[0]
        if task in self.loans:
            self.pop(task)  # an earlier attempt
        self.loans[task] = self.untold[task] = loan

    def put_back(self, loan: BacklogTask) -> None:
        """It was given and not taken: the first in turn, unless it was lent to us anew meanwhile."""
        task = loan.row[0]
        if task not in self.loans:
            self.loans[task] = loan
            _add(self._plain, loan)
            self._plain[loan.row[2]].move_to_end(task, last=False)

    def pop(self, task: int) -> BacklogTask:
        loan = self.loans.pop(task)
        self.untold.pop(task, None)
        _remove(self._plain, loan)
        _remove(self._liked, loan)
        return loan

    def tell(self, most: int) -> List[BacklogTask]:
        """Some that the others are told of now."""
        telling = [self.untold.pop(task) for task in list(self.untold)[:most]]
        for loan in telling:
            if loan.row[0] not in self._liked.get(loan.row[2], ()):
                _add(self._plain, loan)
        return telling

    def tell_again(self) -> None:
        """Somebody came who has heard of nothing."""
        self.untold = dict(self.loans)

    def like(self, task: int) -> None:
        loan = self.loans[task]
        if _remove(self._plain, loan):
            _add(self._liked, loan)

    def next_of(self, spec: int, now: float) -> Optional[BacklogTask]:
        """For somebody whom none of them suits in particular."""
        plain, liked = self._plain.get(spec), self._liked.get(spec)
        if liked:
            oldest = next(iter(liked.values()))
            if oldest.at + HOLD_OFF_S <= now:
                return oldest
        if plain:
            return next(iter(plain.values()))
        return next(reversed(liked.values())) if liked else None


def _add(piles: Piles, loan: BacklogTask) -> None:
    piles.setdefault(loan.row[2], OrderedDict())[loan.row[0]] = loan


def _remove(piles: Piles, loan: BacklogTask) -> bool:
    pile = piles.get(loan.row[2], OrderedDict())
    if pile.pop(loan.row[0], None) is None:
        return False
    if not pile:
        del piles[loan.row[2]]
    return True
