"""Finds fixes for a pilot that waits, for a pilot that was refused, and for a pilot whose agent did not start.

A fix is a command. The user replaces the words in capitals in this command.
"""

from __future__ import annotations

import re
import shlex

from pilotfish.model.backend_traits import BackendTraits
from pilotfish.model.site import BOOTSTRAP, EXPIRED, REFUSED, Site

CHANGES = (
    (r"no such command on this machine|could not establish a configuration source", "via=LOGIN"),
    (r"no python3", "python=/path/to/python3"),
    (r"time.?limit|wall.?time|h_rt|runlimit", "walltime=DURATION"),
    (r"\baccount\b|InvalidAccount|project", "account=ACCOUNT"),
    (r"memory|h_vmem", "memory=SIZE"),
    (r"node configuration|cpu|slots", "cores=N"),
    (r"NodeLimit", "nodes=N"),
    (r"partition|queue", "queue=QUEUE"),
)
"""Patterns in a report about a pilot, each with the site key that probably has to change. The most certain patterns come first."""
LIMIT = re.compile(r"limit|QOS|policy|exceed|only \d+ jobs|too many|maximum", re.IGNORECASE)
HELD = re.compile(r"JobHeld|\b(held|hold)( state)?$")
HELD_BY_OTHERS = "JobHeldAdmin"
"""Part of the report about a held job that the user cannot release."""
HOPELESS = re.compile(
    HELD.pattern + r"|Partition(Config|TimeLimit|NodeLimit)|BadConstraints|Invalid(Account|QOS)|NotAllowed|PerJob|Never"
    r"|HoldMaxRequeue|_HOLD\b|PSUSP|^[a-z]*E[a-z]*:|offers only [qh]f:|InvalidImage|ImagePull|ConfigError"
)
LATE_S = 30.0
"""If an agent has run for this many seconds and has not joined, it probably cannot reach the master."""


def is_hopeless(report: str) -> bool:
    """Returns whether the queue reports that a pilot can start only after a user has acted."""
    return HOPELESS.search(report) is not None


def for_wait(name: str, traits: BackendTraits, job: str, report: str) -> list[str]:
    """Returns fixes for a pilot that waits in the queue. Some fixes change an option of the site. After such a change, Pilotfish replaces
    the waiting pilot by a new pilot."""
    if HELD.search(report) and HELD_BY_OTHERS not in report and traits.release:
        return [f"pilotfish site exec {name} -- {traits.release} {shlex.quote(job)}"]
    change = _change(report)
    room = _room(name, traits) if not change and LIMIT.search(report) else []
    change = change or _another_queue(traits)
    return [*room, *([_set(name, change)] if change else ["pilotfish sites"])]


def for_limit(name: str, traits: BackendTraits, report: str) -> list[str]:
    """Returns fixes for a site that accepts no more pilots. Refused pilots are submitted again with the current options of the site."""
    another = _another_queue(traits)
    return [
        *(_room(name, traits) if LIMIT.search(report) else []),
        *([_set(name, another)] if another else []),
        f"pilotfish site log {name}",
    ]


def for_bad_start(name: str, site: Site, report: str) -> list[str]:
    """Returns fixes for a pilot that was refused or ended before its agent joined: an option of the site to change, and a check to run."""
    change = _change(report) or ("setup=" if site.setup else "python=/path/to/python3" if site.python else "")
    return [*([_set(name, change)] if change else []), f"pilotfish doctor {name}"]


def for_cause(name: str, cause: str) -> str:
    """Returns a fix for an ended pilot from the cause of its end. Use this function if the site gave no message about the end."""
    look, change = f"pilotfish site show {name} --dry-run", f"pilotfish site set {name}"
    fixes = {
        REFUSED: f"See what it is asked: {look}; and change it: {change} KEY=VALUE",
        BOOTSTRAP: f"Name a Python of its nodes: {change} python=/path/to/python3; or another way back: reach=tunnel",
        EXPIRED: f"It needs more time: {change} walltime=1h",
    }
    return fixes.get(cause, f"See what would be run there: {look}")


def for_silence(name: str, site: Site) -> list[str]:
    """Returns fixes for a running pilot whose agent does not join. Maybe the agent cannot reach the master."""
    change = "" if site.is_tunnelled else "reach=tunnel" if site.via or site.hosts else "address=HOST"
    return [f"pilotfish doctor {name}", *([_set(name, change)] if change else [])]


def try_now(name: str) -> str:
    return f"pilotfish pilots add {name} 1"


def _set(name: str, change: str) -> str:
    return f"pilotfish site set {name} {change}"


def _change(report: str) -> str:
    return next((change for pattern, change in CHANGES if re.search(pattern, report, re.IGNORECASE)), "")


def _another_queue(traits: BackendTraits) -> str:
    return "queue=QUEUE" if traits.several_queues else ""


def _room(name: str, traits: BackendTraits) -> list[str]:
    """Returns a command with which the user can cancel one of the user's other jobs, so that a pilot can start."""
    return [f"pilotfish site exec {name} -- {traits.cancel} JOB"] if traits.cancel else []
