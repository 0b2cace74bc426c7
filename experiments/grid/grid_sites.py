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
        turned = sum(1 for moment in self.changes_at if now >= moment) % 2
        if self.kind == FLAPPING:
            return DEAD if turned else GOOD
        if self.kind == RETURNING:
            return GOOD if turned else DEAD
        if self.kind == LEAVING:
            return BLACK_HOLE if turned else GOOD
        return self.kind


def draw_site(name: str, kind: str, dice: random.Random) -> GridSite:
    wait_s = {BUSY: dice.uniform(1500, 4000), BLACK_HOLE: 5.0, KILLER: 5.0}.get(kind, dice.uniform(30, 400))
    bad_start = dice.uniform(0.3, 0.7) if kind == FLAKY else 0.02
    submit_s = dice.uniform(10, 40) if kind == REFUSING else dice.uniform(0.2, 3)
    changes: tuple[float, ...] = ()
    if kind == FLAPPING:
        moments = [dice.uniform(600, 2400)]
        while moments[-1] < 100_000:
            moments.append(moments[-1] + dice.uniform(1200, 3600))
        changes = tuple(moments)
    elif kind in (RETURNING, LEAVING):
        changes = (dice.uniform(1800, 7200),)
    return GridSite(name, kind, dice.randint(4, 12), wait_s, bad_start, submit_s, dice.uniform(0.6, 1.6), changes)


def draw_grid(seed: int, count: int = 12) -> list[GridSite]:
    """Draws a grid with two good sites and a busy one; all others are bad."""
    dice = random.Random(f"grid {seed}")
    kinds = [GOOD, GOOD, BUSY, *(dice.choice(BAD) for _ in range(count - 3))]
    dice.shuffle(kinds)
    return [draw_site(f"site{number}", kind, dice) for number, kind in enumerate(kinds, 1)]


def draw_uneven_grid(seed: int, count: int = 12) -> list[GridSite]:
    """Draws a grid of good sites, some ten times as fast as others."""
    dice = random.Random(f"uneven grid {seed}")
    sites = [draw_site(f"site{number}", GOOD, dice) for number in range(1, count + 1)]
    return [replace(site, speed=0.3 * 10 ** dice.random()) for site in sites]
