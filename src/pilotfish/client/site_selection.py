"""Where a run shall go: ``hpc`` or ``hpc:4``, and what its pool is told about that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pilotfish.errors import BadInput
from pilotfish.model.site import LOCAL

AS_MANY_AS_PAY = -1


def read_place(text: str) -> tuple[str, int]:
    """A site's name, and how many pilots shall be there."""
    name, colon, count = text.partition(":")
    if not name or (colon and not (count.isdigit() and int(count))):
        raise BadInput(f"site {text!r} is not understood", "write a site's name, or how many pilots it shall have as well: hpc:4")
    return name, int(count) if colon else AS_MANY_AS_PAY


def list_places(sites: str | Sequence[str]) -> tuple[str, ...]:
    """One place is as good as a list of one."""
    return (sites,) if isinstance(sites, str) else tuple(sites)


def use_places(ask: Callable[..., Any], places: Sequence[str]) -> tuple[str, ...]:
    """Have the pool use these sites; their names. Unknown ones are an error."""
    wanted = [read_place(text) for text in places]
    if any(name != LOCAL for name, _ in wanted):
        ask("sites_reread")
    for name, pilots in wanted:
        if name != LOCAL:
            ask("site_use", site=name, pilots=pilots)
    return tuple(name for name, _ in wanted)
