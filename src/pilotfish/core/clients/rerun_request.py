"""Carries out the request ``rerun``: executes failed and cancelled tasks of a run again, with the files and limits that the client sends.

First, the client asks which tasks will run (``rerunnable``). The client then reads the input files of these tasks again. With ``rerun``, it
sends the specs and payloads that have changed. All other tasks keep their specs and payloads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from pilotfish.core.clients.submission_checks import check_contents, check_spec, refuse_if_full
from pilotfish.core.data import stored_results
from pilotfish.core.explain import lookup
from pilotfish.core.state import Run, Task
from pilotfish.core.tasks import reruns
from pilotfish.core.workers import agent_messages
from pilotfish.errors import BadInput
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model.contents import KEY_BYTES, Content
from pilotfish.model.ids import INDEX_MASK, show_task
from pilotfish.model.states import DONE, TASK_STATES
from pilotfish.model.task import Payload, RunOptions, StoredPayload, TaskSpec

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine


class ChangedSpec(msgspec.Struct, array_like=True):
    """A spec that replaces the spec ``origin`` for the rerun tasks. ``has_code``: whether the request contains the code of the new spec; if
    not, the new spec has the code of the spec ``origin``."""

    origin: int
    spec: TaskSpec
    has_code: bool


class ChangedInput(msgspec.Struct, array_like=True):
    """A task that gets a new payload. ``contents``: the large files that the payload names."""

    index: int
    contents: tuple[Content, ...]


class Changes(msgspec.Struct):
    """The changes for the tasks that run again. The payloads of the request are first the codes of those ``specs`` that have code, then the
    payloads of ``inputs``."""

    specs: list[ChangedSpec] = []
    inputs: list[ChangedInput] = []
    keys: list[tuple[int, bytes]] = []
    """New records of tasks (see ``core/data/stored_results.py``), each with the index of its task."""
    sites: tuple[str, ...] | None = None
    """Sites where the tasks of the run are allowed to run from now on; None: no change."""


def rerunnable(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the tasks that a request ``rerun`` with the same arguments would run.

    * ``tasks``: index and number of the spec of each of these tasks.
    * ``specs``: the specs of these tasks, without code.
    * ``keys``: the records of these tasks, each with the index of its task. Tasks without a record are left out.
    * ``needs``: see ``reruns.needs``; empty if ``keys`` is empty.
    * ``deleted``: number of other tasks that should run again but cannot, because their payloads no longer exist.
    """
    run = lookup.find_run(machine.state, arguments.get("run"))
    tasks, deleted = _choose(machine, run, arguments)
    specs = {str(number): msgspec.structs.replace(run.specs[number], code=b"") for number in {task.spec: None for task in tasks}}
    rows = [[task.id & INDEX_MASK, task.spec] for task in tasks]
    keys = [(index, record) for index, _ in rows if (record := stored_results.record_of(run, index))]
    needs = list(reruns.needs(run, tasks)) if keys else []
    return {"run": run.id, "tasks": rows, "specs": specs, "deleted": deleted, "keys": keys, "needs": needs}


def rerun(machine: Machine, arguments: dict[str, Any], payloads: list[Payload]) -> dict[str, int]:
    run = lookup.find_run(machine.state, arguments.get("run"))
    refuse_if_full(machine)
    tasks, deleted = _choose(machine, run, arguments)
    changes = _read_changes(arguments)
    specs = list(_new_specs(machine, run, changes, payloads))
    fact = _make_fact(machine, run, tasks, changes, payloads[len(payloads) - len(changes.inputs) :])
    # From here on, refuse nothing.
    ends = len(run.ended)
    options = _options(machine, run, changes)
    if options != run.options:
        machine.record(f.RunOptionsChanged(run.id, options))
    for changed, spec in zip(changes.specs, specs, strict=True):
        if not changed.has_code and isinstance(spec.code, StoredPayload):
            machine.effects.append(e.KeepPayload(spec.code))
    for task in tasks:
        machine.release_payload(task.output)
        if task.id in fact.payloads:
            machine.release_payload(task.payload)
    if specs:
        machine.record(f.SpecsAdded(run.id, len(run.specs), specs))
    machine.record(fact)
    contents = (content for group in (*(spec.contents for spec in specs), *fact.contents.values()) for content in group)
    agent_messages.record_known_holders(machine, (content.digest for content in contents))
    return {"run": run.id, "tasks": len(tasks), "ends": ends, "deleted": deleted}


def _choose(machine: Machine, run: Run, arguments: dict[str, Any]) -> tuple[list[Task], int]:
    """Returns two values: the tasks that will run again, and the number of tasks that should run again but cannot, because their payloads
    no longer exist."""
    _require_closed(run)
    names, state = arguments.get("tasks"), arguments.get("state")
    if names is not None:
        return reruns.with_dependencies(run, _named(machine, run, names)), 0
    if state not in (None, "failed", "cancelled"):
        raise BadInput(f"state {state!r} is neither failed nor cancelled", "Only failed and cancelled tasks run again")
    wanted = reruns.UNSUCCESSFUL if state is None else (TASK_STATES.index(state),)
    found = [task for task in run.tasks if task.state in wanted and not reruns.is_skipped(task)]
    chosen = [task for task in found if reruns.has_payload(task)]
    if not chosen:
        what = state or "failed or cancelled"
        if found:
            raise BadInput(f"the arguments of the {what} tasks of run {run.id} were deleted", "Start its program again")
        done = run.counts[DONE]
        raise BadInput(f"run {run.id} has no {what} task ({done} done)", f"See its tasks: pilotfish tasks {run.id}")
    return reruns.with_dependencies(run, chosen), len(found) - len(chosen)


def _require_closed(run: Run) -> None:
    """Refuses a run to which a client can still send tasks. A run that has not ended is also refused in two cases: a client owns the run,
    or some of its tasks wait for other tasks to end with any result (``after_any``)."""
    hint = f"Wait until it has ended: pilotfish attach {run.id}"
    if not run.closed or (run.options.owned and not run.finished):
        raise BadInput(f"run {run.id} is still open: its program may send more tasks", hint)
    if run.after_any and not run.finished:
        raise BadInput(f"run {run.id} has not ended, and some of its tasks run after any end of others", hint)


def _named(machine: Machine, run: Run, names: Any) -> Iterator[Task]:
    if not isinstance(names, list) or not names:
        raise BadInput(f"tasks: {names!r} is not a list of tasks", 'write it as ["3.17"]')
    for name in names:
        task = lookup.find_task(machine.state, name)
        if task.shape.run is not run:
            raise BadInput(f"task {show_task(task.id)} is not of run {run.id}", "Rerun the tasks of one run at a time")
        if task.state not in reruns.UNSUCCESSFUL:
            hint = "Only failed and cancelled tasks run again" + ("; start the run again" if task.state == DONE else "")
            raise BadInput(f"task {show_task(task.id)} is {TASK_STATES[task.state]}", hint)
        if not reruns.has_payload(task):
            raise BadInput(f"the arguments of task {show_task(task.id)} were deleted", "Start its program again")
        yield task


def _read_changes(arguments: dict[str, Any]) -> Changes:
    try:
        return msgspec.convert(arguments.get("changes", {}), Changes)
    except msgspec.ValidationError as problem:
        raise BadInput(f"changes: {problem}", "use the same version of Pilotfish on both sides") from problem


def _new_specs(machine: Machine, run: Run, changes: Changes, payloads: list[Payload]) -> Iterator[TaskSpec]:
    codes = [place for place, changed in enumerate(changes.specs) if changed.has_code]
    if len(payloads) != len(codes) + len(changes.inputs):
        raise BadInput(f"{len(payloads)} payloads for {len(codes)} specs and {len(changes.inputs)} inputs", "send one for each")
    new = dict(zip(codes, payloads, strict=False))
    for place, changed in enumerate(changes.specs):
        if not 0 <= changed.origin < len(run.specs):
            raise BadInput(f"run {run.id} has no spec {changed.origin}", "use the specs of its tasks")
        check_contents(machine, changed.spec.contents)
        yield check_spec(msgspec.structs.replace(changed.spec, code=new.get(place, run.specs[changed.origin].code)))


def _make_fact(machine: Machine, run: Run, tasks: list[Task], changes: Changes, payloads: list[Payload]) -> f.TasksRerun:
    again = {task.id & INDEX_MASK: task for task in tasks}
    for changed in changes.inputs:
        if changed.index not in again:
            raise BadInput(f"an input is given for task {run.id}.{changed.index}, which does not run again", "try again")
        check_contents(machine, changed.contents)
    if any(len(record) != KEY_BYTES or index not in again or index * KEY_BYTES >= len(run.keys) for index, record in changes.keys):
        raise BadInput(
            f"keys: some are not records of tasks of run {run.id} that run again", "use the same version of Pilotfish on both sides"
        )
    numbers = {changed.origin: len(run.specs) + place for place, changed in enumerate(changes.specs)}
    return f.TasksRerun(
        run.id,
        [task.id for task in tasks],
        {task.id: numbers[task.spec] for task in tasks if task.spec in numbers},
        {again[changed.index].id: payload for changed, payload in zip(changes.inputs, payloads, strict=True)},
        {again[changed.index].id: changed.contents for changed in changes.inputs},
        {again[index].id: record for index, record in changes.keys},
    )


def _options(machine: Machine, run: Run, changes: Changes) -> RunOptions:
    """Returns the options of the run from now on. The run has no owner any more. If the deadline has passed, it is removed."""
    options = run.options
    deadline = options.deadline if options.deadline > machine.now else 0.0
    sites = options.sites if changes.sites is None else changes.sites
    return msgspec.structs.replace(options, owned=False, deadline=deadline, sites=sites)
