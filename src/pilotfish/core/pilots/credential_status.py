"""Keeps how long the credentials of each site are still valid. Not journaled: the host reports it again soon after a restart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pilotfish.model import inputs as i
from pilotfish.model.quantities import show_seconds

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine


def credentials_seen(machine: Machine, item: i.CredentialsSeen) -> None:
    if item.credentials:
        machine.credentials[item.site] = (machine.now, item.credentials)
    else:
        machine.credentials.pop(item.site, None)


def describe(name: str, left_s: float, problem: str) -> str:
    """Describe the state of one credential."""
    if left_s == math.inf:
        return f"it is unknown how long its {name} is valid: {problem}" if problem else f"its {name} has no end"
    if left_s == -math.inf:
        return f"its {name} is missing ({problem})"
    if left_s <= 0:
        return f"its {name} ended {show_seconds(math.ceil(-left_s))} ago" if left_s < -1 else f"its {name} has ended"
    return f"its {name} ends in {show_seconds(math.ceil(left_s))}"


def credential_rows(machine: Machine, site: str) -> list[dict[str, Any]]:
    """Credentials of a site as rows. ``left_s``: None if it does not expire or this is unknown, 0 if it is no longer usable."""
    at, known = machine.credentials.get(site, (0.0, ()))
    rows = []
    for one in known:
        left_s = one.left_s - (machine.now - at)
        rows.append(
            {
                "name": one.name,
                "left_s": None if left_s == math.inf else max(0.0, left_s),
                "usable": left_s > 0,
                "warn": left_s < one.warn_s or bool(one.problem),
                "text": describe(one.name, left_s, one.problem),
                "renew": one.renew,
            }
        )
    return rows


def unusable_credentials(machine: Machine, site: str) -> list[dict[str, Any]]:
    """Missing or expired credentials that keep pilots of this site waiting."""
    return [row for row in credential_rows(machine, site) if not row["usable"]]
