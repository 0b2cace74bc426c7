"""Shows sites as rows with their recent history, and explains sites and pilots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pilotfish.core.explain.lookup import NamedPilot, NamedSite
from pilotfish.core.explain.reasons import answer, make_reason
from pilotfish.core.explain.site_reasons import end_of, ended_pilot_reason, pilot_reason, state_reason
from pilotfish.core.pilots import credential_status
from pilotfish.core.pilots.pilot_records import SiteRecord
from pilotfish.model.site import BATCH_LIMIT, FAILED, JOINED, LOCAL
from pilotfish.model.states import ENDED, PILOT_STATES

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

STATES = {"no-site": "leaving", "site-paused": "paused", "held": "held", "site-trouble": "trouble", "batch-limit": "full"}
"""State of a site by the code of its reason; any other code is ready."""


def sites(machine: Machine, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    standings = machine.provisioner.standings(machine.state, machine.now)
    return [
        {**site_row(machine, name, record), **standings.get(name, {})}
        for name, record in machine.state.sites.items()
        if record.site is not None or name == LOCAL
    ]


def site_row(machine: Machine, name: str, record: SiteRecord) -> dict[str, Any]:
    """A site with its pilots, workers and recent history."""
    pilots = [pilot for pilot in machine.state.pilots.values() if pilot.site == name]
    waits = sorted(event.seconds for event in record.history if event.kind == JOINED)
    missing = credential_status.unusable_credentials(machine, name)
    reason = state_reason(machine, name, record)
    return {
        "site": name,
        "backend": record.site.backend if record.site is not None else LOCAL,
        "via": record.site.via if record.site is not None else "",
        "state": STATES.get(reason.code, "ready"),
        "reason": reason.row(),
        "used": record.wanted is not None or name == LOCAL,
        "wanted": record.wanted,
        "held": record.held,
        "trouble": "; ".join(row["text"] for row in missing) or _trouble(machine, name),
        "credentials": credential_status.credential_rows(machine, name),
        "waiting": sum(not pilot.joined for pilot in pilots),
        "active": sum(pilot.joined > 0 for pilot in pilots),
        "workers": sum(worker.site == name for worker in machine.state.workers.values()),
        "queue_wait_median_s": waits[len(waits) // 2] if waits else None,
        "queue_wait_90_s": waits[len(waits) * 9 // 10] if waits else None,
        "failures": _failures(record),
        "last_bad": record.last_bad,
    }


def _trouble(machine: Machine, name: str) -> str:
    """What keeps the site from answering or from taking pilots; empty if nothing does."""
    found = machine.site_problems.get(name)
    if found is None:
        return ""
    return f"it takes no more pilots now: {found.trouble}" if found.code == BATCH_LIMIT else found.trouble


def _failures(record: SiteRecord) -> dict[str, int]:
    """How many of its recent pilots failed, by cause."""
    causes: dict[str, int] = {}
    for event in record.history:
        if event.kind == FAILED:
            causes[event.cause or "failed"] = causes.get(event.cause or "failed", 0) + 1
    return causes


def explain_pilot(machine: Machine, named: NamedPilot) -> dict[str, Any]:
    """``seen`` is what its site reported last; ``end`` is how it ended, if its site remembers that."""
    if named.events:
        return _explain_ended(machine, named)
    pilot, sighting = machine.state.pilots[named.name], machine.pilot_status.get(named.name)
    reason = pilot_reason(machine, pilot)
    asked = make_reason("asked", f"it was asked for because: {pilot.reason}")
    return {
        **answer(f"pilot {pilot.id}", PILOT_STATES[pilot.state], [reason, asked], reason.text),
        "job": pilot.job,
        "seen": None if sighting is None else {"runs": sighting.runs, "reason": sighting.reason},
        "end": None,
    }


def _explain_ended(machine: Machine, named: NamedPilot) -> dict[str, Any]:
    reason, end = ended_pilot_reason(machine, named.name, named.events), end_of(named.events)
    return {
        **answer(f"pilot {named.name}", PILOT_STATES[ENDED], [reason], reason.text),
        "job": "",
        "seen": None,
        "end": None if end is None else {"kind": end.kind, "cause": end.cause or end.kind, "reason": end.reason},
    }


def explain_site(machine: Machine, site: NamedSite) -> dict[str, Any]:
    reason = state_reason(machine, site.name, site.record)
    fix = f"pilotfish doctor {site.name}".removesuffix(" local")
    failures = [
        make_reason("failures", f"{count} of its pilots failed lately: {cause}", fix) for cause, count in _failures(site.record).items()
    ]
    return answer(f"site {site.name}", STATES.get(reason.code, "ready"), [reason, *failures], reason.text)
