"""Computes the demand that a factory sees: waiting tasks for which no connected worker and no requested pilot has room."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pilotfish.core.pilots.factory_interface import Demand, FactoryView, SiteView
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.core.state import State, TaskShape
from pilotfish.model.backend_traits import BackendTraits
from pilotfish.model.site import LOCAL, PilotSize, Site
from pilotfish.model.states import ACTIVE, JOINED
from pilotfish.model.task import CORES, GPUS, MEMORY, UNIT

MIN_WORK_S = 60.0
"""One more core is worthwhile if it gets at least this many seconds of work."""
UNKNOWN_CORES = 4.0
"""Assumed cores of a machine whose agent has not joined and whose size is not configured."""
UNKNOWN = 1 << 62
"""Stands for an unknown amount. It is larger than any request, so that it excludes no task."""
MAX_SIZES = 2000
NODE_JOIN_WAIT_S = 60.0
"""Seconds to wait for the next agent of a pilot after an agent of the pilot joined."""
START_S = 30.0
"""Assumed seconds for the start and end of a pilot, if no pilot of the site was observed yet."""


def view_for_factory(state: State, now: float) -> FactoryView:
    sites = usable_sites(state)
    return FactoryView(state, sites, _demand(state, sites, now), now)


def usable_sites(state: State) -> list[SiteView]:
    """Returns the sites that the pool uses and that are neither paused nor held."""
    return [
        SiteView(
            name,
            record.site,
            state.pilots_at(name),
            record.history,
            record.wanted,
            record.lost_s,
            state.traits(record.site.backend),
            record.pythons,
        )
        for name, record in state.sites.items()
        if name != LOCAL and record.site is not None and record.wanted is not None and not record.site.paused and not record.held
    ]


@dataclass(slots=True)
class WaitingTasks:
    """Waiting tasks of one shape. ``count``: number of these tasks that should run at the same time and have no room yet."""

    shape: TaskShape
    least: PilotSize
    count: int
    places: tuple[str, ...]


def _demand(state: State, sites: list[SiteView], now: float) -> Demand:
    demand = Demand()
    work: list[WaitingTasks] = []
    for shape, count in _waiting(state):
        places = tuple(site.name for site in sites if fits_site(shape, site))
        if places:
            demand.tasks += count
            work.append(WaitingTasks(shape, size_for(shape), _worthwhile(shape, count), places))
    _fill_workers(state, work, now)
    _fill_coming(state, work, demand, now)
    for waiting in work:
        demand.cores += waiting.count * waiting.least.all_cores
        count = min(waiting.count, MAX_SIZES - len(demand.sizes))
        demand.sizes += [waiting.least] * count
        demand.places += [waiting.places] * count
    return demand


def _fill_workers(state: State, work: list[WaitingTasks], now: float) -> None:
    """Subtracts from ``work`` the tasks for which present workers have room."""
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
    """Subtracts from ``work`` the tasks for which coming pilots will have room. A pilot is coming until all its agents have joined, or
    until no agent has joined for NODE_JOIN_WAIT_S seconds. A pilot and its replicas count as one pilot. If no agent of a pilot has joined,
    ``demand`` records whether the pilot is needed or spare. A pilot that a user requested is never spare."""
    groups: dict[str, list[Pilot]] = {}
    for pilot in state.pilots.values():
        if pilot.state > ACTIVE or pilot.site == LOCAL:
            continue
        if not pilot.joined:
            groups.setdefault(pilot.replica_of or pilot.id, []).append(pilot)
        elif pilot.joined < pilot.size.nodes and any(now < state.workers[name].joined_at + NODE_JOIN_WAIT_S for name in pilot.workers):
            _fill_pilot(state, pilot, work)
    for members in groups.values():
        served = _fill_pilot(state, members[0], work)
        for member in members:
            if served is None and not member.by_user:
                demand.spare.append(member.id)
            elif served is not None:
                demand.needed[member.id], demand.needed_at[member.id] = served.least, served.places


def _fill_pilot(state: State, pilot: Pilot, work: list[WaitingTasks]) -> WaitingTasks | None:
    """Subtracts from ``work`` the tasks for which this pilot will have room. Returns the first entry of ``work`` from which a task was
    subtracted. Returns None if no task fits, or if the site is held."""
    record, size = state.sites.get(pilot.site), pilot.size
    if record is None or record.site is None or record.held:
        return None
    view = SiteView(pilot.site, record.site, [], lost_s=record.lost_s, traits=state.traits(record.site.backend), pythons=record.pythons)
    able = [waiting for waiting in work if fits_site(waiting.shape, view)]
    if size.walltime_s:
        able = [waiting for waiting in able if waiting.shape.min_walltime_s <= size.walltime_s]
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
    """Computes how many multi-node tasks of ``waiting`` fit into one pilot together. ``rooms``: free amounts at each node of the pilot.
    Subtracts the tasks from ``waiting`` and their needs from ``rooms``. Returns the number of tasks."""
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
    """Computes how many tasks of ``waiting`` fit into ``room`` together. Subtracts the tasks from ``waiting`` and their needs from
    ``room``. Returns the number of tasks."""
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


def fits_site(shape: TaskShape, view: SiteView) -> bool:
    """Returns whether a task of this shape fits a pilot of this site and may run there."""
    site, wanted = view.site, shape.run.options.sites
    needs = dict(shape.needs)
    return (
        (not wanted or view.name in wanted)
        and view.name not in shape.no_directory_sites
        and (not shape.python or not view.pythons or shape.python in view.pythons)
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
    return not site.walltime_s or not shape.min_walltime_s or shape.min_walltime_s + overhead_s(lost_s) <= site.walltime_s


def overhead_s(lost_s: float) -> float:
    """Returns the seconds of walltime that a pilot cannot use for tasks. ``lost_s``: the seconds that recent pilots of the site could not
    use. The result is ``lost_s`` plus a margin or, if ``lost_s`` is 0 because nothing was measured, ``START_S``."""
    return 1.1 * lost_s + 1.0 if lost_s else START_S


def cores_of_pilot(shape: TaskShape, site: Site, traits: BackendTraits) -> int:
    """Returns the number of cores of a pilot that is requested for this shape; 0 if the pilot takes a whole machine of unknown size."""
    if site.takes_whole_machines:
        return 0
    return (site.cores or math.ceil(size_for(shape).cores)) * nodes_of_pilot(shape.nodes, site, traits)


def nodes_of_pilot(wanted: int, site: Site, traits: BackendTraits) -> int:
    """Returns the number of nodes of a pilot that is requested for a task. ``wanted``: number of nodes that the task needs."""
    return site.nodes if "nodes" in traits.ignores else max(wanted, site.nodes)


def size_for(shape: TaskShape) -> PilotSize:
    """Returns the smallest pilot that can take a task of this shape."""
    needs = dict(shape.needs)
    memory, gpus = needs.get(MEMORY, 0) // UNIT, needs.get(GPUS, 0) / UNIT
    return PilotSize(needs.get(CORES, 0) / UNIT or 1.0, shape.nodes, shape.min_walltime_s, memory, gpus)


def _worthwhile(shape: TaskShape, count: int) -> int:
    """Returns how many of ``count`` tasks should run at the same time. Short tasks should run one after another on one core."""
    if not shape.samples:
        return count
    return min(count, max(1, math.ceil(count * shape.mean_us / 1e6 / MIN_WORK_S)))
