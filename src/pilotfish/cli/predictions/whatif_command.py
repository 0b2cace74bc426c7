"""Implements whatif: simulates the pool from its current state with more pilots, different sites or a different policy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click

from pilotfish import plugins
from pilotfish.cli import completions
from pilotfish.cli.predictions.lookahead import RECORD, about, clock, find_unfinished, notes, number, progress_of
from pilotfish.cli.shared_options import json_option, note_new_name, pool_option, samples_option
from pilotfish.cli.terminal.screen import Column, Screen, plural
from pilotfish.client.offline_pool import OfflinePool
from pilotfish.errors import BadInput, Correction, did_you_mean
from pilotfish.model.site import LOCAL
from pilotfish.sim.projections.pool_snapshot import Variation

if TYPE_CHECKING:
    from pilotfish.sim.projections.finish_estimate import FinishEstimate

COLUMNS = (
    Column("CHANGE", itemgetter(0), elastic=True),
    Column("FINISH", itemgetter(1)),
    Column("TIME LEFT", itemgetter(2), right=True),
    Column("80 % INTERVAL", itemgetter(3)),
    Column("SPEED-UP", itemgetter(4), right=True),
    Column("P(SOONER)", itemgetter(5), right=True),
)
"""Columns of the tuples that ``_cells`` returns."""
FEWER = re.compile(r"-([0-9]|site\b)")
MARK = "\0"


class SignedArguments(click.Command):
    """A command for which ``-site X`` and ``-5 pilots SITE`` are arguments, although they begin like options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [MARK + word if FEWER.match(word) else word for word in args])


@click.command(cls=SignedArguments)
@click.argument("options", nargs=-1, required=True, metavar="CHANGE...", shell_complete=completions.complete_what_if)
@click.option(
    "--run", metavar="RUN", shell_complete=completions.complete_run(completions.unfinished), help="Run to estimate.  [default: the newest]"
)
@samples_option
@pool_option
@json_option
def whatif(options: tuple[str, ...], run: str | None, samples: int | None, pool: str, as_json: bool) -> None:
    """Estimate the finish time with more workers, other sites or another policy.

    \b
    Each CHANGE is one argument:
      "+50 pilots SITE"  50 more pilots at SITE; "-5 pilots SITE": 5 fewer
      "+8 cores"         8 more cores of this machine; "-2 cores": 2 fewer
      "cores=8"          8 cores of this machine in total
      "+site X"          also use site X; "-site X": do not use it
      "policy=near"      another policy
      "speed SITE=2"     workers at SITE are twice as fast
    Commas combine changes: "+site X, policy=xsufferage".
    """
    from pilotfish.sim.projections.finish_estimate import estimate_finish
    from pilotfish.sim.projections.pool_snapshot import AS_IT_IS
    from pilotfish.sim.projections.prediction_record import PredictionRecord

    screen = Screen.of()
    offline, snapshot = OfflinePool.snapshot(pool)
    state = offline.state
    sites = [*state.sites, *(worker.site for worker in state.workers.values() if worker.site)]
    variations = [AS_IT_IS, *(read_variation(text.lstrip(MARK), sites) for text in options)]
    found = find_unfinished(state, run, "Simulate it again: pilotfish replay {} --policy NAMES --total-cores N")
    base, *others = estimate_finish(snapshot, found.id, variations, samples or 0, progress_of(screen, as_json))
    calibration = PredictionRecord(offline.directory / RECORD)
    calibration.settle(offline.state, offline.ended)
    factor = calibration.factor()
    ranked = sorted([base, *others], key=lambda estimate: estimate.merit_s)
    if as_json:
        rows = [{"what": estimate.variation.text, **_row(estimate, base, factor)} for estimate in ranked]
        screen.json(
            {"run": found.id, "at": offline.now, "replicas": len(base.ends_s), "options": rows, "notes": notes(offline, found, base)}
        )
        return
    screen.table(COLUMNS, [_cells(estimate, base, offline.now, factor) for estimate in ranked])
    screen.line()
    count = plural(len(base.ends_s), "sample")
    screen.line(f"Run {found.id}, {count} of each change with the same random numbers.")
    screen.line("P(SOONER): fraction of samples that finish sooner than without the change; a sample with equal times counts half.")
    for note in notes(offline, found, base):
        screen.line(f"Note: {note}.")


def _row(estimate: FinishEstimate, base: FinishEstimate, factor: float) -> dict[str, Any]:
    low, high = estimate.interval(factor)
    return {
        "median_s": number(estimate.median_s),
        "low_s": number(low),
        "high_s": number(high),
        "difference_s": number(estimate.median_s - base.median_s) if estimate is not base else 0.0,
        "chance_sooner": round(estimate.chance_to_beat(base), 3) if estimate is not base else None,
        "stuck": estimate.stuck,
    }


def _cells(estimate: FinishEstimate, base: FinishEstimate, now: float, factor: float) -> tuple[str, ...]:
    row = _row(estimate, base, factor)
    if row["median_s"] is None:
        return (estimate.variation.text, "never", "-", "-", "-", f"{row['chance_sooner'] or 0:.0%}")
    speed_up = f"{base.median_s / estimate.median_s:.2f}x" if estimate.median_s and isfinite(base.median_s) else "-"
    sooner = "" if row["chance_sooner"] is None else f"{row['chance_sooner']:.0%}"
    low, high = map(about, estimate.interval(factor))
    finish = clock(now + estimate.median_s, now)
    return (estimate.variation.text, finish, about(estimate.median_s), f"{low} to {high}", speed_up, sooner)


# --- variations such as ``+50 pilots cluster``, ``-site far`` and ``policy=near``, separated by commas ------------------------------------

FORMS = {
    "pilots": re.compile(r"([+-][0-9]+) +(?:cores?|pilots? +(?:at +)?(\S+))"),
    "site": re.compile(r"([+-]) *site +(\S+)"),
    "policy": re.compile(r"policy *= *(\S+)"),
    "cores": re.compile(r"cores *= *([0-9]+(?:[.][0-9]+)?)"),
    "speed": re.compile(r"speed +(\S+?) *= *([0-9]*[.]?[0-9]+)"),
}
OLD_FORM = re.compile(r"([+-][0-9]+) +workers?(?: +(?:at +)?(\S+))?")
"""Former forms of changes: ``+N workers SITE`` for ``+N pilots SITE``, and ``+N workers`` for ``+N cores``."""
SYNTAX_HINT = (
    'Write "+50 pilots SITE", "+8 cores", "+site X", "-site X", "policy=near", "cores=8" or "speed SITE=2"; '
    "several of them with commas; --run RUN chooses the run"
)
EXAMPLES = {"pilots": "+50 pilots SITE", "site": "+site X", "policy": "policy=near", "cores": "cores=8", "speed": "speed SITE=2"}
MIN_SIMILARITY = 0.7
"""Minimum similarity of a misspelt word to the word that is suggested instead."""
MAX_ADDED = 100_000


def read_variation(text: str, sites: Iterable[str]) -> Variation:
    """Parse one CHANGE argument. ``sites``: the sites that the pool knows."""
    found: dict[str, list[tuple[str, ...]]] = {}
    known = list(dict.fromkeys([LOCAL, *sites]))
    for word in text.split(","):
        kind, groups = _read(word.strip())
        found.setdefault(kind, []).append(groups)
    for name in [
        *(site or LOCAL for _, site in found.get("pilots", ())),
        *(site for _, site in found.get("site", ())),
        *(site for site, _ in found.get("speed", ())),
    ]:
        if name not in known:
            raise BadInput(
                f"{text!r}: the pool knows no site {name!r}",
                did_you_mean(name, known) or f"It knows {', '.join(known)}; see: pilotfish sites",
            )
    for (policy,) in found.get("policy", ()):
        known_policies = plugins.names("policies")
        if policy not in known_policies:
            raise BadInput(
                f"{text!r}: there is no policy {policy!r}", did_you_mean(policy, known_policies) or f"There are {', '.join(known_policies)}"
            )
    more = tuple((site or LOCAL, int(count)) for count, site in found.get("pilots", ()))
    if any(abs(count) > MAX_ADDED for _, count in more):
        raise BadInput(f"{text!r}: too many for a simulation", f"The maximum is {MAX_ADDED:,}")
    speeds = {site: float(factor) for site, factor in found.get("speed", ())}
    if not all(0 < factor < 1e6 for factor in speeds.values()):
        raise BadInput(f"{text!r}: a speed is a factor greater than 0", "Twice as fast as now: speed SITE=2")
    return Variation(
        text,
        policy=found.get("policy", [("",)])[-1][0],
        more=more,
        with_sites=tuple(site for sign, site in found.get("site", ()) if sign == "+"),
        without_sites=tuple(site for sign, site in found.get("site", ()) if sign == "-"),
        speeds=speeds,
        cores=float(found["cores"][-1][0]) if "cores" in found else None,
    )


def _read(word: str) -> tuple[str, tuple[str, ...]]:
    if old := OLD_FORM.fullmatch(word):
        new = f"{old[1]} pilots {old[2]}" if old[2] and old[2] != LOCAL else f"{old[1]} cores"
        note_new_name(f'"{word}"', f'"{new}"')
        word = new
    for kind, form in FORMS.items():
        matched = form.fullmatch(word)
        if matched is not None:
            return kind, tuple(group or "" for group in matched.groups())
    if word == "last":
        hint = Correction("Give the run with --run, and then a change.", word, "", ("--run", word, "+8 cores"))
        raise BadInput(f"{word!r} is not a change that can be simulated", hint)
    words = re.findall("[a-z]+", word)
    near = get_close_matches(words[0], list(FORMS), 1, MIN_SIMILARITY) if words else []
    hint = (
        Correction(f'Did you mean the form "{EXAMPLES[near[0]]}"?', word, EXAMPLES[near[0]])
        if near
        else Correction(SYNTAX_HINT, word, "+8 cores")
    )
    raise BadInput(f"{word!r} is not a change that can be simulated", hint)
