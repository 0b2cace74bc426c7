"""Sites as a person sees them: how each stands and why, what is there, and how it has done of late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pilotfish.core.explain.site_reasons import end_of, of_gone_pilot, of_pilot, standing
from pilotfish.core.pilots import credential_status
from pilotfish.core.pilots.pilot_records import SiteRecord
from pilotfish.errors import BadInput
from pilotfish.model.site import BATCH_LIMIT, FAILED, JOINED, LOCAL
from pilotfish.model.states import ENDED, PILOT_STATES

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

STATES = {"no-site": "leaving", "site-paused": "paused", "held": "held", "site-trouble": "trouble", "batch-limit": "full"}
"""By the reason for it; all others are ready."""


def sites(machine: Machine, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    standings = machine.strategy.standings(machine.state, machine.now)
    return [
        {**site_row(machine, name, record), **standings.get(name, {})}
        for name, record in machine.state.sites.items()
        if record.site is not None or name == LOCAL
    ]


def site_row(machine: Machine, name: str, record: SiteRecord) -> dict[str, Any]:
    """A site: what it is, what is there, and how it has done of late."""
    pilots = [pilot for pilot in machine.state.pilots.values() if pilot.site == name]
    waits = sorted(event.seconds for event in record.history if event.kind == JOINED)
    causes: dict[str, int] = {}
    for event in record.history:
        if event.kind == FAILED:
            causes[event.cause or "failed"] = causes.get(event.cause or "failed", 0) + 1
    missing = credential_status.unusable(machine, name)
    reason = standing(machine, name, record)
    return {
        "site": name,
        "backend": record.site.backend if record.site is not None else LOCAL,
        "via": record.site.via if record.site is not None else "",
        "state": STATES.get(reason["code"], "ready"),
        "reason": reason,
        "used": record.wanted is not None or name == LOCAL,
        "wanted": record.wanted,
        "held": record.held,
        "trouble": "; ".join(row["text"] for row in missing) or _trouble(machine, name),
        "credentials": credential_status.of_site(machine, name),
        "waiting": sum(not pilot.joined for pilot in pilots),
        "active": sum(pilot.joined > 0 for pilot in pilots),
        "workers": sum(worker.site == name for worker in machine.state.workers.values()),
        "queue_wait_median_s": waits[len(waits) // 2] if waits else None,
        "queue_wait_90_s": waits[len(waits) * 9 // 10] if waits else None,
        "failures": causes,
        "last_bad": record.last_bad,
    }


def _trouble(machine: Machine, name: str) -> str:
    """What keeps the site from answering or from taking pilots; empty if nothing does."""
    found = machine.site_troubles.get(name)
    if found is None:
        return ""
    return f"it takes no more pilots now: {found.trouble}" if found.code == BATCH_LIMIT else found.trouble


def why_pilot(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    """``seen`` is what its site said of it last; ``end`` how it ended, as far as that is remembered."""
    name = str(arguments.get("pilot", ""))
    pilot, sighting = machine.state.pilots.get(name), machine.sightings.get(name)
    if pilot is None:
        return _why_gone(machine, name)
    reason = of_pilot(machine, pilot)
    asked = {"code": "asked", "text": f"it was asked for because: {pilot.reason}", "commands": []}
    return {
        "subject": f"pilot {name}",
        "state": PILOT_STATES[pilot.state],
        "sentence": reason["text"],
        "reasons": [reason, asked],
        "job": pilot.job,
        "seen": None if sighting is None else {"runs": sighting.runs, "reason": sighting.reason},
        "end": None,
    }


def _why_gone(machine: Machine, name: str) -> dict[str, Any]:
    events = [event for record in machine.state.sites.values() for event in record.history if event.pilot == name]
    if not name or not events:
        raise BadInput(f"there is no pilot {name}", "pilotfish status lists them")
    reason, end = of_gone_pilot(machine, name, events), end_of(events)
    return {
        "subject": f"pilot {name}",
        "state": PILOT_STATES[ENDED],
        "sentence": reason["text"],
        "reasons": [reason],
        "job": "",
        "seen": None,
        "end": None if end is None else {"kind": end.kind, "cause": end.cause or end.kind, "reason": end.reason},
    }


def why(machine: Machine, name: str, record: SiteRecord) -> dict[str, Any]:
    row = site_row(machine, name, record)
    cure = f"pilotfish doctor {name}".removesuffix(" local")
    failures = [
        {"code": "failures", "text": f"{count} of its pilots failed lately: {cause}", "commands": [cure]}
        for cause, count in row["failures"].items()
    ]
    return {"subject": f"site {name}", "state": row["state"], "sentence": row["reason"]["text"], "reasons": [row["reason"], *failures]}
