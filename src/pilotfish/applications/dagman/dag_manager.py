"""Runs a DAG whose tasks depend on what happens during the run: creates the tasks of planned sub-DAGs, and aborts DAGs.

The file of a planned sub-DAG is written during the run, by its PRE script or by a parent node. After that, the manager reads the whole DAG
again, now with the file of this sub-DAG, and adds the new tasks. A task that depends on a sub-DAG is not added before the file of the
sub-DAG is read.

After a restart of its process, the manager repeats these steps for the tasks that have ended, in the same order. So each task gets the same
index.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from pilotfish.applications.application_manager import ApplicationManager, TaskDone
from pilotfish.applications.dagman.dag_file import Dag, DagNode, read_dag
from pilotfish.applications.dagman.node_tasks import JOBS_SUFFIX, NodeTask, done_node_names, node_tasks, task_list
from pilotfish.applications.dagman.rescue_file import LATEST, RescueFile, retire_rescues, write_rescue
from pilotfish.applications.executables.executable import Completed, ExecutableFailed
from pilotfish.applications.run_file import RunFile
from pilotfish.applications.task_list import TaskList
from pilotfish.errors import BadInput

MANAGED = "managed"
"""Word in the command of a run whose tasks a DagManager adds."""
DONE = "done"


class DagManager(ApplicationManager):
    """Runs one DAG. ``rescue``: the rescue file that was the latest when the run was submitted. ``awaited``: names of the sub-DAGs whose
    files were not read at that time."""

    def __init__(self, path: str, rescue: RescueFile = LATEST, awaited: Iterable[str] = ()) -> None:
        self._planned: dict[str, str | None] = dict.fromkeys(awaited)
        self.dag = read_dag(path, rescue, self._planned)
        self._path = path
        self._rescue = RescueFile(self.dag.rescue, rescue.written_before)
        self._added: list[NodeTask] = []
        self._indices: dict[str, list[int]] = {}
        self._labels: dict[str, None] = {}
        self._states: dict[int, str] = {}
        self._held: dict[str, set[int]] = {}
        """Maps the label of each FINAL task that cannot be added yet to the unfinished tasks before it. When these have ended, it is known
        whether the DAG was aborted. The script of the FINAL task contains this information."""
        self._aborted: dict[str, int] = {}
        """For each aborted DAG: maps the prefix of its node names to its exit status."""

    def initialize(self, tasks: TaskList) -> None:
        self._grow(tasks)

    @property
    def command(self) -> str:
        """Returns the command of the run, with the data that the manager needs after a restart."""
        return f"{shlex.join(['--dag', self._path])} # rescue {self.dag.rescue} {MANAGED} {shlex.join(self.dag.awaited)}".rstrip()

    def resume(self, done: Sequence[TaskDone]) -> None:
        self._rebuild()
        for ended in done:
            self._end(ended, None)

    def tasks_done(self, done: Sequence[TaskDone], tasks: TaskList) -> None:
        self._rebuild()
        for ended in done:
            self._end(ended, tasks)
        if self._aborted:  # each time, because an earlier cancellation was possibly lost in a restart
            self._cancel(tasks)

    def _rebuild(self) -> None:
        """After a restart, finds the tasks that were added before the restart."""
        if not self._added:
            self._grow(None)

    def finalize(self) -> None:
        """If all tasks succeeded, renames the rescue files. Otherwise, writes a new rescue file."""
        self._rebuild()
        if len(self._added) == sum(state == DONE for state in self._states.values()):
            retire_rescues(self._path)
            return
        done = done_node_names(self.dag, self._added, (index for index, state in self._states.items() if state == DONE))
        known = {task.node.name for task in self._added} | {node.name for node in self.dag.nodes if node.done}
        if rescue := write_rescue(self._path, [name for name in done if name in known]):
            print(f"{rescue} has the nodes that are done")

    # --- one ended task -----------------------------------------------------------------------------------------------------------

    def _end(self, ended: TaskDone, tasks: TaskList | None) -> None:
        task = self._added[ended.index]
        self._states[ended.index] = ended.state
        started = [name for name, start in self.dag.awaited.items() if start == task.key]
        for name in started:
            self._planned.pop(name, None)  # so that the new entry comes last: ``_read`` needs the order
            self._planned[name] = "" if ended.state == DONE else f"the node {task.key} before the sub-DAG {name} failed"
        if started:
            self._grow(tasks)
        status = self._exit_status(task, ended)
        if task.node.abort is not None and status == task.node.abort[0] and task.node.dag not in self._aborted:
            self._abort(task.node, tasks)
        for held in self._held.values():
            held.discard(ended.index)
        if not all(self._held.values()):
            self._grow(tasks)

    def _exit_status(self, task: NodeTask, ended: TaskDone) -> int | None:
        """Returns the exit status that counts for ABORT-DAG-ON, or None if there is none.

        If a node has several jobs and a POST script, the exit statuses of its jobs do not count. The exit status of a failed sub-DAG is 1,
        or the exit status with which ABORT-DAG-ON aborted the sub-DAG.
        """
        if task.node.is_subdag and ended.state != DONE:
            return self._aborted.get(f"{task.node.name}+", 1)
        completed = ended.error.completed if isinstance(ended.error, ExecutableFailed) else ended.value
        return completed.exit if isinstance(completed, Completed) and not task.key.endswith(JOBS_SUFFIX) else None

    def _abort(self, node: DagNode, tasks: TaskList | None) -> None:
        assert node.abort is not None
        value, returned = node.abort
        self._aborted[node.dag] = value if returned is None else returned
        aborted = f"the sub-DAG {node.dag[:-1]}" if node.dag else "the DAG"
        print(f"{node.where}: the node {node.name} ended with exit status {value}, which aborts {aborted}")
        for name in [name for name in self.dag.awaited if name.startswith(node.dag)]:
            self._planned[name] = "the DAG was aborted"
        self._grow(tasks)

    def _cancel(self, tasks: TaskList) -> None:
        """Cancels the unfinished tasks of aborted DAGs. The FINAL nodes of these DAGs run nevertheless."""
        left = (index for index in range(len(self._added)) if index not in self._states)
        tasks.cancel([index for index in left if self._is_aborted(self._added[index].node)])

    def _is_aborted(self, node: DagNode) -> bool:
        return any(node.name.startswith(dag) and not (node.is_final and node.dag == dag) for dag in self._aborted)

    # --- new tasks ----------------------------------------------------------------------------------------------------------------

    def _grow(self, tasks: TaskList | None) -> None:
        """Reads the DAG and adds to ``tasks`` the new tasks that do not depend on an unread sub-DAG. If ``tasks`` is None, these tasks were
        added before a restart, and only their indices are noted."""
        self.dag, found = self._read()
        blocked = dict.fromkeys(self.dag.awaited)
        with_abort = {node.dag for node in self.dag.nodes if node.abort is not None}
        self._held = {}
        for task in found:
            if task.label in self._labels:
                continue
            if any(key in blocked for key in (*task.after, *task.after_any)):
                blocked[task.key] = None
                continue
            if task.node.is_final and task.node.dag in with_abort:
                left = set(self._places(task.after_any)).difference(self._states)
                if left:
                    self._held[task.label] = left
                    blocked[task.key] = None
                    continue
            index = len(self._added)
            if tasks is not None:
                after, after_any = (self._places(keys) for keys in (task.after, task.after_any))
                index = tasks.add(task.argv, after=after, after_any=after_any, **task.options)
                tasks.describe(index, task.command, task.label)
            self._added.append(task)
            self._labels[task.label] = None
            self._indices.setdefault(task.key, []).append(index)

    def _places(self, keys: Iterable[str]) -> list[int]:
        return [index for key in keys for index in self._indices.get(key, ())]

    def _read(self) -> tuple[Dag, list[NodeTask]]:
        """Reads the DAG, with all files of planned sub-DAGs that were written until now. If there is an error, the newest of these files
        counts as wrong, and its sub-DAG fails with this error."""
        for name, start in list(self.dag.awaited.items()):
            if self._planned.get(name) is None and any(node.name == start and node.done for node in self.dag.nodes):
                self._planned[name] = ""  # the rescue file shows that the file of the sub-DAG was written
        while True:
            try:
                dag = read_dag(self._path, self._rescue, self._planned)
                for node in dag.nodes:
                    node.is_aborted = node.dag in self._aborted
                return dag, list(node_tasks(dag))
            except BadInput as problem:
                last = next((name for name in reversed(self._planned) if self._planned[name] == ""), None)
                if last is None:
                    raise
                print(problem, file=sys.stderr)
                self._planned[last] = f"{problem}; {problem.hint}"


def load_dag(path: str | os.PathLike[str], arguments: Sequence[str] = ()) -> RunFile:
    """Loads a DAGMan file as a RunFile. If some tasks depend on what happens during the run, the RunFile has a DagManager. Otherwise, the
    RunFile has the tasks of all nodes that are not done.

    ``arguments``: the words of the run's command in the process of the manager; in any other process, there are none.
    """
    match [*arguments]:
        case []:
            manager = DagManager(os.fspath(path))
        case [name, "#", "rescue", number, "managed", *awaited] if os.path.abspath(name) == os.path.abspath(path):
            manager = DagManager(name, RescueFile(int(number)), awaited)
        case _:
            raise BadInput(f"a DAGMan file takes no arguments, and there are some: {shlex.join(arguments)}", "Leave them out.")
    if manager.dag.needs_manager:
        return RunFile(Path(path).resolve(), None, manager)
    return RunFile(Path(path).resolve(), task_list(manager.dag, list(node_tasks(manager.dag))), None)
