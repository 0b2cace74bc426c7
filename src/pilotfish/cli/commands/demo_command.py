"""Implements demo: kills a task, an agent and the master on purpose, and shows that no task is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pilotfish.applications.task_options import TaskOptions
from pilotfish.cli.run_commands.attach_command import RunFollower
from pilotfish.cli.shared_options import json_option
from pilotfish.cli.terminal.error_messages import CANNOT
from pilotfish.cli.terminal.progress import RunProgress
from pilotfish.cli.terminal.screen import Screen, duration, plural
from pilotfish.client.outputs.task_output import fetch_output
from pilotfish.client.session import all_tasks
from pilotfish.client.temporary_pool import PrivatePool, private_master
from pilotfish.portable.processes import children_of, processes_of, state_of

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


# (fraction of tasks that have ended, process to kill, its description, what happens after the kill)
KILLS = (
    (0.15, "slot", "a running task (process {})", "its task is tried again"),
    (0.40, "agent", f"the agent (process {{}}) that runs all {WORKERS} slots", "a new one is started, its tasks are tried again"),
    (0.70, "master", "the master itself (process {})", "it is started again, reads its journal, and running tasks are taken over"),
)


def _watch(private: PrivatePool, run: int, screen: Screen, show: Callable[[str], None]) -> list[str]:
    """Follow the run and kill processes at the times in KILLS. Return descriptions of the killed processes."""
    progress = RunProgress(screen, time.monotonic)
    follower = RunFollower(private.master, private.master.ask("run", run=run), progress)
    watcher = private.master.watch_run(run, follower.cursor)
    kills, killed = list(KILLS), []
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        update = watcher.next(POLL_S)
        if update is not None:
            follower.apply(update)
            if update.finished:
                break
        if kills and progress.done >= kills[0][0] * progress.total:
            _, process, victim, consequence = kills[0]
            pid = find_processes(private.pool.directory)[process]
            if kill(pid):
                progress.clear()
                killed.append(victim.format(pid))
                show(f"  {progress.done:>4} done   killed {killed[-1]}: {consequence}")
                kills.pop(0)
        if screen.is_terminal:
            progress.draw()
    progress.clear()
    return killed


def _verdict(private: PrivatePool, run: int, count: int) -> dict[str, Any]:
    """Count done tasks, repeated tasks and correct results. A result is correct if the task has printed its own id."""
    done = own = again = 0
    for row in all_tasks(private.master, run):
        done += row["state"] == "done"
        again += row["attempt"] > 1
        own += fetch_output(private.master, row).stdout.decode(errors="replace").strip() == row["id"]
    return {"tasks": count, "done": done, "own_results": own, "tried_again": again}


def find_processes(directory: Path) -> dict[str, int]:
    """Return the process ids of the master, the agent and one slot of a pool. The id is 0 for a process that does not run.

    A supervisor process is the parent of the agent. The agent is the parent of the slot server and of one monitor process per slot. The
    monitor is the parent of its slot. The slot server has no child.
    """
    ours = dict(processes_of(directory))
    master = next((pid for pid, command in ours.items() if "pilotfish.master" in command), 0)
    agents = {pid: children_of(pid) for pid in ours if pid != master}
    supervisor = next((pid for pid in agents if not any(pid in children for children in agents.values())), 0)
    agent = next((pid for pid in agents.get(supervisor, ()) if pid in agents), 0)
    slots = (slot for monitor in agents.get(agent, ()) for slot in children_of(monitor))
    slot = next((pid for pid in slots if state_of(pid) not in ("Z", "X", "")), 0)
    return {"master": master, "agent": agent, "slot": slot}


def kill(pid: int) -> bool:
    """Send SIGKILL to a process. Return False if the process does not exist."""
    if pid <= 1:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
