"""Draws good and bad sites from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

GOOD, BUSY, FLAKY, BLACK_HOLE, KILLER, DEAD, REFUSING, FLAPPING, RETURNING, LEAVING = (
    "good",
    "busy",
    "flaky",
    "black hole",
    "killer",
    "dead",
    "refusing",
    "flapping",
    "returning",
    "leaving",
)
"""Kinds of sites. Busy: long waits. Flaky: many agents do not start. Black hole: starts all pilots at once, but no agent joins. Killer:
the same, but agents join before they die. Dead: accepts pilots and never starts one. Refusing: rejects pilots, slowly. Flapping:
alternates between good and dead. Returning: dead at first. Leaving: becomes a black hole."""
BAD = (FLAKY, BLACK_HOLE, KILLER, DEAD, REFUSING, FLAPPING, RETURNING, LEAVING)


@dataclass(slots=True, frozen=True)
class GridSite:
    name: str
    kind: str
    slots: int
    wait_s: float
    """Mean queue wait; waits vary widely around it."""
    bad_start: float
    submit_s: float
    speed: float
    changes_at: tuple[float, ...] = ()
    """Times at which the site changes its behaviour, and back."""

    def nature(self, now: float) -> str:
        """Returns the kind of behaviour at this time."""
        turned = sum(1 for at in self.changes_at if now >= at) % 2
        if self.kind == FLAPPING:
            return DEAD if turned else GOOD
        if self.kind == RETURNING:
            return GOOD if turned else DEAD
        if self.kind == LEAVING:
            return BLACK_HOLE if turned else GOOD
        return self.kind


def draw_site(name: str, kind: str, rng: random.Random) -> GridSite:
    wait_s = {BUSY: rng.uniform(1500, 4000), BLACK_HOLE: 5.0, KILLER: 5.0}.get(kind, rng.uniform(30, 400))
    bad_start = rng.uniform(0.3, 0.7) if kind == FLAKY else 0.02
    submit_s = rng.uniform(10, 40) if kind == REFUSING else rng.uniform(0.2, 3)
    changes: tuple[float, ...] = ()
    if kind == FLAPPING:
        look_times = [rng.uniform(600, 2400)]
        while look_times[-1] < 100_000:
            look_times.append(look_times[-1] + rng.uniform(1200, 3600))
        changes = tuple(look_times)
    elif kind in (RETURNING, LEAVING):
        changes = (rng.uniform(1800, 7200),)
    return GridSite(name, kind, rng.randint(4, 12), wait_s, bad_start, submit_s, rng.uniform(0.6, 1.6), changes)


def draw_grid(seed: int, count: int = 12) -> list[GridSite]:
    """Draws a grid with two good sites and a busy one; all others are bad."""
    rng = random.Random(f"grid {seed}")
    kinds = [GOOD, GOOD, BUSY, *(rng.choice(BAD) for _ in range(count - 3))]
    rng.shuffle(kinds)
    return [draw_site(f"site{number}", kind, rng) for number, kind in enumerate(kinds, 1)]


def draw_uneven_grid(seed: int, count: int = 12) -> list[GridSite]:
    """Draws a grid of good sites, some ten times as fast as others."""
    rng = random.Random(f"uneven grid {seed}")
    sites = [draw_site(f"site{number}", GOOD, rng) for number in range(1, count + 1)]
    return [replace(site, speed=0.3 * 10 ** rng.random()) for site in sites]
