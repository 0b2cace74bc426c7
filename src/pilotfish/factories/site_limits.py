"""Keeps requests for pilots within the limits of the sites and the needs of the waiting work.

Each requested pilot fits a waiting task, and no more pilots are requested than the waiting work needs. These two rules do not apply to
sites with a fixed number of pilots, and to pilot replicas.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from pilotfish.core.pilots.factory_interface import FactoryView, PilotProposal, SiteView, WithdrawalProposal
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.core.pilots.unmet_demand import fits_site, nodes_of_pilot
from pilotfish.model.backend_traits import BackendTraits
from pilotfish.model.site import PilotSize, Site
from pilotfish.model.states import ACTIVE, REQUESTED, SUBMITTED


def is_queued(pilot: Pilot) -> bool:
    return pilot.state in (REQUESTED, SUBMITTED)


def is_active(pilot: Pilot) -> bool:
    return pilot.state == ACTIVE


def fit(least: PilotSize, site: Site, traits: BackendTraits) -> PilotSize | None:
    """Returns the size of the pilot to request at a site for work that needs at least ``least``; None if no pilot there is large enough."""
    whole = site.takes_whole_machines
    cores = 0.0 if whole else float(site.cores or max(1, math.ceil(least.cores)))
    alike = int(cores / least.cores) if least.cores else 1
    memory = site.memory or (0 if whole else least.memory * max(1, alike))
    nodes = nodes_of_pilot(least.nodes, site, traits)
    size = PilotSize(cores=cores, nodes=nodes, walltime_s=site.walltime_s, memory=memory, gpus=float(site.gpus))
    large = whole or (size.cores >= least.cores and size.memory >= least.memory)
    long = not size.walltime_s or size.walltime_s >= least.walltime_s
    if not large or not long or size.nodes < least.nodes or size.gpus < least.gpus:
        return None
    return None if site.max_cores and size.all_cores > site.max_cores else size


class SiteRoom:
    """Pilots and cores that a site may still get. Limits: ``max_pilots``, ``max_queued``, ``max_cores`` and the number of named hosts."""

    def __init__(self, view: SiteView) -> None:
        site = view.site
        most = min(site.max_pilots, len(site.hosts) or 1) if site.takes_whole_machines else site.max_pilots
        self.site = site
        self._traits = view.traits
        self.pilots = most - len(view.pilots)
        self.queued = site.max_queued - sum(1 for pilot in view.pilots if is_queued(pilot))
        self.cores = site.max_cores - sum(pilot.cores for pilot in view.pilots) if site.max_cores else math.inf

    def size_for(self, least: PilotSize) -> PilotSize | None:
        if self.pilots <= 0 or self.queued <= 0:
            return None
        size = fit(least, self.site, self._traits)
        return size if size is not None and size.all_cores <= self.cores else None

    def take(self, size: PilotSize) -> None:
        self.pilots -= 1
        self.queued -= 1
        self.cores -= size.all_cores


class PilotNeeds:
    """Numbers of pilots that the waiting work still needs, by minimum size and allowed sites. Each request reduces these numbers."""

    def __init__(self, sizes: Sequence[PilotSize], places: Sequence[tuple[str, ...]] = ()) -> None:
        self._counts = Counter(zip(sizes, places or [()] * len(sizes), strict=True))

    def __bool__(self) -> bool:
        return bool(self._counts)

    def kinds(self, site: str = "") -> list[PilotSize]:
        """Returns the minimum sizes of the needed pilots that may run at this site; without a site, the sizes of all needed pilots."""
        return [size for size, places in self._counts if not site or not places or site in places]

    def serve(self, size: PilotSize, least: PilotSize, site: str = "") -> None:
        """Removes the needs that a requested pilot of size ``size`` will serve: one need of size ``least``, and all needs that fit into the
        rest of the pilot."""
        room = [
            size.all_cores - least.all_cores,
            size.memory * size.nodes - least.memory * least.nodes,
            size.gpus * size.nodes - least.gpus * least.nodes,
        ]
        allowed = [kind for kind in self._counts if not site or not kind[1] or site in kind[1]]
        self._reduce(next(kind for kind in allowed if kind[0] == least), 1)
        for kind in allowed:
            other = kind[0]
            if other.cores > size.cores or other.memory > size.memory or other.gpus > size.gpus or other.nodes > size.nodes:
                continue
            asked = (other.all_cores, float(other.memory * other.nodes), other.gpus * other.nodes)
            more = min([self._counts[kind], *(int(spare / part) for spare, part in zip(room, asked, strict=True) if part > 0)])
            if more > 0 and other.all_cores > 0:
                room = [spare - more * part for spare, part in zip(room, asked, strict=True)]
                self._reduce(kind, more)

    def _reduce(self, kind: tuple[PilotSize, tuple[str, ...]], by: int) -> None:
        self._counts[kind] -= by
        if not self._counts[kind]:
            del self._counts[kind]


class ProposalRound:
    """Collects the proposals of one call of ``propose``. Factories request pilots only through this object, so that no factory exceeds the
    limits of a site."""

    def __init__(self, view: FactoryView) -> None:
        self.view = view
        self.now = view.now
        self.rooms = {site_view.name: SiteRoom(site_view) for site_view in view.sites}
        self.needs = PilotNeeds(view.demand.sizes, view.demand.places)
        self.proposals: list[PilotProposal | WithdrawalProposal] = []
        self.look_times: list[float] = []
        self._withdrawn: dict[str, None] = {}

    def has_work_for(self, view: SiteView) -> bool:
        """Returns True if a run has tasks that can run at this site, now or later. Paused runs do not count. If there are no runs (as in a
        simulated grid), any unfinished task counts, because each task can run at every site."""
        state = self.view.state
        if not state.runs:
            return bool(self.view.demand.tasks or state.unfinished)
        stuck: dict[int, int] = {}
        for shape in state.ready:
            if not fits_site(shape, view):
                stuck[shape.run.id] = stuck.get(shape.run.id, 0) + len(shape.queue)
        runs = [run for run in state.runs.values() if not run.paused and (not run.options.sites or view.name in run.options.sites)]
        return any(run.unfinished > stuck.get(run.id, 0) for run in runs)

    def free_sites(self) -> list[SiteView]:
        """Returns the sites without a fixed number of pilots. A factory can choose among these sites."""
        return [view for view in self.view.sites if view.wanted < 0]

    def open_sites(self) -> list[SiteView]:
        """Returns the free sites where a pilot for some waiting task can be requested now."""
        return [view for view in self.free_sites() if self._match(view.name) is not None]

    def request(self, site: str, reason: str) -> bool:
        match = self._match(site)
        if match is None:
            return False
        size, least = match
        self.needs.serve(size, least, site)
        return self._ask(site, size, reason)

    def sites_for_replica(self, pilots: Sequence[Pilot]) -> list[SiteView]:
        """Returns the sites where a replica of these pilots can be requested and where none of these pilots is queued or runs."""
        taken, least = [pilot.site for pilot in pilots], self.replica_size(pilots[0])
        allowed = self.view.demand.needed_at.get(pilots[0].id, ())
        views = [view for view in self.free_sites() if view.name not in taken and (not allowed or view.name in allowed)]
        return [view for view in views if self.rooms[view.name].size_for(least) is not None]

    def request_replica(self, site: str, pilot: Pilot, reason: str) -> bool:
        """Requests a pilot at this site as the replica of a pilot that waits at another site. ``needs`` does not change, because ``needs``
        contains only work for which no pilot was requested yet."""
        return self._ask(site, self.rooms[site].size_for(self.replica_size(pilot)), reason, pilot.replica_of or pilot.id)

    def replica_size(self, pilot: Pilot) -> PilotSize:
        """Returns the minimum size of a replica of this pilot."""
        return self.view.demand.needed.get(pilot.id, pilot.size)

    def request_any_size(self, site: str, reason: str) -> bool:
        """Requests a pilot at a site with a fixed number of pilots. If a pilot of this site can serve waiting work, the pilot gets the size
        for this work. Otherwise, it gets the default size."""
        return self.request(site, reason) or self._ask(site, self.rooms[site].size_for(PilotSize()), reason)

    def withdraw(self, pilot: str, reason: str, cause: str) -> None:
        if pilot not in self._withdrawn:
            self._withdrawn[pilot] = None
            self.proposals.append(WithdrawalProposal(pilot, reason, cause))

    def look_again(self, at: float) -> None:
        """Asks for another call of ``propose`` at this time."""
        if at > self.now:
            self.look_times.append(at)

    def _ask(self, site: str, size: PilotSize | None, reason: str, replaces: str = "") -> bool:
        if size is None:
            return False
        self.rooms[site].take(size)
        self.proposals.append(PilotProposal(site, size, reason, replaces))
        return True

    def _match(self, site: str) -> tuple[PilotSize, PilotSize] | None:
        for least in self.needs.kinds(site):
            size = self.rooms[site].size_for(least)
            if size is not None:
                return size, least
        return None


def queued_at(views: Sequence[SiteView]) -> list[Pilot]:
    return [pilot for view in views for pilot in view.pilots if is_queued(pilot)]


def active_at(views: Sequence[SiteView]) -> list[Pilot]:
    return [pilot for view in views for pilot in view.pilots if is_active(pilot)]
