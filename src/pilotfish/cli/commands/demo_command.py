"""Implements demo. It kills a task, an agent and the master on purpose and shows that nothing is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pilotfish.applications.task_options import TaskOptions
from pilotfish.cli.commands.attach_command import RunFollower
from pilotfish.cli.shared_options import json_option
from pilotfish.cli.terminal.error_messages import CANNOT
from pilotfish.cli.terminal.progress import RunProgress
from pilotfish.cli.terminal.screen import Screen, duration, plural
from pilotfish.client.session import all_tasks
from pilotfish.client.task_output import fetch_output
from pilotfish.client.temporary_pool import PrivatePool, private_master
from pilotfish.portable.processes import processes_of

WORKERS = 4
TASKS = 240
TASK_S = 0.25
POLL_S = 0.1
LIMIT_S = 180.0


@click.command()
@click.option("--tasks", "count", type=click.IntRange(min=8), metavar="N", default=TASKS, show_default=True, help="Number of tasks.")
@json_option
def demo(count: int, as_json: bool) -> int:
    """Run a 30-second demo that kills processes on purpose."""
    screen = Screen.of()
    show = (lambda text: None) if as_json else screen.line
    started = time.monotonic()
    show(f"A temporary pool with {WORKERS} slots gets {count} tasks of {TASK_S:g} s. While they run, processes are killed (kill -9).")
    with private_master(WORKERS) as private:
        command = ["sh", "-c", f"sleep {TASK_S:g}; echo $PILOTFISH_TASK"]
        run = private.submit([command] * count, TaskOptions(losses=20))
        killed = _watch(private, run, screen, show)
        verdict = _verdict(private, run, count)
    verdict |= {"killed": killed, "left": private.left, "elapsed_s": round(time.monotonic() - started, 1)}
    good = verdict["done"] == verdict["own_results"] == count and not private.left and len(killed) == len(KILLS)
    if as_json:
        screen.json({"good": good, **verdict})
    else:
        screen.line(f"{verdict['done']} of {count} tasks done, each with its own result, in {duration(verdict['elapsed_s'])}.")
        screen.line(f"{plural(verdict['tried_again'], 'task')} were run again, because they ran in a process that was killed.")
        screen.line("Nothing was lost. 0 processes left." if good else f"This is not as expected: {verdict}")
        screen.line("Your turn:  pilotfish run --param seed=1..20 -- echo seed {seed}")
    return 0 if good else CANNOT


def _kill_slot(private: PrivatePool) -> str:
    slots = find_processes(private.pool.directory).slots
    return f"a running task (process {slots[0]})" if slots and kill(slots[0]) else ""


def _kill_agent(private: PrivatePool) -> str:
    agent = find_processes(private.pool.directory).agent
    return f"the agent (process {agent}) that runs all {WORKERS} slots" if kill(agent) else ""


def _kill_master(private: PrivatePool) -> str:
    master = find_processes(private.pool.directory).master
    return f"the master itself (process {master})" if kill(master) else ""


# (fraction of tasks done, function that kills, what happens then)
KILLS: tuple[tuple[float, Callable[[PrivatePool], str], str], ...] = (
    (0.15, _kill_slot, "its task is tried again"),
    (0.40, _kill_agent, "a new one is started, its tasks are tried again"),
    (0.70, _kill_master, "it is started again, reads its journal, and running tasks are taken over"),
)


def _watch(private: PrivatePool, run: int, screen: Screen, show: Callable[[str], None]) -> list[str]:
    """Follow the run and kill processes at the planned times. Return what was killed."""
    progress = RunProgress(screen, time.monotonic)
    follower = RunFollower(private.master, private.master.ask("run", run=run), progress, None)
    watcher = private.master.watch_run(run, follower.cursor)
    kills, killed = list(KILLS), []
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        update = watcher.next(POLL_S)
        if update is not None:
            follower.apply(update)
            if update.finished:
                break
            if update.lost is not None:
                raise update.lost
        if kills and progress.done >= kills[0][0] * progress.total:
            victim = kills[0][1](private)
            if victim:
                progress.clear()
                show(f"  {progress.done:>4} done   killed {victim}: {kills[0][2]}")
                killed.append(victim)
                kills.pop(0)
        if screen.is_terminal:
            progress.draw()
    progress.clear()
    return killed


def _verdict(private: PrivatePool, run: int, count: int) -> dict[str, Any]:
    """Count finished and repeated tasks and check that each has its own result."""
    done = own = again = 0
    for row in all_tasks(private.master, run):
        done += row["state"] == "done"
        again += row["attempt"] > 1
        own += fetch_output(private.master, row).stdout.decode(errors="replace").strip() == row["id"]
    return {"tasks": count, "done": done, "own_results": own, "tried_again": again}


# Finds the processes of a pool on this machine for ``demo``, which kills them on purpose.


@dataclass(frozen=True, slots=True)
class PoolProcesses:
    """Process ids of a pool. Supervisor, agent and slots are found by descent: each is the parent of the next."""

    master: int
    supervisor: int
    agent: int
    slots: tuple[int, ...]


def parents() -> dict[int, int]:
    """Return the parent of every process."""
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


def find_processes(directory: Path) -> PoolProcesses:
    """Find the processes of the pool in ``directory``; 0 stands for a missing one."""
    tree = parents()
    children: dict[int, list[int]] = {}
    for pid, parent in tree.items():
        children.setdefault(parent, []).append(pid)
    ours = dict(processes_of(directory))
    master = next((pid for pid, command in ours.items() if "pilotfish.master" in command), 0)
    agents = [pid for pid, command in ours.items() if "pilotfish.master" not in command]
    supervisor = next((pid for pid in agents if tree.get(pid) not in agents), 0)
    agent = next((pid for pid in children.get(supervisor, []) if pid in agents), 0) if supervisor else 0
    return PoolProcesses(master, supervisor, agent, tuple(children.get(agent, ())) if agent else ())


def kill(pid: int) -> bool:
    """Send SIGKILL. Return False if there is no such process."""
    if pid <= 1:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
