"""What to type when a batch system lets a pilot wait, takes no more of them, or its agent does not start: found in what was said of it.

Words in capitals are for the person to fill in.
"""

from __future__ import annotations

import re
import shlex

from pilotfish.model.backend_traits import kind_of
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
"""What is wrong with the description of a site if these words are said of a pilot, the surest first."""
LIMIT = re.compile(r"limit|QOS|policy|exceed|only \d+ jobs|too many|maximum", re.IGNORECASE)
HELD = re.compile(r"JobHeld|\b(held|hold)( state)?$")
HELD_BY_OTHERS = "JobHeldAdmin"
"""Who sent it may not let it go."""
HOPELESS = re.compile(
    HELD.pattern + r"|Partition(Config|TimeLimit|NodeLimit)|BadConstraints|Invalid(Account|QOS)|NotAllowed|PerJob|Never"
    r"|HoldMaxRequeue|_HOLD\b|PSUSP|^[a-z]*E[a-z]*:|offers only [qh]f:|InvalidImage|ImagePull|ConfigError"
)
LATE_S = 30.0
"""An agent that runs for so long and has not joined will hardly do so."""


def is_hopeless(words: str) -> bool:
    """A queue says this of a pilot that will not start by itself, however long one waits."""
    return HOPELESS.search(words) is not None


def for_wait(name: str, site: Site, job: str, words: str) -> list[str]:
    """It waits at the site, which says why. It keeps what it was sent with, so that another one takes its place when that changes."""
    release = kind_of(site.backend).release
    if HELD.search(words) and HELD_BY_OTHERS not in words and release:
        return [f"pilotfish site exec {name} -- {release} {shlex.quote(job)}"]
    change = _change(words)
    room = _room(name, site) if not change and LIMIT.search(words) else []
    change = change or _another_queue(site)
    return [*room, *([_set(name, change)] if change else ["pilotfish sites"])]


def for_limit(name: str, site: Site, words: str) -> list[str]:
    """The site takes no more of them. Who was not taken is offered again, as the site is described then."""
    another = _another_queue(site)
    return [*(_room(name, site) if LIMIT.search(words) else []), *([_set(name, another)] if another else []), f"pilotfish site log {name}"]


def for_bad_start(name: str, site: Site, words: str) -> list[str]:
    """It was refused for good, or ended before its agent joined. What to change, if that is known, and how to find out."""
    change = _change(words) or ("setup=" if site.setup else "python=/path/to/python3" if site.python else "")
    return [*([_set(name, change)] if change else []), f"pilotfish doctor {name}"]


def for_cause(name: str, cause: str) -> str:
    """It did not work, and only the kind of its end is known: what a person could look at."""
    look, change = f"pilotfish site show {name} --dry-run", f"pilotfish site set {name}"
    cures = {
        REFUSED: f"See what it is asked: {look}; and change it: {change} KEY=VALUE",
        BOOTSTRAP: f"Name a Python of its nodes: {change} python=/path/to/python3; or another way back: reach=tunnel",
        EXPIRED: f"It needs more time: {change} walltime=1h",
    }
    return cures.get(cause, f"See what would be run there: {look}")


def for_silence(name: str, site: Site) -> list[str]:
    """It runs, and its agent does not come: it may not know the way."""
    change = "" if site.is_tunnelled else "reach=tunnel" if site.via or site.hosts else "address=HOST"
    return [f"pilotfish doctor {name}", *([_set(name, change)] if change else [])]


def try_now(name: str) -> str:
    return f"pilotfish workers add {name} 1"


def _set(name: str, change: str) -> str:
    return f"pilotfish site set {name} {change}"


def _change(words: str) -> str:
    return next((change for pattern, change in CHANGES if re.search(pattern, words, re.IGNORECASE)), "")


def _another_queue(site: Site) -> str:
    return "queue=QUEUE" if kind_of(site.backend).several_queues else ""


def _room(name: str, site: Site) -> list[str]:
    """One of the person's own jobs may go."""
    cancel = kind_of(site.backend).cancel
    return [f"pilotfish site exec {name} -- {cancel} JOB"] if cancel else []
