"""Writes rescue files after a DAG run, so that the next run of the DAG skips the finished DAG nodes.

If all tasks of the run have succeeded, the rescue files are renamed instead, so that the next run starts from the beginning.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from pilotfish.applications.dagman.dag_file import Dag, read_dag
from pilotfish.applications.dagman.dag_manager import MANAGED
from pilotfish.applications.dagman.node_tasks import NodeTask, done_node_names, node_tasks
from pilotfish.applications.dagman.rescue_file import LATEST, RescueFile, done_nodes, retire_rescues, write_rescue
from pilotfish.cli.run_commands.attach_command import RunOutcome
from pilotfish.cli.terminal.screen import Screen, clean
from pilotfish.client.descriptions.task_descriptions import described_rows
from pilotfish.client.session import PoolSession, all_tasks
from pilotfish.errors import BadInput

PART_OF_NODE = re.compile(r"[.](PRE|POST|[0-9]+)$")
"""End of the label of a task that is only a part of a DAG node."""
EXIT_STATUS = re.compile(r"exit status ([0-9]+)$")
"""End of the failure message of a task whose program returned an exit status."""


def decide_outcome(dag: Dag, master: PoolSession, outcome: RunOutcome, quiet: bool) -> None:
    """Set the exit status of a DAG as DAGMan does. A FINAL node sets the exit status. Without a FINAL node, an abort by ABORT-DAG-ON sets
    it. In all other cases, the exit status depends on all nodes."""
    final = next((node.name for node in dag.nodes if node.is_final and not node.dag), None)
    aborting = {node.name: node.abort for node in dag.nodes if node.abort is not None and not node.dag}
    if outcome.left or not (final or aborting) or not outcome.bad + bool(aborting):
        return
    ended: dict[str, dict[str, Any]] = {}
    run = master.ask("run", run=outcome.run)
    for row in described_rows(master, run, all_tasks(master, outcome.run)):
        name = PART_OF_NODE.sub("", row["label"] or "")
        if name == final or name in aborting:
            ended[name] = row
    notes = []
    for name, abort in aborting.items():
        if abort is not None and name in ended and _exit_status(ended[name]) == abort[0]:
            outcome.exit_status = abort[0] if abort[1] is None else abort[1]
            notes.append(f"the node {name} ended with exit status {abort[0]}, which aborted the DAG")
    if final in ended:
        succeeded = ended[final]["state"] == "done"
        outcome.exit_status = 0 if succeeded else 1
        notes.append(
            f"the FINAL node {final} {'succeeded' if succeeded else 'failed'}, so the DAG {'succeeded' if succeeded else 'failed'}"
        )
    for note in () if quiet else notes:
        Screen.of(sys.stderr).line(f"note: {clean(note)}")


def _exit_status(row: dict[str, Any]) -> int | None:
    if row["state"] == "done":
        return 0
    found = EXIT_STATUS.search(row["failure"]["message"]) if row["failure"] else None
    return int(found[1]) if found else None


def keep_rescue(dag: Dag, tasks: Sequence[NodeTask], master: PoolSession, outcome: RunOutcome, quiet: bool) -> None:
    if outcome.left:
        return
    decide_outcome(dag, master, outcome, quiet)
    if outcome.counts.get("done", 0) == outcome.tasks:
        retire_rescues(dag.path)
        return
    if len(tasks) != outcome.tasks:  # the run is incomplete, or an older version of Pilotfish did the rerun
        return
    done = done_node_names(dag, tasks, (row["index"] for row in all_tasks(master, outcome.run, "done")))
    rescue = write_rescue(dag.path, done) if done else None
    if rescue is not None and not quiet:
        Screen.of(sys.stderr).line(
            f"note: {clean(str(rescue))} has the nodes that are done: pilotfish run {clean(dag.path)} runs the others"
        )


def keep_rescue_of(master: PoolSession, row: dict[str, Any], outcome: RunOutcome, quiet: bool) -> None:
    """Write the rescue file for a run that an earlier command started. Write nothing if a file of the DAG was changed after the start of
    the run.

    If the run has a manager, the manager has already written a rescue file. But the manager does not take part in reruns. So after a rerun
    that finished more DAG nodes, write a new rescue file.
    """
    words = _words(row)
    if not words or outcome.left:
        return
    with contextlib.suppress(BadInput, OSError, ValueError), contextlib.chdir(row["cwd"]):
        dag = read_dag(words[1], RescueFile(int(words[4]) if len(words) > 4 else 0, row["opened_at"]))
        if MANAGED in words[5:]:
            decide_outcome(dag, master, outcome, quiet)
            _update_rescue(dag, master, outcome)
        elif all(os.stat(path).st_ctime <= row["opened_at"] for path in dag.files):
            keep_rescue(dag, list(node_tasks(dag)), master, outcome, quiet)


def _update_rescue(dag: Dag, master: PoolSession, outcome: RunOutcome) -> None:
    """Write a new rescue file after a rerun that finished more DAG nodes. If all nodes are done, rename the rescue files instead."""
    if outcome.counts.get("done", 0) == outcome.tasks:
        retire_rescues(dag.path)
        return
    states: dict[str, set[str]] = {}
    for row in described_rows(master, master.ask("run", run=outcome.run), all_tasks(master, outcome.run)):
        label = row["label"] or ""
        states.setdefault(PART_OF_NODE.sub("", label), set()).add(row["state"])
    done = [node.name for node in dag.nodes if not node.is_final and (node.done or states.get(node.name) == {"done"})]
    _, before = done_nodes(dag.path, done, LATEST, ("",))
    if done and set(done) != set(before):
        write_rescue(dag.path, done)


def _words(row: dict[str, Any]) -> list[str]:
    """Split the recorded command of a DAG run, such as ``--dag FILE # rescue 2``, into words. If the run is no DAG run, return no words."""
    try:
        words = shlex.split(row["command"])
    except ValueError:
        return []
    return words if words[:1] == ["--dag"] and len(words) > 1 else []
