"""Draws sites at random, weighted by their fitness.

The heuristic factory (HAF) uses as fitness the fraction of the site's recent pilots that run or succeeded. The hybrid factory multiplies
this fraction by the relative speed of the site's nodes. Sometimes a site is drawn without regard to its fitness, so that new sites and
repaired sites are found. ``EXPLORATION_FITNESS`` is the weight of this choice.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotfish.core.pilots.factory_interface import FactoryView, PilotProposal, SiteView, WithdrawalProposal
from pilotfish.factories.replication import assess_pilots
from pilotfish.factories.site_history import SiteHistory, read_record
from pilotfish.factories.site_limits import ProposalRound
from pilotfish.factories.upkeep import DEFAULT_PILOTS, PERIOD_S, BaseFactory

EXPLORATION_FITNESS = 1.0
"""Weight of the choice to draw a site without regard to its fitness. The other weights are the fitnesses of the sites."""


@dataclass(slots=True, frozen=True)
class HeuristicSettings:
    workers: int = 10
    """Target number of workers."""
    max_pending: int = 0
    """Maximum queued pilots at all sites together; 0: the same number as ``workers``."""
    surplus: int = 2
    """Number of pilots that are requested in addition to the missing pilots, because some pilots never start."""
    window_s: float = 4 * 3600.0
    """Seconds until an event is forgotten."""
    max_wait_s: float = 3600.0
    """After this many seconds in the queue, a pilot is not expected to start any more. Sites where earlier waits were long have a longer
    limit."""
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
        """Draws a site, weighted by fitness. Sometimes draws a site without regard to its fitness, to learn about the site. Returns the
        name of the site and the reason."""
        fitness = {view.name: self.fitness(view, records[view.name]) for view in sites}
        total = EXPLORATION_FITNESS + sum(fitness.values())
        mark = self._rng.random() * total
        for name, value in fitness.items():
            mark -= value
            if mark < 0:
                record = records[name]
                past = f"{record.running} running and {record.succeeded} succeeded of {record.all}"
                return name, f"fitness {value:.2f} of {total:.2f} in all: {past}"
        return self._explore(sites).name, f"drawn to find out, fitness {EXPLORATION_FITNESS:.2f} of {total:.2f} in all"


class HybridFactory(HeuristicFactory):
    """Heuristic factory that multiplies the fitness of a site by the relative speed of its nodes.

    ``speeds``: for each site, the relative speed of its nodes for this work; 1 for a site that is not listed. If ``speeds`` is None, the
    speeds are estimated from the times of tasks at each site.
    """

    def __init__(self, settings: HeuristicSettings, rng: random.Random, speeds: Mapping[str, float] | None = None) -> None:
        super().__init__(settings, rng)
        self._speeds = speeds or {}
        self._given = speeds is not None

    def propose(self, view: FactoryView) -> Sequence[PilotProposal | WithdrawalProposal]:
        if not self._given:
            slowness = view.state.forecasts.slowness
            self._speeds = {site_view.name: 1 / slowness("", site_view.name) for site_view in view.sites}
        return super().propose(view)

    def fitness(self, view: SiteView, record: SiteHistory) -> float:
        return super().fitness(view, record) * self._speed(view)

    def _explore(self, sites: list[SiteView]) -> SiteView:
        """Draws a site, weighted only by the speed of its nodes. The speed can be known even if the site has no history."""
        speeds = [self._speed(view) for view in sites]
        return self._rng.choices(sites, speeds)[0] if any(speeds) else super()._explore(sites)

    def _speed(self, view: SiteView) -> float:
        return max(0.0, self._speeds.get(view.name, 1.0))


def make_heuristic(pilots: int, rng: random.Random) -> HeuristicFactory:
    return HeuristicFactory(HeuristicSettings(workers=pilots or DEFAULT_PILOTS), rng)


def make_hybrid(pilots: int, rng: random.Random) -> HybridFactory:
    return HybridFactory(HeuristicSettings(workers=pilots or DEFAULT_PILOTS), rng)
