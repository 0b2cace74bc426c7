"""whatif: the same run with more workers, other sites, another policy. Each goes on in the simulator from how the pool stands now."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from pilotfish.cli import completions
from pilotfish.cli.foreseen import RECORD, about, clock, find_unfinished, notes, number, progress_of, read_moment
from pilotfish.cli.options import json_option, pool_option
from pilotfish.cli.render import Column, Screen, plural

if TYPE_CHECKING:
    from pilotfish.sim.foresight import Foresight

FEWER = re.compile(r"-([0-9]|site\b)")
MARK = "\0"


class Worded(click.Command):
    """``-site X`` and ``-5 workers`` are no options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [MARK + word if FEWER.match(word) else word for word in args])


@click.command(cls=Worded)
@click.argument("options", nargs=-1, required=True, metavar="WHAT...", shell_complete=completions.complete_what_if)
@click.option(
    "--run", metavar="RUN", shell_complete=completions.complete_run(completions.unfinished), help="Which run.  [default: the newest]"
)
@click.option("--replicas", type=click.IntRange(1, 10_000), metavar="N", help="Imagine so many futures of each.")
@pool_option
@json_option
def whatif(options: tuple[str, ...], run: str | None, replicas: int | None, pool: str, as_json: bool) -> None:
    """Say how much sooner a run would be over with other workers, sites or policies.

    \b
    Each WHAT is one text:
      "+50 workers SITE"  so many pilots more (without SITE: cores of this machine); "-5 workers SITE": fewer
      "+site X"           the pool uses the site X as well; "-site X": no longer
      "policy=near"       tasks are given out by another policy
      "cores=8"           the pool has so many cores of this machine
      "speed SITE=2"      workers there are twice as fast
    With commas, several at once: "+site X, policy=xsufferage".
    """
    from pilotfish.cli.variations import read_variation
    from pilotfish.sim.calibration import Calibration
    from pilotfish.sim.foresight import foresee
    from pilotfish.sim.moment import AS_IT_IS

    screen = Screen.of()
    seen, moment = read_moment(pool)
    state = seen.state
    sites = [*state.sites, *(worker.site for worker in state.workers.values() if worker.site)]
    variations = [AS_IT_IS, *(read_variation(text.lstrip(MARK), sites) for text in options)]
    found = find_unfinished(state, run, "What would have been: pilotfish replay {} --policy NAMES --workers N")
    base, *others = foresee(moment, found.id, variations, replicas or 0, progress_of(screen, as_json))
    calibration = Calibration(seen.directory / RECORD)
    calibration.settle(seen.state, seen.ended)
    factor = calibration.factor()
    ranked = sorted([base, *others], key=lambda one: one.merit_s)
    if as_json:
        rows = [{"what": one.variation.text, **_row(one, base, factor)} for one in ranked]
        screen.json({"run": found.id, "at": seen.now, "replicas": len(base.ends_s), "options": rows, "notes": notes(seen, found, base)})
        return
    columns = [
        Column("IF", elastic=True),
        Column("OVER AT"),
        Column("IN", right=True),
        Column("BAND"),
        Column("THAN NOW", right=True),
        Column("SOONER", right=True),
    ]
    screen.table(columns, [_cells(one, base, seen.now, factor) for one in ranked])
    screen.line()
    screen.line(
        f"Of run {found.id}, with {plural(len(base.ends_s), 'future')} of each, the same dice for all. SOONER: in so many of them it is."
    )
    for note in notes(seen, found, base):
        screen.line(f"Note: {note}.")


def _row(one: Foresight, base: Foresight, factor: float) -> dict[str, Any]:
    low, high = one.band(factor)
    return {
        "median_s": number(one.median_s),
        "low_s": number(low),
        "high_s": number(high),
        "difference_s": number(one.median_s - base.median_s) if one is not base else 0.0,
        "chance_sooner": round(one.chance_to_beat(base), 3) if one is not base else None,
        "stuck": one.stuck,
    }


def _cells(one: Foresight, base: Foresight, now: float, factor: float) -> tuple[str, ...]:
    row = _row(one, base, factor)
    if row["median_s"] is None:
        return (one.variation.text, "never", "-", "-", "-", f"{row['chance_sooner'] or 0:.0%}")
    difference = row["difference_s"]
    than_now = "" if one is base else "?" if difference is None else f"{'-' if difference < 0 else '+'}{about(abs(difference))}"
    sooner = "" if row["chance_sooner"] is None else f"{row['chance_sooner']:.0%}"
    low, high = one.band(factor)
    return (one.variation.text, clock(now + one.median_s, now), about(one.median_s), f"{about(low)} to {about(high)}", than_now, sooner)
