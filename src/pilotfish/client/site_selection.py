"""Sites that a run may use, as a person writes them: ``hpc`` or ``hpc:4``. ``run --site`` and ``Run(sites=…)`` read them here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.client.sites_file import sites_path
from pilotfish.config import read_sites
from pilotfish.errors import BadInput, did_you_mean
from pilotfish.model.site import LOCAL, Site

AS_MANY_AS_PAY = -1
"""No number was given: the pool's factory decides how many pilots a site gets."""


def read_place(text: str) -> tuple[str, int]:
    """Split ``hpc:4`` into the name of a site and its number of pilots."""
    name, colon, count = text.partition(":")
    if not name or (colon and not (count.isdigit() and int(count))):
        raise BadInput(f"site {text!r} is not understood", "write a site's name, or how many pilots it shall have as well: hpc:4")
    return name, int(count) if colon else AS_MANY_AS_PAY


def unknown_site(name: str, known: Sequence[str]) -> BadInput:
    """The error for a site that is not in ``sites.toml``."""
    if name == LOCAL:
        return BadInput("local is this machine, and no site of sites.toml", "Its settings, such as cache_size, are in config.toml: [pool]")
    near = did_you_mean(name, known)
    add = f"Describe it: pilotfish site add {name} --backend slurm"
    return BadInput(f"there is no site {name!r}", f"{near} {add}" if near else add)


def find_site(name: str) -> Site:
    """Read one site of ``sites.toml`` and check it."""
    sites = read_sites(sites_path())
    if name not in sites:
        raise unknown_site(name, list(sites))
    return sites[name]


@dataclass(frozen=True, slots=True)
class SiteSelection:
    """The sites where a run may go, and how many pilots each shall have."""

    places: tuple[str, ...] = ()
    """As a person wrote them."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(read_place(place)[0] for place in self.places))

    @property
    def local_cores(self) -> int | None:
        """``--site local:4`` means the same as ``--workers 4``."""
        cores = dict(map(read_place, self.places)).get(LOCAL, AS_MANY_AS_PAY)
        return None if cores == AS_MANY_AS_PAY else cores

    def use(self, ask: Callable[..., Any]) -> None:
        """Tell the pool's master to use these sites. It rejects unknown ones."""
        remote = [(name, pilots) for name, pilots in map(read_place, self.places) if name != LOCAL]
        if remote:
            ask("sites_reread")
        for name, pilots in remote:
            ask("site_use", site=name, pilots=pilots)


def read_selection(sites: str | Sequence[str]) -> SiteSelection:
    """Check sites before anything is started: each must be in ``sites.toml`` and be described correctly."""
    selection = SiteSelection((sites,) if isinstance(sites, str) else tuple(sites))
    remote = [name for name in selection.names if name != LOCAL]
    if remote:
        known = read_sites(sites_path())
        for name in remote:
            if name not in known:
                raise unknown_site(name, [*known, LOCAL])
            known[name]  # a wrong description raises here
    return selection
