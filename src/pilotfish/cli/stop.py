"""stop: an end that can be checked."""

from __future__ import annotations

import click

from pilotfish.cli.complaints import CANNOT
from pilotfish.cli.live_master import connect_to_stop
from pilotfish.cli.options import json_option, pool_option
from pilotfish.cli.render import Screen, clean, cut, plural
from pilotfish.live.daemon import Pool, is_served, stop_marker
from pilotfish.live.home import pool_home

GOODBYE_S = 75.0
"""Longer than a master takes that waits for a site which does not answer."""
SHOWN_CELLS = 100


@click.command()
@click.option("--now", is_flag=True, help="Cancel what is unfinished; otherwise it is kept and goes on at the next start.")
@pool_option
@json_option
def stop(now: bool, pool: str, as_json: bool) -> int:
    """Stop the master and its workers, and prove that nothing is left."""
    screen = Screen.of()
    found = Pool(pool_home(pool).directory)
    answer: dict[str, int] = {}
    was_running = is_served(found.directory)
    if not was_running and any((found.directory / "orders").glob("*.json")):
        # Pilots of a master that died may be at their sites: only a master can take them out.
        stop_marker(found.directory).unlink(missing_ok=True)
        found.revive()
        was_running = True
    if was_running:
        stop_marker(found.directory).touch()
        master = connect_to_stop(found)
        answer = master.ask("stop", now=now)
        master.close()
    left = found.wait_until_gone(GOODBYE_S) if was_running else found.leftovers()
    if as_json:
        screen.json({"pool": pool, "was_running": was_running, "left": left, **answer})
        return CANNOT if left else 0
    if not was_running and not left:
        screen.line(f"No master runs for the pool {clean(pool)}.")
        return 0
    if left:
        for what in left:
            screen.line(f"still there: {cut(clean(what), SHOWN_CELLS)}")
        screen.line("  remove them   pilotfish gc --remove")
        return CANNOT
    kept, cancelled = answer.get("unfinished", 0), answer.get("cancelled", 0)
    told = f"; {plural(cancelled, 'task')} cancelled" if cancelled else f"; {plural(kept, 'unfinished task')} kept" if kept else ""
    screen.line(f"Stopped: 0 processes and 0 sockets left{told}.")
    if kept and not now:
        screen.line("  go on with them   pilotfish attach")
    return 0
