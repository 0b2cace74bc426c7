"""Computes which waiting work no present or coming worker can take, as the view of a factory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pilotfish.core.pilots.factory_interface import Demand, FactoryView, SiteView
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.core.state import UNIT, State, TaskShape
from pilotfish.model.backend_traits import BackendTraits
from pilotfish.model.site import LOCAL, PilotSize, Site
from pilotfish.model.states import ACTIVE, JOINED
from pilotfish.model.task import CORES, GPUS, MEMORY

WORTH_S = 60.0
"""A core more pays if it gets at least so much work."""
UNKNOWN_CORES = 4.0
"""What a machine is taken for that nobody has described and whose agent is not here yet."""
UNKNOWN = 1 << 62
"""More than anybody asks for: what is not known stands in nobody's way."""
MOST_SIZES = 2000
NODES_APART_S = 60.0
"""After one node of a pilot, the others are awaited for so long."""
START_S = 30.0
"""What a pilot is taken to need of its time for its start and its end, before one has shown it."""


def survey(state: State, now: float) -> FactoryView:
    sites = usable_sites(state)
    return FactoryView(state, sites, _demand(state, sites, now), now)


def usable_sites(state: State) -> list[SiteView]:
    """Those that the pool uses, and that are neither paused nor held."""
    return [
        SiteView(
            name,
            record.site,
            [pilot for pilot in state.pilots.values() if pilot.site == name and pilot.state <= ACTIVE],
            record.history,
            record.wanted,
            record.lost_s,
            state.traits(record.site.backend),
        )
        for name, record in state.sites.items()
        if name != LOCAL and record.site is not None and record.wanted is not None and not record.site.paused and not record.held
    ]


@dataclass(slots=True)
class WaitingTasks:
    """Tasks of one shape of which so many more could run at once, and it would pay."""

    shape: TaskShape
    least: PilotSize
    count: int
    places: tuple[str, ...]


def _demand(state: State, sites: list[SiteView], now: float) -> Demand:
    demand = Demand()
    work: list[WaitingTasks] = []
    for shape, count in _waiting(state):
        places = tuple(site.name for site in sites if could_go(shape, site))
        if places:
            demand.tasks += count
            work.append(WaitingTasks(shape, size_for(shape), _worth(shape, count), places))
    _fill_workers(state, work, now)
    _fill_coming(state, work, demand, now)
    for waiting in work:
        demand.cores += waiting.count * waiting.least.all_cores
        count = min(waiting.count, MOST_SIZES - len(demand.sizes))
        demand.sizes += [waiting.least] * count
        demand.places += [waiting.places] * count
    return demand


def _fill_workers(state: State, work: list[WaitingTasks], now: float) -> None:
    """What the workers that are here have room for needs no pilot."""
    able = {worker: dict(worker.free) for worker in state.workers.values() if worker.state == JOINED and not worker.quarantined_until}
    for waiting in work:
        if waiting.shape.nodes > 1:
            rooms: dict[str, list[dict[str, int]]] = {}
            for worker, room in able.items():
                if worker.pilot and worker.suits(waiting.shape, now):
                    rooms.setdefault(worker.pilot, []).append(room)
            for nodes in rooms.values():
                _serve_several(waiting, nodes)
    for worker, room in able.items():
        for waiting in work:
            if waiting.count and waiting.shape.nodes == 1 and worker.suits(waiting.shape, now):
                _serve(waiting, room)


def _fill_coming(state: State, work: list[WaitingTasks], demand: Demand, now: float) -> None:
    """Nor does what is on its way. A pilot and those that were asked for in its stead count once."""
    groups: dict[str, list[Pilot]] = {}
    for pilot in state.pilots.values():
        if pilot.state > ACTIVE or pilot.site == LOCAL:
            continue
        if not pilot.joined:
            groups.setdefault(pilot.instead_of or pilot.id, []).append(pilot)
        elif pilot.joined < pilot.size.nodes and any(now < state.workers[name].joined_at + NODES_APART_S for name in pilot.workers):
            _fill_pilot(state, pilot, work)
    for members in groups.values():
        served = _fill_pilot(state, members[0], work)
        for member in members:
            if served is None and not member.by_hand:
                demand.spare.append(member.id)
            elif served is not None:
                demand.awaited[member.id], demand.awaited_at[member.id] = served.least, served.places


def _fill_pilot(state: State, pilot: Pilot, work: list[WaitingTasks]) -> WaitingTasks | None:
    """What will fit this pilot; the first of it, None if nothing will. Nobody counts on a site that is held."""
    record, size = state.sites.get(pilot.site), pilot.size
    if record is None or record.site is None or record.held:
        return None
    view = SiteView(pilot.site, record.site, [], lost_s=record.lost_s, traits=state.traits(record.site.backend))
    able = [
        waiting for waiting in work if could_go(waiting.shape, view) and (not size.walltime_s or waiting.shape.lasts_s <= size.walltime_s)
    ]
    first: WaitingTasks | None = None
    one = {
        CORES: round((size.cores or UNKNOWN_CORES) * UNIT),
        MEMORY: size.memory * UNIT if size.memory or size.cores else UNKNOWN,
        GPUS: round(size.gpus * UNIT),
    }
    rooms = [dict(one) for _ in range(size.nodes)]
    for waiting in able:
        if waiting.shape.nodes > 1 and _serve_several(waiting, rooms):
            first = first or waiting
    for room in rooms[pilot.joined :]:
        for waiting in able:
            if waiting.count and waiting.shape.nodes == 1 and _serve(waiting, room):
                first = first or waiting
    return first


def _serve_several(waiting: WaitingTasks, rooms: list[dict[str, int]]) -> int:
    """The same for tasks of several nodes: so many have room at as many nodes of one pilot as they want."""
    served = 0
    while waiting.count:
        able = [room for room in rooms if all(room.get(name, 0) >= amount for name, amount in waiting.shape.needs)]
        if len(able) < waiting.shape.nodes:
            break
        for room in able[: waiting.shape.nodes]:
            for name, amount in waiting.shape.needs:
                room[name] -= amount
        waiting.count -= 1
        served += 1
    return served


def _serve(waiting: WaitingTasks, room: dict[str, int]) -> int:
    """So many of them have room there, and take it."""
    taken = min([waiting.count, *(room.get(name, 0) // amount for name, amount in waiting.shape.needs)])
    for name, amount in waiting.shape.needs:
        room[name] = room.get(name, 0) - taken * amount
    waiting.count -= taken
    return taken


def _waiting(state: State) -> list[tuple[TaskShape, int]]:
    found = {shape: len(shape.queue) for shape in state.ready if not shape.run.paused}
    for task in (task for task in state.suspects if not task.shape.run.paused):
        found[task.shape] = found.get(task.shape, 0) + 1
    return list(found.items())


def could_go(shape: TaskShape, view: SiteView) -> bool:
    """Would a task of this shape fit a pilot of this site, and may it go there?"""
    site, wanted = view.site, shape.run.options.sites
    needs = dict(shape.needs)
    return (
        (not wanted or view.name in wanted)
        and view.name not in shape.lacking
        and is_long_enough(shape, site, view.lost_s)
        and shape.nodes <= nodes_of_pilot(shape.nodes, site, view.traits)
        and (not site.max_cores or cores_of_pilot(shape, site, view.traits) <= site.max_cores)
        and (not site.cores or needs.get(CORES, 0) <= site.cores * UNIT)
        and (not site.memory or needs.get(MEMORY, 0) <= site.memory * UNIT)
        and needs.get(GPUS, 0) <= site.gpus * UNIT
        and all(name in (CORES, MEMORY, GPUS) for name in needs)
        and all(site.tags.get(name) == value for name, value in shape.tags)
    )


def is_long_enough(shape: TaskShape, site: Site, lost_s: float) -> bool:
    return not site.walltime_s or not shape.lasts_s or shape.lasts_s + overhead_s(lost_s) <= site.walltime_s


def overhead_s(lost_s: float) -> float:
    """So much of its time a pilot needs to start, and to go before the batch system ends it: as much as others there did, and a little
    more."""
    return 1.1 * lost_s + 1.0 if lost_s else START_S


def cores_of_pilot(shape: TaskShape, site: Site, traits: BackendTraits) -> int:
    """As far as it is known: whole machines count for nothing."""
    if site.takes_whole_machines:
        return 0
    return (site.cores or math.ceil(size_for(shape).cores)) * nodes_of_pilot(shape.nodes, site, traits)


def nodes_of_pilot(wanted: int, site: Site, traits: BackendTraits) -> int:
    """As many as a task wants, where pilots can have several."""
    return site.nodes if "nodes" in traits.ignores else max(wanted, site.nodes)


def size_for(shape: TaskShape) -> PilotSize:
    """The smallest pilot that takes a task of this shape."""
    needs = dict(shape.needs)
    return PilotSize(needs.get(CORES, 0) / UNIT or 1.0, shape.nodes, shape.lasts_s, needs.get(MEMORY, 0) // UNIT, needs.get(GPUS, 0) / UNIT)


def _worth(shape: TaskShape, count: int) -> int:
    """For so many of them at once it pays. Of tasks known to be short, several must follow each other on one core."""
    if not shape.samples:
        return count
    return min(count, max(1, math.ceil(count * shape.mean_us / 1e6 / WORTH_S)))
