"""Why no worker of a site takes a task: from what the person wrote to what the batch system says."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pilotfish.core.credentials import unusable
from pilotfish.core.prospects import SiteView
from pilotfish.core.state import UNIT, Pilot, Shape, SiteRecord
from pilotfish.core.survey import cores_of_pilot, could_go, is_long_enough
from pilotfish.model.quantities import show_bytes
from pilotfish.model.site import LOCAL, Site
from pilotfish.model.states import ACTIVE
from pilotfish.model.task import CORES, GPUS, MEMORY

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

Reason = dict[str, Any]
SHOWN_PILOTS = 3


def site_reasons(machine: Machine, shape: Shape) -> list[Reason]:
    """One for each site that tasks of this shape may go to, this machine aside."""
    state = machine.state
    names = shape.run.options.sites or tuple(name for name, record in state.sites.items() if record.wanted is not None)
    return [_of(machine, shape, name, state.sites.get(name)) for name in names if name != LOCAL]


def _reason(code: str, text: str, *commands: str) -> Reason:
    return {"code": code, "text": text, "commands": list(commands)}


def _of(machine: Machine, shape: Shape, name: str, record: SiteRecord | None) -> Reason:
    if record is None or record.site is None:
        return _reason("no-site", f"there is no site {name}", f"pilotfish site add {name} --backend slurm")
    if record.site.paused:
        return _reason("site-paused", f"site {name} is paused", f"pilotfish site resume {name}")
    if record.held:
        return _reason("held", f"site {name} is held back: {record.held}", f"pilotfish doctor {name}", f"pilotfish site resume {name}")
    if record.wanted is None and not any(pilot.site == name for pilot in machine.state.pilots.values()):
        return _reason("site-unused", f"this pool does not use site {name}", f"pilotfish workers add {name} 1")
    lack = _lack(shape, name, record.site)
    if lack is not None:
        return lack
    return _of_pilots(machine, shape, name, record)


def _lack(shape: Shape, name: str, site: Site) -> Reason | None:
    """What tasks of this shape ask for and no pilot of the site has, as it is described."""
    needs = dict(shape.needs)
    limits = ((CORES, site.cores), (MEMORY, site.memory), (GPUS, site.gpus))
    for resource, most in limits:
        amount = needs.get(resource, 0)
        if amount > most * UNIT and (most or resource == GPUS):
            wanted = math.ceil(amount / UNIT)
            shown = show_bytes(amount / UNIT) if resource == MEMORY else f"{amount / UNIT:g} {resource}"
            has = show_bytes(most) if resource == MEMORY else f"{most:g}"
            text = f"a task asks for {shown}, a pilot of site {name} has {has}"
            return _reason("too-big", text, f"pilotfish site set {name} {resource}={wanted}")
    for resource in sorted(needs.keys() - {CORES, MEMORY, GPUS}):
        text = f"a task asks for {needs[resource] / UNIT:g} {resource}, which pilots of site {name} do not have"
        return _reason("too-big", text, "ask for less (--resource)")
    if site.max_cores and cores_of_pilot(shape, site) > site.max_cores:
        cores = cores_of_pilot(shape, site)
        text = f"a pilot for such a task has {cores} cores, and site {name} may have {site.max_cores} in all"
        return _reason("too-big", text, f"pilotfish site set {name} max_cores={cores}")
    if not is_long_enough(shape, site):
        text = f"a task may take {shape.time_s:g} s, a pilot of site {name} ends after {site.walltime_s:g} s"
        return _reason("walltime", text, f"pilotfish site set {name} walltime={shape.time_s + 60:g}", "ask for less with --time")
    if not could_go(shape, SiteView(name, site, [])):
        tags = ", ".join(f"{key}={value}" for key, value in shape.tags)
        return _reason("tags", f"workers of site {name} do not have the tags {tags}", f"pilotfish site show {name}")
    return None


def _limit(machine: Machine, shape: Shape, name: str, site: Site, pilots: list[Pilot]) -> Reason | None:
    """What the person allowed, and is used up."""
    if len(pilots) >= site.max_pilots:
        text = f"site {name} has {len(pilots)} pilots, as many as it may"
        return _reason("site-limit", text, f"pilotfish site set {name} max_pilots={2 * len(pilots)}")
    used, more = sum(pilot.cores for pilot in pilots), cores_of_pilot(shape, site)
    if site.max_cores and used + more > site.max_cores:
        text = f"pilots of site {name} have {used:g} cores, and {site.max_cores} is the most that it may have"
        return _reason("site-limit", text, f"pilotfish site set {name} max_cores={math.ceil(used + more)}")
    if not site.max_queued:
        return _reason("site-limit", f"no pilot may wait at site {name}", f"pilotfish site set {name} max_queued=1")
    return None


def _of_pilots(machine: Machine, shape: Shape, name: str, record: SiteRecord) -> Reason:
    assert record.site is not None
    pilots = [pilot for pilot in machine.state.pilots.values() if pilot.site == name and pilot.state <= ACTIVE]
    coming = [pilot for pilot in pilots if not pilot.joined]
    missing = unusable(machine, name)
    if missing:
        text = f"pilots for site {name} wait: {'; '.join(row['text'] for row in missing)}"
        return _reason("site-trouble", text, *(row["renew"] for row in missing))
    trouble = machine.site_troubles.get(name)
    if trouble:
        return _reason("site-trouble", f"site {name} does not answer: {trouble}", f"pilotfish doctor {name}")
    if coming:
        shown = "; ".join(_pending(machine, pilot) for pilot in coming[:SHOWN_PILOTS])
        return _reason("pending", f"{len(coming)} of its pilots wait at site {name}: {shown}", "pilotfish sites")
    limit = _limit(machine, shape, name, record.site, pilots)
    if limit is not None:
        return limit
    if record.wanted is not None and 0 <= record.wanted <= len(pilots):
        text = f"site {name} has {len(pilots)} pilots, as many as this pool was told to keep there"
        return _reason("site-limit", text, f"pilotfish workers add {name} 1")
    if record.bad_starts:
        text = f"the last pilot at site {name} {record.last_bad}; another one is sent soon"
        return _reason("bootstrap", text, f"pilotfish doctor {name}")
    return _reason("starting", f"pilots for site {name} are about to be sent", "pilotfish sites")


def _pending(machine: Machine, pilot: Pilot) -> str:
    sighting = machine.sightings.get(pilot.id)
    if not pilot.job:
        return f"{pilot.id} is being submitted"
    if sighting is None:
        return f"{pilot.id} (job {pilot.job})"
    if sighting.runs:
        return f"{pilot.id} (job {pilot.job}) runs, and its agent has not joined yet"
    return f"{pilot.id} (job {pilot.job}): {sighting.reason or 'no reason given'}"
