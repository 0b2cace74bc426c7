"""Numbers questions to peers and expires them.

``then(answer, now)`` is called once for each question, with the fields of the answer, or with None (also after it raised MalformedMessage
because of the answer). All questions have the same time-out, so they expire in the order asked and no heap is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, List, Optional, Sequence, Tuple

from .contacts import NEVER, Contact, Effect, MalformedMessage, read_fields

Then = Callable[[Optional[Sequence[Any]], float], None]


class PeerRequests:
    """Questions without an answer. ``lost(node, now)`` is called for a node that did not answer. Numbers begin after ``first``, which
    differs between processes, so that no answer to an earlier process with the same id is taken."""

    def __init__(self, timeout_s: float, first: int, effects: List[Effect], lost: Callable[[int, float], None]) -> None:
        self._timeout_s = timeout_s
        self._effects = effects
        self._lost = lost
        self._pending: OrderedDict[int, Tuple[float, int, Then]] = OrderedDict()
        self._last = first

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def deadline(self) -> float:
        for due, _, _ in self._pending.values():
            return due
        return NEVER

    def ask(self, contact: Contact, kind: str, arguments: List[Any], then: Then, now: float) -> None:
        self._last += 1
        self._pending[self._last] = (now + self._timeout_s, contact.node, then)
        self._effects.append(("send_to_peer", contact, [kind, self._last, *arguments]))

    def answer(self, sender: Contact, question: int, arguments: List[Any]) -> None:
        if question:
            self._effects.append(("send_to_peer", sender, ["answer", question, *arguments]))

    def on_answer(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        (question,) = read_fields(message, 1)
        pending = self._pending.get(question) if type(question) is int else None
        if pending is None or pending[1] != sender.node:
            return  # too late
        del self._pending[question]
        try:
            pending[2](message[2:], now)
        except MalformedMessage:
            pending[2](None, now)
            raise

    def unreachable(self, node: int, now: float) -> None:
        for question in [question for question, (_, asked, _) in self._pending.items() if asked == node]:
            self._give_up(question, now)

    def turn(self, now: float) -> None:
        while self.deadline <= now:
            self._give_up(next(iter(self._pending)), now)

    def _give_up(self, question: int, now: float) -> None:
        pending = self._pending.pop(question, None)
        if pending is not None:
            self._lost(pending[1], now)
            pending[2](None, now)
