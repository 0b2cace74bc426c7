"""Reads the sites of ``run --site`` and ``Run(sites=…)``, such as ``hpc`` or ``hpc:4``, and tells the master to use these sites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.client.sites_file import sites_path
from pilotfish.config import read_sites
from pilotfish.errors import BadInput, Correction, did_you_mean
from pilotfish.model.site import LOCAL, Site

FACTORY_DECIDES = -1
"""Stands for the number of pilots if the user gave no number. The factory of the pool then decides how many pilots to request."""


def _read_site_choice(text: str) -> tuple[str, int]:
    """Splits ``hpc:4`` into the name of a site and a number of pilots."""
    name, colon, count = text.partition(":")
    if not name or (colon and not (count.isdigit() and int(count))):
        raise BadInput(
            f"site {text!r} is not understood",
            Correction("write NAME or NAME:N; N is the number of pilots, such as hpc:4", text, name or LOCAL),
        )
    return name, int(count) if colon else FACTORY_DECIDES


def unknown_site(name: str, known: Sequence[str]) -> BadInput:
    """Returns the error for a site that ``sites.toml`` does not have."""
    if name == LOCAL:
        return BadInput("local is this machine, and no site of sites.toml", "Its settings, such as cache_size, are in config.toml: [pool]")
    if name.isdecimal():
        fix = f"For {name} cores of this machine: pilotfish workers --local-cores {name}"
        return BadInput(f"there is no site {name!r}", fix)
    fix = "See them all: pilotfish sites" if known else f"Describe it: pilotfish site add {name} --backend slurm"
    return BadInput(f"there is no site {name!r}", did_you_mean(name, known) or fix)


def find_site(name: str) -> Site:
    """Reads one site from ``sites.toml`` and checks it."""
    sites = read_sites(sites_path())
    if name not in sites:
        raise unknown_site(name, list(sites))
    return sites[name]


@dataclass(frozen=True, slots=True)
class SiteSelection:
    """The sites that a run is allowed to use, each with its number of pilots."""

    choices: tuple[tuple[str, int], ...] = ()
    """Pairs of a site and its number of pilots, in the order in which the user gave them."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict(self.choices))

    @property
    def local_cores(self) -> int | None:
        """Returns how many cores of this machine to use: 4 for ``--site local:4``, or None if the user gave no number."""
        cores = dict(self.choices).get(LOCAL, FACTORY_DECIDES)
        return None if cores == FACTORY_DECIDES else cores

    def use(self, ask: Callable[..., Any]) -> None:
        """Tells the master to use these sites. ``ask`` sends a request to the master. The master rejects unknown sites."""
        remote = [(name, pilots) for name, pilots in self.choices if name != LOCAL]
        if remote:
            ask("sites_reread")
        for name, pilots in remote:
            ask("site_use", site=name, pilots=pilots)

    def switch(self, ask: Callable[..., Any]) -> None:
        """Tells the master to use these sites for an existing run. If the user gave a number of cores of this machine (``local:4``), also
        sets the number of local cores of the pool."""
        if self.local_cores is not None:
            ask("workers_set", local=self.local_cores)
        self.use(ask)


def read_selection(sites: str | Sequence[str]) -> SiteSelection:
    """Reads and checks the sites that a user gave. Each site except ``local`` must have a valid table in ``sites.toml``. Call it before
    anything is started."""
    selection = SiteSelection(tuple(map(_read_site_choice, [sites] if isinstance(sites, str) else sites)))
    remote = [name for name in selection.names if name != LOCAL]
    if remote:
        known = read_sites(sites_path())
        for name in remote:
            if name not in known:
                raise unknown_site(name, [*known, LOCAL])
            known[name]  # raises an error if the table of the site is invalid
    return selection
