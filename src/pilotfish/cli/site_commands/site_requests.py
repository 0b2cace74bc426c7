"""Sends requests about sites and pilots to masters."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pilotfish.cli.terminal.screen import Screen, clean, plural
from pilotfish.client.descriptions.site_selection import find_site
from pilotfish.client.session import connect, connect_if_served
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.model.site import LOCAL


def notify_masters(released: str = "") -> int:
    """Ask all running masters to read ``sites.toml`` again, except the masters of temporary pools. Return the number of asked masters.
    ``released``: name of a held site that gets pilots again."""
    from pilotfish.client.pools import find_pools

    count = 0
    for pool in find_pools():
        master = None
        with suppress(PilotfishError):
            master = connect_if_served(pool.name) if not pool.temporary else None
        if master is not None:
            master.ask("sites_reread")
            count += 1
            if released:
                with suppress(BadInput):
                    master.ask("site_release", site=released)
            master.close()
    return count


def add_pilots(words: Sequence[str], pool: str, as_json: bool) -> None:
    """Request N pilots for ``pilots add SITE [N]``, even if no task is waiting."""
    first, *rest = words
    if first != "add" or not 1 <= len(rest) <= 2:
        raise BadInput(f"pilots {' '.join(words)}: not understood", "Write it like this: pilotfish pilots add SITE 2")
    name, number = rest[0], rest[1] if len(rest) == 2 else "1"
    if not (number.isascii() and number.isdigit() and int(number) > 0):
        raise BadInput(f"pilots add {name} {number}: {number!r} is not a number of pilots", f"Write: pilotfish pilots add {name} 2")
    if name == LOCAL:
        raise BadInput("pilots add local: this machine has no pilots", f"Write: pilotfish workers --local-cores {number}")
    find_site(name)
    master = connect(pool, start=True)
    master.ask("sites_reread")
    pilots: list[str] = master.ask("pilots_add", site=name, pilots=int(number))["pilots"]
    screen = Screen.of()
    if as_json:
        screen.json({"site": name, "pilots": pilots})
    else:
        screen.line(f"Requested {plural(len(pilots), 'pilot')} at site {clean(name)}: {', '.join(pilots)}. See: pilotfish sites")
