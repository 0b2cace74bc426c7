"""Explains why a task waits for data: which contents are in transfer to or from its worker, and which contents are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilotfish.core.data.data_rows import TransferView, missing, transfers_at
from pilotfish.core.data.replicas import can_get_inputs, needs
from pilotfish.core.explain.reasons import Reason, count, make_reason
from pilotfish.core.state import ContentRecord, Task
from pilotfish.model.ids import run_of, show_task
from pilotfish.model.quantities import show_bytes, show_seconds
from pilotfish.model.states import ASSIGNED, DRAINING

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine


def waits_for_inputs(machine: Machine, task: Task) -> Reason | None:
    """Returns why an assigned task waits for inputs; None if its worker has all of them."""
    if task.state != ASSIGNED or task.worker is None or task in task.worker.delegated:
        return None
    absent = missing(task)
    if not absent:
        return None
    coming = {transfer.digest: transfer for transfer in transfers_at(machine, task.worker) if not transfer.to_master}
    first = max(absent, key=lambda record: (record.digest in coming, record.size))
    others = f"; {count(len(absent) - 1, 'other')} of its inputs {'is' if len(absent) == 2 else 'are'} not there yet" if absent[1:] else ""
    what = f"its input {_name(task, first)} ({show_bytes(first.size)})"
    if first.digest in coming:
        text = f"{what} is in transfer to worker {task.worker.id}: {progress_text(coming[first.digest])}{others}"
    else:
        text = f"{what} is not at worker {task.worker.id} yet{others}"
    return make_reason("staging", text, f"pilotfish data {task.shape.run.id}")


def waits_for_outputs(machine: Machine, task: Task) -> Reason | None:
    """Explains that output files are in transfer from the task's worker to the master. Returns None if no files are in transfer.

    The files can be outputs of other tasks of this worker: until a file arrives, the master does not know which task made the file. This
    function does not check whether the task runs, because the master learns only from the next heartbeat that a task runs.
    """
    if task.worker is None or task in task.worker.delegated:
        return None
    going = [transfer for transfer in transfers_at(machine, task.worker) if transfer.to_master]
    if not going:
        return None
    slowest = max(going, key=lambda transfer: transfer.size - transfer.done)
    are = "is" if len(going) == 1 else "are"
    what = f"{count(len(going), 'file')} that tasks at worker {task.worker.id} made {are} in transfer to the master"
    if machine.journal_full or machine.output_space_problem:
        full = machine.output_space_problem or "the master's disk is full"
        return make_reason("disk-full", f"{what}, and waits for room: {full}", "pilotfish doctor")
    return make_reason("sending", f"{what}: {show_bytes(slowest.size)}, {progress_text(slowest)}", f"pilotfish data {task.shape.run.id}")


def lost_input(machine: Machine, task: Task) -> Reason | None:
    """Explains that an input is lost: it was kept only at a worker, and no present worker has it. Returns None if no input is lost."""
    record = next((record for record in needs(task) if record.is_nowhere), None)
    if record is None:
        return None
    text = f"its input {_name(task, record)} ({show_bytes(record.size)}) was kept where it was made, and no present worker has it"
    again = "pilotfish workers  (a new worker on that node has it in its cache)"
    return _kept_input_reason(machine, "lost-input", text, record, again)


def kept_elsewhere(machine: Machine, task: Task) -> Reason | None:
    """Explains why a task waits although suitable workers have room: an input of the task is available only at sites where no suitable
    worker has room. Returns None if no suitable worker has room at all, or if a suitable worker with room can get all inputs."""
    state = machine.state
    taking = (worker for worker in state.workers.values() if worker.state < DRAINING and not worker.quarantined_until)
    present = (worker for worker in taking if machine.link_of(worker.id) is not None)
    able = [worker for worker in present if worker.suits(task.shape, machine.now) and worker.fits(task.shape.needs)]
    if not able or any(can_get_inputs(state, task, worker.site) for worker in able):
        return None
    kept = [record for record in task.contents if record.holders and not (record.at_master or record.path)]
    record = max(kept, key=lambda record: record.size)
    sites = " and ".join(dict.fromkeys(state.workers[worker].site or worker for worker in record.holders))
    what = f"its input {_name(task, record)} ({show_bytes(record.size)})"
    text = f"{what} was kept at {sites} and is available only there, where no worker has a free core now"
    return _kept_input_reason(machine, "kept-elsewhere", text, record, "pilotfish workers")


def _kept_input_reason(machine: Machine, code: str, text: str, record: ContentRecord, *commands: str) -> Reason:
    maker = machine.state.find_task(record.maker) if record.maker else None
    if maker is not None:
        text += f": task {show_task(maker.id)} made it"
        command = machine.state.runs[run_of(maker.id)].options.command.removeprefix("-- ")
        commands = (*commands, f"make it again: pilotfish run ... {command}".rstrip())
    return make_reason(code, text, *commands, "name it with --output (outputs=[...] in Python) instead of --keep, and it is copied back")


def fixes_for_missing_input(machine: Machine, task: Task) -> list[str]:
    """Returns fixes for a task that failed because an input was missing."""
    assert task.failure is not None
    lost = lost_input(machine, task)
    if lost is not None:
        return list(lost.commands)
    record = _kept_missing_input(task)
    if record is not None:
        return list(_kept_input_reason(machine, "", "", record, f"pilotfish data {task.shape.run.id}").commands)
    return [f"pilotfish data {task.shape.run.id}", f"pilotfish rerun {task.shape.run.id} --failed"]


def maker_of_missing(task: Task) -> str:
    """Returns the last part of a failure message: which task made the missing input. Returns an empty text if no task made this input, or
    if the master has the input."""
    record = _kept_missing_input(task)
    if record is None:
        return ""
    name = _known_name(task, record)
    return f"; {f'it is {name}, which' if name else 'it'} was made by task {show_task(record.maker)}"


def _kept_missing_input(task: Task) -> ContentRecord | None:
    """Returns the input that a failed attempt did not find, if a task made the input and the master has no copy; otherwise None."""
    message = task.failure.message if task.failure is not None else ""
    kept = [record for record in needs(task) if record.maker and not (record.at_master or record.path)]
    return next((record for record in kept if record.digest[:12] in message), None)


def progress_text(transfer: TransferView) -> str:
    percent = f"{100 * transfer.done // transfer.size if transfer.size else 100} %"
    if transfer.done >= transfer.size:
        return f"{percent}, and is being checked"
    if transfer.rate is None or not transfer.done:
        return percent
    if not transfer.rate or transfer.eta_s is None:
        return f"{percent}, and nothing arrived recently"
    return f"{percent}, {show_bytes(transfer.rate)}/s, about {show_seconds(max(1, round(transfer.eta_s)))}"


def _name(task: Task, record: ContentRecord) -> str:
    return _known_name(task, record) or f"{record.digest[:12]}…"


def _known_name(task: Task, record: ContentRecord) -> str:
    if record.path:
        return record.path.rpartition("/")[2]
    entries = task.shape.run.specs[task.spec].launch.get("inputs", ())
    return next((str(entry[0]) for entry in entries if record.digest in entry[2:3]), "")
