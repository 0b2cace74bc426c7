"""The processes of a pool on this machine, by the part they play. For ``demo``, which kills them on purpose."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from pilotfish.live.processes import processes_of


@dataclass(frozen=True, slots=True)
class Cast:
    """Who is who. Supervisor, agent and slots are found by descent: each is the parent of the next."""

    master: int
    supervisor: int
    agent: int
    slots: tuple[int, ...]


def parents() -> dict[int, int]:
    """The parent of every process."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(f"/proc/{entry.name}/stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                found[int(entry.name)] = int(fields[1])
    return found


def cast_of(directory: Path) -> Cast:
    """0 stands for a part that nobody plays just now."""
    tree = parents()
    children: dict[int, list[int]] = {}
    for pid, parent in tree.items():
        children.setdefault(parent, []).append(pid)
    ours = dict(processes_of(directory))
    master = next((pid for pid, command in ours.items() if "pilotfish.live.serve" in command), 0)
    agents = [pid for pid, command in ours.items() if "pilotfish.live" not in command]
    supervisor = next((pid for pid in agents if tree.get(pid) not in agents), 0)
    agent = next((pid for pid in children.get(supervisor, []) if pid in agents), 0) if supervisor else 0
    return Cast(master, supervisor, agent, tuple(children.get(agent, ())) if agent else ())


def kill(pid: int) -> bool:
    """kill -9; False when there was nobody."""
    if pid <= 1:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
