"""Implements gc: finds leftovers of dead masters (processes, sockets, directories of temporary pools)."""

from __future__ import annotations

import os
import select
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import click

from pilotfish.cli.shared_options import json_option
from pilotfish.cli.terminal.screen import Screen, clean, cut, plural
from pilotfish.client.pools import PoolHandle, find_pools, is_served
from pilotfish.portable.processes import processes_of
from pilotfish.store.pool_directory import PoolDirectory

KILL_TIMEOUT_S = 5.0
SHOWN_CELLS = 100


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that belongs to no running master."""

    kind: str
    what: str
    pool: PoolHandle
    pid: int = 0


@click.command()
@click.option("--remove", is_flag=True, help="Remove leftovers; otherwise only list them.")
@json_option
def gc(remove: bool, as_json: bool) -> int:
    """List and remove leftovers of dead masters.

    Leftovers are processes and sockets without a master, and temporary pools. Runs of other pools are never removed.
    """
    screen = Screen.of()
    found = [leftover for pool in find_pools() for leftover in leftovers_of(pool)]
    removed = [leftover for leftover in found if remove and remove_leftover(leftover)]
    if as_json:
        screen.json([{"kind": item.kind, "what": item.what, "pool": item.pool.name, "removed": item in removed} for item in found])
    elif not found:
        screen.line("No leftovers found.")
    else:
        for leftover in found:
            what = cut(clean(leftover.what), SHOWN_CELLS) if leftover.kind == "process" else clean(leftover.what)
            screen.line(f"{'removed' if leftover in removed else 'left'}  {leftover.kind}  {what}")
        if not remove:
            screen.line(f"{plural(len(found), 'leftover')}. Remove: pilotfish gc --remove")
    return 0 if len(removed) == len(found) or not remove else 1


def leftovers_of(pool: PoolHandle) -> list[Leftover]:
    """List what is left of a pool without a master."""
    if is_served(pool.directory):
        return []
    running = list(processes_of(pool.directory))
    if any("pilotfish.master" in command for _, command in running):
        # A master that is starting or suspended holds the pool; it may listen later.
        return []
    found = [Leftover("process", f"{pid} {command}", pool, pid) for pid, command in running]
    socket_path = PoolDirectory(pool.directory).socket_path()
    if socket_path.exists():
        found.append(Leftover("socket", str(socket_path), pool))
    if pool.temporary and not _owner_lives(pool.directory):
        found.append(Leftover("directory", str(pool.directory), pool))
    return found


def _owner_lives(directory: Path) -> bool:
    """Whether the creator of a temporary pool runs; the name is ``private-PID-...``."""
    pid = directory.name.split("-")[1]
    return pid.isdigit() and os.path.exists(f"/proc/{pid}")


def remove_leftover(leftover: Leftover) -> bool:
    if leftover.kind == "process":
        return _end_process(leftover.pid)
    if leftover.kind == "socket":
        Path(leftover.what).unlink(missing_ok=True)
        return True
    shutil.rmtree(leftover.pool.directory, ignore_errors=True)
    return not leftover.pool.directory.exists()


def _end_process(pid: int) -> bool:
    """Send SIGTERM, then SIGKILL. The pidfd guarantees that it stays the same process."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(handle, number)
            if select.select([handle], [], [], KILL_TIMEOUT_S)[0]:
                return True
    except ProcessLookupError:
        return True
    finally:
        os.close(handle)
    return False
