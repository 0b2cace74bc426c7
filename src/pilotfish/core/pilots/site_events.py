"""Handles reports about sites and pilots, and commands about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pilotfish.core.explain.lookup import find_site
from pilotfish.core.pilots.factory_interface import UNNEEDED, PilotProposal
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.core.workers import leases
from pilotfish.errors import BadInput
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model.site import VANISHED, Site
from pilotfish.model.states import ACTIVE, ENDING

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

MAX_PILOTS = 10_000


@dataclass(slots=True)
class PilotStatus:
    """The last report of a site about a pilot. ``since``: the time of the report. A site reports on a pilot again only if something has
    changed."""

    runs: bool
    reason: str
    since: float


# --- reports ------------------------------------------------------------------------------------------------------------------------


def pilot_accepted(machine: Machine, item: i.PilotAccepted) -> None:
    pilot = machine.state.pilots.get(item.pilot)
    if pilot is not None and pilot.job != item.job:
        machine.record(f.PilotSubmitted(item.pilot, item.job, item.took_s))


def pilot_seen(machine: Machine, item: i.PilotSeen) -> None:
    """Keeps what a site reports about a pilot. The report is not journaled, because the site is polled again soon."""
    if item.pilot in machine.state.pilots:
        machine.pilot_status[item.pilot] = PilotStatus(item.runs, item.reason, machine.now)


def pilot_end_reported(machine: Machine, item: i.PilotEndReported) -> None:
    pilot = machine.state.pilots.get(item.pilot)
    if pilot is None or (item.cause == VANISHED and pilot.workers):
        # Some sites forget a running job. The heartbeats of its agents prove that the job runs.
        return
    well = item.well or pilot.state == ENDING
    for worker in [worker for worker in machine.state.workers.values() if worker.pilot == item.pilot]:
        if well:
            leases.leave(machine, worker, item.reason)
        else:
            leases.lose_worker(machine, worker, item.reason, died=item.witnessed)
    machine.pilot_status.pop(item.pilot, None)
    machine.record(f.PilotEnded(item.pilot, well, item.reason, item.cause))
    record = machine.state.sites.get(pilot.site)
    if record is not None and record.site is not None and record.site.paused:
        # Possibly the user removed the site, and its last pilot has now ended.
        machine.effects.append(e.ReadSites())


def site_reachability(machine: Machine, item: i.SiteReachability) -> None:
    if item.trouble:
        machine.site_problems[item.site] = item
    else:
        machine.site_problems.pop(item.site, None)


def credentials_seen(machine: Machine, item: i.CredentialsSeen) -> None:
    """Stores a report on how long the credentials of a site are valid. The report is not journaled, because the host sends a new report
    soon after a restart."""
    if item.credentials:
        machine.credentials[item.site] = (machine.now, item.credentials)
    else:
        machine.credentials.pop(item.site, None)


def sites_read(machine: Machine, item: i.SitesRead) -> None:
    """Records which sites a user changed, and passes the changes to the site controllers."""
    known = {name: record.site for name, record in machine.state.sites.items() if record.site is not None}
    for name in [*item.sites, *(name for name in known if name not in item.sites and name not in item.unread)]:
        site, before = item.sites.get(name), known.get(name)
        leaving = site is None and before is not None and _release_pilots(machine, name, f"site {name} was removed")
        if leaving and before is not None:
            # The site controller needs the configuration until the last pilot has ended.
            site = msgspec.structs.replace(before, paused=True)
        if site != before or (before is not None and leaving != machine.state.sites[name].leaving):
            machine.record(f.SiteDescribed(name, site, leaving))
            machine.effects.append(e.DescribeSite(name, site))
            machine.decide_again = True
            if site is not None and before is not None:
                machine.record(f.SiteHeld(name, ""))  # the user has possibly fixed the problem
                _replace_outdated(machine, name, before, site)


SUBMITTED_WITH = ("queue", "account", "directives", "cores", "nodes", "memory", "gpus", "walltime_s", "python", "setup", "options")
"""Site keys that are used only at the submission of a pilot: later changes of their values do not affect this pilot."""


def _replace_outdated(machine: Machine, name: str, before: Site, site: Site) -> None:
    """Handles a change of a site from ``before`` to ``site``. If an option in SUBMITTED_WITH changed, cancels all pilots of the site that
    have not joined. If a user requested some of these pilots, and the site is not paused, requests the same number of pilots again."""
    if all(getattr(before, field) == getattr(site, field) for field in SUBMITTED_WITH):
        return
    for pilot in machine.state.pilots_at(name):
        if not pilot.joined:
            machine.end_pilot(pilot.id, f"site {name} was changed")
            if pilot.by_user and not site.paused:
                machine.request_pilot(PilotProposal(name, site.pilot_size, pilot.reason), by_user=True)


def _release_pilots(machine: Machine, name: str, reason: str) -> bool:
    """Cancels queued pilots of a site and drains running pilots. Returns whether the site still has pilots."""
    pilots = [pilot for pilot in machine.state.pilots.values() if pilot.site == name]
    for pilot in pilots:
        release_pilot(machine, pilot, reason)
    return bool(pilots)


def release_pilot(machine: Machine, pilot: Pilot, reason: str, cause: str = "") -> None:
    """Drains the workers of a pilot. If the pilot has no workers, cancels the pilot. A pilot has no workers while it is queued, and after
    all its workers have left or were lost."""
    if not pilot.workers and pilot.state <= ACTIVE:
        machine.end_pilot(pilot.id, reason, cause)
    for worker in list(pilot.workers):
        leases.drain(machine, machine.state.workers[worker], reason)


HANDLERS: dict[type, Callable[[Machine, Any], None]] = {
    i.PilotAccepted: pilot_accepted,
    i.PilotSeen: pilot_seen,
    i.PilotEndReported: pilot_end_reported,
    i.SiteReachability: site_reachability,
    i.CredentialsSeen: credentials_seen,
    i.SitesRead: sites_read,
}


# --- commands -----------------------------------------------------------------------------------------------------------------------


def _number(pilots: Any) -> int | None:
    if pilots is not None and type(pilots) is not int:
        raise BadInput(f"{pilots!r} is not a number of pilots", "write it in digits, as in 2")
    return pilots


def _use(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    """Sets how many pilots the pool keeps at a site. -1: as many as are worthwhile. None: the pool no longer uses the site."""
    name, record = find_site(machine.state, arguments.get("site", ""))
    pilots = _number(arguments.get("pilots", -1))
    if pilots is not None and not -1 <= pilots <= MAX_PILOTS:
        raise BadInput(f"site {name}: {pilots} pilots", f"ask for at most {MAX_PILOTS}")
    if record.wanted != pilots:
        machine.record(f.SiteUseChanged(name, pilots))
        machine.decide_again = True
        if pilots is None:
            _release_pilots(machine, name, f"the pool no longer uses site {name}")
    return {"site": name, "pilots": pilots}


def _add_pilots(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    """Requests pilots at once, even if there is no work for them."""
    name, record = find_site(machine.state, arguments.get("site", ""))
    count = _number(arguments.get("pilots", 1))
    site = record.site
    if site is None or count is None or not 1 <= count <= MAX_PILOTS:
        raise BadInput(f"site {name}: {count} pilots", f"pilotfish pilots add {name} 1")
    if site.paused:
        raise BadInput(f"site {name} is paused", f"pilotfish site resume {name}")
    there = len(machine.state.pilots_at(name))
    if there + count > site.max_pilots:
        text = f"site {name} may have {site.max_pilots} pilots at a time, and has {there}"
        raise BadInput(text, f"pilotfish site set {name} max_pilots={there + count}")
    proposal = PilotProposal(name, site.pilot_size, "a user requested it")
    return {"pilots": [machine.request_pilot(proposal, by_user=True) for _ in range(count)]}


def _withdraw_pilots(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    """Withdraws pilots that a user requested: cancels queued pilots, drains running pilots. Returns the pilots that still existed."""
    names, reason = arguments.get("pilots"), str(arguments.get("reason") or "a user withdrew it")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"{names!r} are not names of pilots", "pilotfish sites")
    found = [pilot for name in dict.fromkeys(names) if (pilot := machine.state.pilots.get(name)) is not None and pilot.by_user]
    for pilot in found:
        release_pilot(machine, pilot, reason, UNNEEDED)
    return {"pilots": [pilot.id for pilot in found]}


def _reread(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    """Asks the host to read the configuration of the sites again, because a user changed it."""
    machine.effects.append(e.ReadSites())
    return {}


def _release(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    """Releases a held site, so that it gets pilots at once."""
    name = find_site(machine.state, arguments.get("site", "")).name
    machine.record(f.SiteHeld(name, ""))
    machine.decide_again = True
    return {"site": name}


COMMANDS: dict[str, Callable[[Machine, dict[str, Any]], Any]] = {
    "site_use": _use,
    "site_release": _release,
    "sites_reread": _reread,
    "pilots_add": _add_pilots,
    "pilots_withdraw": _withdraw_pilots,
}
