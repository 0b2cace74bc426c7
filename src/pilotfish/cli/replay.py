"""replay: a run that is over, as it would have gone under another policy, or with more of its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from pilotfish.cli import completions
from pilotfish.cli.foreseen import find, read_pool
from pilotfish.cli.options import json_option, pool_option
from pilotfish.cli.render import Column, Screen, clean, duration, plural
from pilotfish.errors import BadInput
from pilotfish.model.settings import POLICY_NAMES

if TYPE_CHECKING:
    from pilotfish.live.replay import Heard
    from pilotfish.sim.reenacted import History


def _complete_policy(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in POLICY_NAMES if name.startswith(incomplete)]


@click.command()
@click.argument("run", metavar="RUN", shell_complete=completions.complete_run())
@click.option(
    "--policy", "policies", multiple=True, metavar="NAME", shell_complete=_complete_policy, help="Under this policy. Again for more."
)
@click.option(
    "--workers", type=click.IntRange(1, 100_000), metavar="N", help="With so many workers like those that were there, from the beginning."
)
@pool_option
@json_option
def replay(run: str, policies: tuple[str, ...], workers: int | None, pool: str, as_json: bool) -> None:
    """Play a run that is over once more, under another policy.

    Its tasks take what they took and arrive when they did, and workers come and go as they did; who gets which task is decided anew.
    """
    from pilotfish.sim.reenacted import History, Reenacted, stays

    screen = Screen.of()
    for name in policies:
        if name not in POLICY_NAMES:
            raise BadInput(f"there is no policy {name!r}", f"There are {', '.join(POLICY_NAMES)}")
    seen = read_pool(pool, lambda: lambda state, fact, at: None)
    found = find(seen.state, run, unfinished=False)
    if found.unfinished or not found.tasks or not found.ended_at:
        raise BadInput(f"run {found.id} is not over", f"When will it be? pilotfish predict {found.id}")
    histories: list[History] = []

    def listener() -> Heard:
        histories.append(History(found.id))
        return histories[-1].hear

    seen = read_pool(pool, listener)
    found = seen.state.runs[found.id]
    present = stays(seen.state, found)
    if not present:
        raise BadInput(f"nobody remembers the workers of run {found.id}", "The journal keeps the last thousand that left")
    own = seen.settings.policy
    measured_s = found.ended_at - found.opened_at
    rows: list[tuple[str, float | None]] = [("as it was", measured_s)]
    crowd = present
    if workers is not None:
        from dataclasses import replace

        crowd = [replace(present[place % len(present)], from_s=0.0, until_s=None) for place in range(workers)]
    for name in dict.fromkeys([own, *policies]):
        title = f"replayed, {name}" + (" (its own)" if name == own else "")
        rows.append((title, Reenacted(seen.state, found, histories[-1], name, present).play()))
        if crowd is not present:
            rows.append(
                (f"replayed, {name}, {plural(len(crowd), 'worker')}", Reenacted(seen.state, found, histories[-1], name, crowd).play())
            )
    _show(screen, rows, found.id, clean(found.options.name), as_json)


def _show(screen: Screen, rows: list[tuple[str, float | None]], run: int, name: str, as_json: bool) -> None:
    measured = rows[0][1]
    assert measured is not None
    if as_json:
        told = [
            {"what": what, "seconds": seconds, "to_measured": seconds / measured if seconds is not None else None} for what, seconds in rows
        ]
        screen.json({"run": run, "name": name, "rows": told})
        return
    shown = [
        (what, duration(seconds) if seconds is not None else "never", f"{seconds / measured:.2f}" if seconds is not None else "-")
        for what, seconds in rows
    ]
    screen.table([Column("RUN " + str(run)), Column("TOOK", right=True), Column("TO MEASURED", right=True)], shown)
    screen.line()
    screen.line(
        "Measured: how long tasks took, when they came, who was there. Modelled: links, as they are forecast; nothing fails, no other run."
    )
