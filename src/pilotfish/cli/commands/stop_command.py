"""Implements stop: stops a pool, and checks that no process, socket or batch job of the pool remains."""

from __future__ import annotations

import click

from pilotfish.cli.shared_options import json_option, pool_option
from pilotfish.cli.terminal.error_messages import CANNOT
from pilotfish.cli.terminal.screen import Screen, clean, cut, plural
from pilotfish.client.pools import PoolHandle, is_served
from pilotfish.client.session import PoolSession
from pilotfish.master.sites.submitted_batches import BatchRegistry
from pilotfish.store.pool_directory import pool_home, stop_mark_path

RELEASE_TIMEOUT_S = 75.0
"""Seconds until stop gives up. A master waits less than this for a site that does not answer."""
SHOWN_CELLS = 100


@click.command()
@click.option("--now", is_flag=True, help="Cancel unfinished tasks instead of keeping them.")
@pool_option
@json_option
def stop(now: bool, pool: str, as_json: bool) -> int:
    """Stop the master and its workers; verify that nothing is left."""
    screen = Screen.of()
    found = PoolHandle(pool_home(pool).directory)
    answer: dict[str, int] = {}
    # Possibly a dead master has left pilots at sites. Only a master can cancel these pilots, so a master is started.
    was_running = is_served(found.directory) or any((found.directory / "orders").glob("*.json"))
    if was_running:
        stop_mark_path(found.directory).touch()
        found.start()
        master = PoolSession.connect(found.directory)
        answer = master.ask("stop", now=now)
        master.close()
    left = found.wait_until_stopped(RELEASE_TIMEOUT_S) if was_running else found.leftovers()
    batches = BatchRegistry(found.directory / "orders").all() if (found.directory / "orders").is_dir() else []
    if as_json:
        screen.json({"pool": pool, "was_running": was_running, "left": left, "orders": [batch.tag for batch in batches], **answer})
        return CANNOT if left or batches else 0
    if not was_running and not left:
        screen.line(f"No master runs for the pool {clean(pool)}.")
        return 0
    if left:
        for what in left:
            screen.line(f"still running: {cut(clean(what), SHOWN_CELLS)}")
        screen.line("  remove them   pilotfish gc --remove")
        return CANNOT
    for batch in batches:
        screen.line(f"perhaps still at site {clean(batch.site)}: {plural(len(batch.pilots), 'job')} named {clean(batch.tag)}")
    if batches:
        screen.line("  try again       pilotfish stop")
        return CANNOT
    kept, cancelled = answer.get("unfinished", 0), answer.get("cancelled", 0)
    kept_text = f"; {plural(cancelled, 'task')} cancelled" if cancelled else f"; {plural(kept, 'unfinished task')} kept" if kept else ""
    screen.line(f"Stopped: 0 processes and 0 sockets left{kept_text}.")
    if kept and not now:
        screen.line("  resume them       pilotfish attach")
    return 0
