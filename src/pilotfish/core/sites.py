"""What the machine makes of news about sites, and what a person may ask of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pilotfish.core import agents, credentials
from pilotfish.core.prospects import PilotWish
from pilotfish.core.state import SiteRecord
from pilotfish.errors import BadInput
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model.site import LOCAL, VANISHED, PilotSize
from pilotfish.model.states import ACTIVE, ENDING

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

MOST_PILOTS = 10_000


@dataclass(slots=True)
class Sighting:
    """What a site said of a pilot when it was asked last."""

    runs: bool
    reason: str
    at: float


# --- news ---------------------------------------------------------------------------------------------------------------------------


def pilot_accepted(machine: Machine, item: i.PilotAccepted) -> None:
    pilot = machine.state.pilots.get(item.pilot)
    if pilot is not None and pilot.job != item.job:
        machine.record(f.PilotSubmitted(item.pilot, item.job, item.took_s))


def pilot_seen(machine: Machine, item: i.PilotSeen) -> None:
    """Not written down: it is asked again soon enough."""
    if item.pilot in machine.state.pilots:
        machine.sightings[item.pilot] = Sighting(item.runs, item.reason, machine.now)


def pilot_gone(machine: Machine, item: i.PilotGone) -> None:
    pilot = machine.state.pilots.get(item.pilot)
    if pilot is None or (item.cause == VANISHED and pilot.workers):
        # A site may forget a job; that its agents beat is the better witness.
        return
    well = item.well or pilot.state == ENDING
    for worker in [worker for worker in machine.state.workers.values() if worker.pilot == item.pilot]:
        if well:
            agents.leave(machine, worker, item.reason)
        else:
            machine.lose_worker(worker, item.reason, died=item.witnessed)
    machine.sightings.pop(item.pilot, None)
    machine.record(f.PilotEnded(item.pilot, well, item.reason, item.cause))
    record = machine.state.sites.get(pilot.site)
    if record is not None and record.site is not None and record.site.paused:
        # It may have been removed, and only waited for this.
        machine.effects.append(e.ReadSites())


def site_spoke(machine: Machine, item: i.SiteSpoke) -> None:
    if item.trouble:
        machine.site_troubles[item.site] = item.trouble
    else:
        machine.site_troubles.pop(item.site, None)


def sites_read(machine: Machine, item: i.SitesRead) -> None:
    """What a person changed is written down, and told to whoever speaks to the site."""
    known = {name: record.site for name, record in machine.state.sites.items() if record.site is not None}
    for name in [*item.sites, *(name for name in known if name not in item.sites)]:
        site, before = item.sites.get(name), known.get(name)
        if site is None and before is not None and _send_home(machine, name):
            # Until the last of its pilots is gone somebody has to know how to speak to it.
            site = msgspec.structs.replace(before, paused=True)
        if site != before:
            machine.record(f.SiteDescribed(name, site))
            machine.effects.append(e.DescribeSite(name, site))
            machine.stirred = True


def _send_home(machine: Machine, name: str) -> bool:
    """A site is no longer there: who waits is cancelled, who works finishes what it has. Whether any are left."""
    pilots = [pilot for pilot in machine.state.pilots.values() if pilot.site == name]
    for pilot in pilots:
        if not pilot.joined and pilot.state <= ACTIVE:
            machine.end_pilot(pilot.id, f"site {name} was removed")
        for worker in list(pilot.workers):
            agents.drain(machine, machine.state.workers[worker], f"site {name} was removed")
    return bool(pilots)


NEWS: dict[type, Callable[[Machine, Any], None]] = {
    i.PilotAccepted: pilot_accepted,
    i.PilotSeen: pilot_seen,
    i.PilotGone: pilot_gone,
    i.SiteSpoke: site_spoke,
    i.CredentialsSeen: credentials.credentials_seen,
    i.SitesRead: sites_read,
}


# --- commands -----------------------------------------------------------------------------------------------------------------------


def find_site(machine: Machine, arguments: dict[str, Any]) -> tuple[str, SiteRecord]:
    name = str(arguments.get("site", ""))
    record = machine.state.sites.get(name)
    if record is None or (record.site is None and name != LOCAL):
        known = [site for site, record in machine.state.sites.items() if record.site is not None]
        hint = f"known are: {', '.join(known)}" if known else f"describe it: pilotfish site add {name} --backend slurm"
        raise BadInput(f"there is no site {name!r}", hint)
    return name, record


def _number(pilots: Any) -> int | None:
    if pilots is not None and type(pilots) is not int:
        raise BadInput(f"{pilots!r} is not a number of pilots", "write it in digits, as in 2")
    return pilots


def _use(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    """Have this pool use a site: with ``pilots`` pilots, or (-1) with as many as pay; None: no longer."""
    name, record = find_site(machine, arguments)
    pilots = _number(arguments.get("pilots", -1))
    if pilots is not None and not -1 <= pilots <= MOST_PILOTS:
        raise BadInput(f"site {name}: {pilots} pilots", f"ask for at most {MOST_PILOTS}")
    if record.wanted != pilots:
        machine.record(f.SiteWanted(name, pilots))
        machine.stirred = True
    return {"site": name, "pilots": pilots}


def _add_pilots(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    """So many pilots more, at once, whatever there is to do."""
    name, record = find_site(machine, arguments)
    count = _number(arguments.get("pilots", 1))
    site = record.site
    if site is None or count is None or not 1 <= count <= MOST_PILOTS:
        raise BadInput(f"site {name}: {count} pilots", f"pilotfish workers add {name} 1")
    cores = site.cores or (0 if site.backend == "ssh" else 1)
    size = PilotSize(float(cores), site.nodes, site.walltime_s, site.memory, float(site.gpus))
    return {"pilots": [machine.request_pilot(PilotWish(name, size, "somebody asked for it"), by_hand=True) for _ in range(count)]}


def _reread(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    """Somebody changed what is written about sites."""
    machine.effects.append(e.ReadSites())
    return {}


def _release(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    """Try a site again that was held back because its pilots failed."""
    name, record = find_site(machine, arguments)
    if record.held:
        machine.record(f.SiteHeld(name, ""))
        machine.stirred = True
    return {"site": name}


COMMANDS: dict[str, Callable[[Machine, dict[str, Any]], Any]] = {
    "site_use": _use,
    "site_release": _release,
    "sites_reread": _reread,
    "pilots_add": _add_pilots,
}
