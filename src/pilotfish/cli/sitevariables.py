"""A site's commands may work in this shell and not for the master, which was started from another one: where their variables differ."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from pilotfish.cli.pool import Master
from pilotfish.model.environment import without_secrets
from pilotfish.model.site import Site
from pilotfish.model.sitekinds import kind_of

SHOWN = 3
FOR_SSH = ("SSH_AUTH_SOCK", "KRB5CCNAME")
MISSING = re.compile(r"no such command|not found")
"""Said where another PATH may be the reason."""


def cure_for_other_variables(master: Master, name: str, site: Site, complaint: str) -> str:
    """What to do if the master's commands fail and those of this shell do not, and their variables differ; nothing if they do not."""
    theirs = _variables_of(master)
    ours = without_secrets(os.environ)
    names = [] if theirs is None else [one for one in sorted(ours.keys() | theirs.keys()) if ours.get(one) != theirs.get(one)]
    # On another machine only what ssh goes by is taken along.
    beginnings = FOR_SSH if site.via or site.hosts else kind_of(site.backend).variables
    found = [one for one in names if one.startswith(beginnings) and one not in site.environment]
    if not found and "PATH" in names and not site.via and MISSING.search(complaint):
        found = ["PATH"]
    if not found:
        return ""
    changes = " ".join(f'"environment.{one}=${one}"' for one in found[:SHOWN] if one in ours)
    told = f"The master was started with another {', '.join(found[:SHOWN])} than this shell has."
    if not changes or site.via or site.hosts:
        return f"{told} Have it start anew: pilotfish stop"
    return f"{told} Write it down: pilotfish site set {name} {changes}; or have the master start anew: pilotfish stop"


def _variables_of(master: Master) -> dict[str, str] | None:
    """As its process was started; None where that cannot be seen."""
    with suppress(OSError):
        content = Path(f"/proc/{int(master.ask('status')['pid'])}/environ").read_bytes()
        return dict(os.fsdecode(line).partition("=")[::2] for line in content.split(b"\0") if line)
    return None
