"""Sites and masters: masters are told what was changed, pools are told which sites to use, and pilots are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pilotfish.cli.terminal.screen import Screen, clean, plural
from pilotfish.client.session import NoPool, PoolSessionProtocol, connect, connect_if_served
from pilotfish.client.site_selection import AS_MANY_AS_PAY, read_place, use_places
from pilotfish.client.sites_file import sites_path
from pilotfish.config import read_sites
from pilotfish.errors import BadInput, PilotfishError, did_you_mean
from pilotfish.model.site import LOCAL, Site


def unknown_site(name: str, known: Sequence[str]) -> BadInput:
    if name == LOCAL:
        return BadInput("local is this machine, and no site of sites.toml", "Its settings, such as cache_size, are in config.toml: [pool]")
    near = did_you_mean(name, known)
    add = f"Describe it: pilotfish site add {clean(name)} --backend slurm"
    return BadInput(f"there is no site {name!r}", f"{near} {add}" if near else add)


def find_site(name: str) -> Site:
    """A site of ``sites.toml``, checked."""
    sites = read_sites(sites_path())
    if name not in sites:
        raise unknown_site(name, list(sites))
    return sites[name]


# --- masters --------------------------------------------------------------------------------------------------------------------------


def served(pool: str) -> PoolSessionProtocol | None:
    """The master of a pool if one is at work; none is started."""
    try:
        return connect_if_served(pool)
    except NoPool:
        return None


def masters_at_work() -> Iterator[PoolSessionProtocol]:
    """Sites are the same for all pools."""
    from pilotfish.client.pools import find_pools

    for pool in find_pools():
        if not pool.temporary:
            with suppress(PilotfishError):
                master = served(pool.name)
                if master is not None:
                    yield master
                    master.close()


def tell_masters(released: str = "") -> int:
    """Have all masters read ``sites.toml`` again, and try a site again that they held back. How many there are."""
    count = 0
    for master in masters_at_work():
        master.ask("sites_reread")
        count += 1
        if released:
            with suppress(BadInput):
                master.ask("site_release", site=released)
    return count


# --- run --site -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SiteSelection:
    """``--site`` as it was typed: where a run may go, and how many pilots shall be there."""

    words: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(read_place(word)[0] for word in self.words))

    @property
    def local_cores(self) -> int | None:
        """``--site local:4`` is another way to say ``--workers 4``."""
        cores = dict(map(read_place, self.words)).get(LOCAL, AS_MANY_AS_PAY)
        return None if cores == AS_MANY_AS_PAY else cores

    def tell(self, master: PoolSessionProtocol) -> None:
        """Have the pool use the sites of a run."""
        use_places(master.ask, self.words)


def read_wanted(words: Sequence[str]) -> SiteSelection:
    """Nothing is started for a site that does not exist."""
    wanted = SiteSelection(tuple(words))
    if any(name != LOCAL for name in wanted.names):
        known = read_sites(sites_path())
        for name in wanted.names:
            if name == LOCAL:
                continue
            if name not in known:
                raise unknown_site(name, [*known, LOCAL])
            known[name]  # one that is described badly says so here
    return wanted


# --- workers add ----------------------------------------------------------------------------------------------------------------------


def add_workers(words: Sequence[str], pool: str, as_json: bool) -> None:
    """``workers add SITE [N]``: so many pilots at once, whatever there is to do."""
    first, *rest = words
    if first != "add" or not 1 <= len(rest) <= 2:
        raise BadInput(f"workers {' '.join(words)}: that is not understood", "Write it like this: pilotfish workers add SITE 2")
    name, number = rest[0], rest[1] if len(rest) == 2 else "1"
    if not (number.isascii() and number.isdigit() and int(number) > 0):
        raise BadInput(f"workers add {name} {number}: {number!r} is not a number of pilots", f"Write: pilotfish workers add {name} 2")
    if name == LOCAL:
        raise BadInput("workers add local: workers of this machine are not added one by one", f"Write: pilotfish workers --set {number}")
    find_site(name)
    master = connect(pool, start=True)
    master.ask("sites_reread")
    pilots: list[str] = master.ask("pilots_add", site=name, pilots=int(number))["pilots"]
    screen = Screen.of()
    if as_json:
        screen.json({"site": name, "pilots": pilots})
    else:
        screen.line(f"Asked site {clean(name)} for {plural(len(pilots), 'pilot')}: {', '.join(pilots)}. Look: pilotfish sites")


def site_rows(master: PoolSessionProtocol) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = master.ask("sites")
    return rows
