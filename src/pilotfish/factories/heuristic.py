"""Draws sites by the share of recent pilots that succeeded (HAF), or by that share times the speed of a site's nodes (hybrid)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotfish.core.pilots.factory_interface import FactoryView, PilotProposal, SiteView, WithdrawalProposal
from pilotfish.factories.replication import assess_pilots
from pilotfish.factories.site_history import SiteHistory, read_record
from pilotfish.factories.site_limits import ProposalRound
from pilotfish.factories.upkeep import DEFAULT_PILOTS, PERIOD_S, BaseFactory

GENERIC_FITNESS = 1.0
"""Weight of the generic slot, which stands for any site. It is never 0, so that new sites and repaired sites are found."""


@dataclass(slots=True, frozen=True)
class HeuristicSettings:
    workers: int = 10
    """Target number of workers."""
    max_pending: int = 0
    """Maximum queued pilots at all sites together; 0: as many as ``workers``."""
    surplus: int = 2
    """Pilots requested beyond the missing ones, because some never start."""
    window_s: float = 4 * 3600.0
    """Seconds until an event is forgotten."""
    max_wait_s: float = 3600.0
    """Seconds until a queued pilot is no longer counted on. More at sites where waits are known to be long."""
    period_s: float = PERIOD_S


class HeuristicFactory(BaseFactory):
    def __init__(self, settings: HeuristicSettings, rng: random.Random) -> None:
        super().__init__(period_s=settings.period_s)
        self._settings = settings
        self._rng = rng

    def standing(self, view: SiteView, now: float) -> dict[str, object]:
        return {"fitness": round(self.fitness(view, read_record(view, now, self._settings.window_s)), 3)}

    def fitness(self, view: SiteView, record: SiteHistory) -> float:
        return (record.running + record.succeeded) / record.all if record.all else 0.0

    def _fill_up(self, round_: ProposalRound) -> None:
        if not self._is_time(round_):
            return
        settings = self._settings
        pilots = assess_pilots(round_, settings.max_wait_s)
        if pilots.active >= settings.workers:
            self._withdraw_rest(round_, pilots.active, settings.workers)
            return
        records = {view.name: read_record(view, round_.now, settings.window_s) for view in round_.free_sites()}
        missing = settings.workers + settings.surplus - pilots.expected
        count = min(missing, (settings.max_pending or settings.workers) - pilots.pending)
        progress = f"{pilots.active} of {settings.workers} workers"
        self._request_pilots(round_, pilots, count, lambda sites: self._draw(sites, records), lambda _: progress)

    def _explore(self, sites: list[SiteView]) -> SiteView:
        return self._rng.choice(sites)

    def _draw(self, sites: list[SiteView], records: dict[str, SiteHistory]) -> tuple[str, str]:
        """Draw a site's own slot, or the generic slot, which stands for any site. Returns the site's name and the reason."""
        fitness = {view.name: self.fitness(view, records[view.name]) for view in sites}
        total = GENERIC_FITNESS + sum(fitness.values())
        mark = self._rng.random() * total
        for name, value in fitness.items():
            mark -= value
            if mark < 0:
                record = records[name]
                past = f"{record.running} running and {record.succeeded} succeeded of {record.all}"
                return name, f"fitness {value:.2f} of {total:.2f} in all: {past}"
        return self._explore(sites).name, f"drawn to find out, fitness {GENERIC_FITNESS:.2f} of {total:.2f} in all"


class HybridFactory(HeuristicFactory):
    """Heuristic factory whose site fitness is multiplied by the rank of the site's nodes.

    ``ranks``: relative speed of a site's nodes for this work; default 1. If None, ranks are estimated from the tasks that ended at each
    site, compared with all other sites.
    """

    def __init__(self, settings: HeuristicSettings, rng: random.Random, ranks: Mapping[str, float] | None = None) -> None:
        super().__init__(settings, rng)
        self._ranks = ranks or {}
        self._given = ranks is not None

    def propose(self, view: FactoryView) -> Sequence[PilotProposal | WithdrawalProposal]:
        if not self._given:
            slowness = view.state.forecasts.slowness
            self._ranks = {site_view.name: 1 / slowness("", site_view.name) for site_view in view.sites}
        return super().propose(view)

    def fitness(self, view: SiteView, record: SiteHistory) -> float:
        return super().fitness(view, record) * self._rank(view)

    def _explore(self, sites: list[SiteView]) -> SiteView:
        """Use the ranks also for sites without history: the speed of their nodes may be known."""
        ranks = [self._rank(view) for view in sites]
        return self._rng.choices(sites, ranks)[0] if any(ranks) else super()._explore(sites)

    def _rank(self, view: SiteView) -> float:
        return max(0.0, self._ranks.get(view.name, 1.0))


def make_heuristic(pilots: int, rng: random.Random) -> HeuristicFactory:
    return HeuristicFactory(HeuristicSettings(workers=pilots or DEFAULT_PILOTS), rng)


def make_hybrid(pilots: int, rng: random.Random) -> HybridFactory:
    return HybridFactory(HeuristicSettings(workers=pilots or DEFAULT_PILOTS), rng)
