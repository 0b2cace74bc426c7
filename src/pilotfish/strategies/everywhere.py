"""This machine and all sites together: the size that was asked for here, and a factory for the rest."""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.core.proposals import Hold
from pilotfish.core.prospects import Factory, PilotWish, PilotWithdrawal
from pilotfish.core.state import State
from pilotfish.core.survey import survey
from pilotfish.model.site import LOCAL
from pilotfish.strategies.fixed import Fixed

APART_S = 0.5
"""The sites are thought about no more often: nothing there happens faster."""
GIVE_UP_AFTER = 3
"""Pilots of a site in a row that end before their agent joined."""


class Everywhere:
    def __init__(self, factory: Factory) -> None:
        self._local = Fixed()
        self._factory = factory
        self._heard: dict[str, int] = {}
        self._next_at = 0.0
        self._asked_at: float | None = None

    def propose(self, state: State, now: float) -> Sequence[PilotWish | PilotWithdrawal | Hold]:
        proposals: list[PilotWish | PilotWithdrawal | Hold] = list(self._local.propose(state, now))
        self._asked_at = None
        if any(record.wanted is not None for record in state.sites.values()):
            if now < self._next_at:
                self._asked_at = self._next_at
                return proposals
            self._next_at = now + APART_S
            holds = _give_up(state)
            if holds:
                # Who is given up must not be asked in the same breath.
                self._asked_at = self._next_at
                return [*proposals, *holds]
            prospect = survey(state, now)
            self._listen(state)
            proposals += self._factory.propose(prospect)
            self._asked_at = self._factory.next_look_at(prospect)
        return proposals

    def next_look_at(self, state: State, now: float) -> float | None:
        moments = [moment for moment in (self._local.next_look_at(state, now), self._asked_at) if moment is not None]
        return min(moments, default=None)

    def standings(self, state: State, now: float) -> dict[str, dict[str, object]]:
        """How the factory thinks of each site that the pool uses."""
        prospect = survey(state, now)
        self._listen(state)
        return {view.name: self._factory.standing(view, now) for view in prospect.sites}

    def _listen(self, state: State) -> None:
        """Tell the factory what has happened since it was asked last; after a restart, all that is remembered."""
        news = []
        for name, record in state.sites.items():
            missed = record.events - self._heard.get(name, 0)
            self._heard[name] = record.events
            if missed > 0 and name != LOCAL:
                news += list(record.history)[-missed:]
        for event in sorted(news, key=lambda event: event.at):
            self._factory.hear(event)


def _give_up(state: State) -> list[Hold]:
    """Sites whose pilots keep failing to start wait for a person; each try costs somebody's queue a slot."""
    return [
        Hold(name, f"{record.bad_starts} pilots in a row ended before their agents joined; the last one {record.last_bad}")
        for name, record in state.sites.items()
        if name != LOCAL and record.bad_starts >= GIVE_UP_AFTER and not record.held
    ]
