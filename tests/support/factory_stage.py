"""Makes sites, pilots and site histories for the tests of factories."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from pilotfish import plugins
from pilotfish.core.pilots.factory_interface import Demand, FactoryView, PilotProposal, SiteEvent, SiteView, WithdrawalProposal
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.core.state import State
from pilotfish.model.site import PilotSize, Site
from pilotfish.model.states import ACTIVE, SUBMITTED

ONE = PilotSize()
NOW = 100_000.0
_numbers = itertools.count(1)


def pilot(site: str, state: int = ACTIVE, age_s: float = 1000.0, replica_of: str = "", id: str = "") -> Pilot:
    return Pilot(id or f"p{next(_numbers)}", site, ONE, NOW - age_s, state=state, joined=int(state == ACTIVE), replica_of=replica_of)


def queued(site: str, age_s: float = 10.0, **more: Any) -> Pilot:
    return pilot(site, SUBMITTED, age_s, **more)


def event(site: str, kind: str, name: str = "", ago_s: float = 100.0, seconds: float = 0.0, cause: str = "") -> SiteEvent:
    return SiteEvent(NOW - ago_s, site, kind, name or f"e{next(_numbers)}", seconds, cause)


def site_view(
    name: str, pilots: Sequence[Pilot] = (), history: Sequence[SiteEvent] = (), wanted: int = -1, site: Site | None = None, **about: Any
) -> SiteView:
    described = site or Site(**{"backend": "slurm", "cores": 1, "max_pilots": 1000, "max_queued": 1000, **about})
    return SiteView(name, described, list(pilots), list(history), wanted, traits=plugins.traits(described.backend))


def factory_view(
    sites: Sequence[SiteView], tasks: int = 0, *, spare: Sequence[str] = (), now: float = NOW, sizes: Sequence[PilotSize] | None = None
) -> FactoryView:
    state = State(unfinished=tasks)
    for one in sites:
        for present in one.pilots:
            state.pilots[present.id] = present
    wanted = list(sizes) if sizes is not None else [ONE] * tasks
    return FactoryView(state, list(sites), Demand(float(tasks), tasks or len(wanted), wanted, list(spare)), now)


def requests(proposals: Sequence[PilotProposal | WithdrawalProposal]) -> list[PilotProposal]:
    return [one for one in proposals if isinstance(one, PilotProposal)]


def withdrawals(proposals: Sequence[PilotProposal | WithdrawalProposal]) -> list[WithdrawalProposal]:
    return [one for one in proposals if isinstance(one, WithdrawalProposal)]


def count_by_site(proposals: Sequence[PilotProposal | WithdrawalProposal]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for request in requests(proposals):
        counts[request.site] = counts.get(request.site, 0) + 1
    return counts
