"""Draws sites by the share of recent pilots that succeeded (HAF), or by that share times the speed of a site's nodes (hybrid)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotfish.core.pilots.factory_interface import FactoryView, PilotProposal, SiteEvent, SiteView, WithdrawalProposal
from pilotfish.factories.replication import sort_out
from pilotfish.factories.site_history import SiteHistory, read_record
from pilotfish.factories.site_limits import ProposalRound
from pilotfish.factories.upkeep import DEFAULT_PILOTS, PERIOD_S, FactoryUpkeep

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
    patience_s: float = 3600.0
    """Seconds until a queued pilot is no longer counted on. More at sites where waits are known to be long."""
    period_s: float = PERIOD_S


class HeuristicFactory:
    def __init__(self, settings: HeuristicSettings, dice: random.Random) -> None:
        self._settings = settings
        self._dice = dice
        self._duties = FactoryUpkeep(period_s=settings.period_s)
        self._moments: list[float] = []

    def hear(self, event: SiteEvent) -> None:
        """Ignored: the factory view holds everything it needs."""

    def propose(self, prospect: FactoryView) -> Sequence[PilotProposal | WithdrawalProposal]:
        round_ = ProposalRound(prospect)
        self._duties.perform(round_)
        if self._duties.is_time(round_) and self._fill_up(round_):
            self._duties.note_wishes(round_)
        self._moments = round_.moments
        return round_.proposals

    def standing(self, view: SiteView, now: float) -> dict[str, object]:
        return {"fitness": round(self.fitness(view, read_record(view, now, self._settings.window_s)), 3)}

    def next_look_at(self, prospect: FactoryView) -> float | None:
        return min((moment for moment in self._moments if moment > prospect.now), default=None)

    def fitness(self, view: SiteView, record: SiteHistory) -> float:
        return (record.running + record.well) / record.all if record.all else 0.0

    def _fill_up(self, round_: ProposalRound) -> bool:
        settings = self._settings
        outlook = sort_out(round_, settings.patience_s)
        if outlook.active >= settings.workers:
            self._duties.withdraw_rest(round_, outlook.active, settings.workers)
        records = {view.name: read_record(view, round_.now, settings.window_s) for view in round_.free_sites()}
        hopeless = list(outlook.hopeless)
        wished = 0
        missing = settings.workers + settings.surplus - outlook.hopeful if outlook.active < settings.workers else 0
        while wished < missing and outlook.pending + wished < (settings.max_pending or settings.workers):
            so_far = f"{outlook.active} of {settings.workers} workers"
            if open_sites := round_.open_sites():
                name, how = self._draw(open_sites, records)
                round_.wish(name, f"{so_far}; {how}")
            elif hopeless:
                members = hopeless.pop(0)
                if not (others := round_.sites_instead(members)):
                    continue
                name, how = self._draw(others, records)
                round_.wish_instead(name, members[0], f"{so_far}; {members[0].id} waits for too long; {how}")
            else:
                break
            wished += 1
        return bool(wished)

    def _explore(self, sites: list[SiteView]) -> SiteView:
        return self._dice.choice(sites)

    def _draw(self, sites: list[SiteView], records: dict[str, SiteHistory]) -> tuple[str, str]:
        """Draw a site's own slot, or the generic slot, which stands for any site. Returns the site's name and the reason."""
        fitness = {view.name: self.fitness(view, records[view.name]) for view in sites}
        total = GENERIC_FITNESS + sum(fitness.values())
        mark = self._dice.random() * total
        for name, value in fitness.items():
            mark -= value
            if mark < 0:
                record = records[name]
                past = f"{record.running} running and {record.well} ended well of {record.all}"
                return name, f"fitness {value:.2f} of {total:.2f} in all: {past}"
        return self._explore(sites).name, f"drawn to find out, fitness {GENERIC_FITNESS:.2f} of {total:.2f} in all"


class HybridFactory(HeuristicFactory):
    """Heuristic factory whose site fitness is multiplied by the rank of the site's nodes.

    ``ranks``: relative speed of a site's nodes for this work; default 1. If None, ranks are estimated from the tasks that ended at each
    site, compared with all other sites.
    """

    def __init__(self, settings: HeuristicSettings, dice: random.Random, ranks: Mapping[str, float] | None = None) -> None:
        super().__init__(settings, dice)
        self._ranks = ranks or {}
        self._given = ranks is not None

    def propose(self, prospect: FactoryView) -> Sequence[PilotProposal | WithdrawalProposal]:
        if not self._given:
            slowness = prospect.state.forecasts.slowness
            self._ranks = {view.name: 1 / slowness("", view.name) for view in prospect.sites}
        return super().propose(prospect)

    def fitness(self, view: SiteView, record: SiteHistory) -> float:
        return super().fitness(view, record) * self._rank(view)

    def _explore(self, sites: list[SiteView]) -> SiteView:
        """Use the ranks also for sites without history: the speed of their nodes may be known."""
        ranks = [self._rank(view) for view in sites]
        return self._dice.choices(sites, ranks)[0] if any(ranks) else super()._explore(sites)

    def _rank(self, view: SiteView) -> float:
        return max(0.0, self._ranks.get(view.name, 1.0))


def make_heuristic(pilots: int, dice: random.Random) -> HeuristicFactory:
    return HeuristicFactory(HeuristicSettings(workers=pilots or DEFAULT_PILOTS), dice)


def make_hybrid(pilots: int, dice: random.Random) -> HybridFactory:
    return HybridFactory(HeuristicSettings(workers=pilots or DEFAULT_PILOTS), dice)
