"""Writes rescue files after a DAG run, so that the next run of the DAG skips the finished DAG nodes. Retires them after a complete run."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from typing import Any

from pilotfish.applications.dagman.dag_file import Dag, read_dag
from pilotfish.applications.dagman.rescue_file import RescueFile, retire_rescues, write_rescue
from pilotfish.cli.commands.attach_command import RunOutcome
from pilotfish.cli.terminal.screen import Screen, clean
from pilotfish.client.session import PoolSession, all_tasks
from pilotfish.errors import BadInput


def keep_rescue(dag: Dag, master: PoolSession, outcome: RunOutcome, quiet: bool) -> None:
    if outcome.left:
        return
    if outcome.counts.get("done", 0) == outcome.tasks:
        retire_rescues(dag.path)
        return
    run = [node.name for node in dag.nodes if not node.done]
    if len(run) != outcome.tasks:  # the run was a rerun of some DAG nodes
        return
    done = [node.name for node in dag.nodes if node.done] + [run[row["index"]] for row in all_tasks(master, outcome.run, "done")]
    rescue = write_rescue(dag.path, done) if done else None
    if rescue is not None and not quiet:
        Screen.of(sys.stderr).line(
            f"note: {clean(str(rescue))} has the nodes that are done: pilotfish run {clean(dag.path)} runs the others"
        )


def keep_rescue_of(master: PoolSession, row: dict[str, Any], outcome: RunOutcome, quiet: bool) -> None:
    """Write the rescue file for a run that another command started. If its DAG file was changed after the start, write nothing."""
    words = _words(row)
    if not words or outcome.left:
        return
    with contextlib.suppress(BadInput, OSError, ValueError), contextlib.chdir(row["cwd"]):
        dag = read_dag(words[1], RescueFile(int(words[-1]) if len(words) > 2 else 0, row["opened_at"]))
        if all(os.stat(path).st_ctime <= row["opened_at"] for path in dag.files):
            keep_rescue(dag, master, outcome, quiet)


def retire_rescues_of(row: dict[str, Any], outcome: RunOutcome) -> None:
    """Retire the rescue files if all tasks of the rerun are done."""
    words = _words(row)
    if words and not outcome.left and outcome.counts.get("done", 0) == outcome.tasks:
        with contextlib.suppress(OSError), contextlib.chdir(row["cwd"]):
            retire_rescues(words[1])


def _words(row: dict[str, Any]) -> list[str]:
    """Return the words of the command of a DAG run, such as ``--dag FILE # rescue 2``. For other runs, return no words."""
    try:
        words = shlex.split(row["command"])
    except ValueError:
        return []
    return words if words[:1] == ["--dag"] and len(words) > 1 else []
