"""Checks the proposals of a policy, turns accepted proposals into messages for agents, and stops attempts.

A message contains first the specs that the agent has not received yet, and then the tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pilotfish.core.connections import WorkerConnection
from pilotfish.core.data import intermediate_files, passed_results
from pilotfish.core.policy_interface import AssignmentProposal, CopyProposal, RecallProposal
from pilotfish.core.state import Run, Task, Worker
from pilotfish.core.tasks import multi_node, speculative_copies
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import messages as m
from pilotfish.model.ids import INDEX_BITS, INDEX_MASK
from pilotfish.model.quantities import show_bytes
from pilotfish.model.states import ASSIGNED, JOINED, READY, RUNNING
from pilotfish.model.task import CORES, UNIT, Failure, Payload, sent_bytes

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

BYTES_PER_MESSAGE = 16 * 1024 * 1024
FAILED_DEPENDENCIES = "PILOTFISH_FAILED_DEPENDENCIES"
MAX_PASSED_BYTES = 128 * 1024 * 1024
"""Maximum bytes of a payload that contains results of other calls. This applies to workers that cannot read the files of the master."""
ROW_BYTES = 512
"""Upper estimate of the bytes that describe one file in the header of a message. These bytes count towards BYTES_PER_MESSAGE, because the
header can be as large as the payload."""


# --- checks ----------------------------------------------------------------------------------------------------------------


def can_take(machine: Machine, worker: Worker) -> bool:
    """Returns whether a worker may get tasks: it is connected, not draining and not in quarantine."""
    connection = machine.connections.get(worker.id)
    return connection is not None and connection.link is not None and worker.state == JOINED and not worker.quarantined_until


def _may_assign(machine: Machine, proposal: AssignmentProposal) -> bool:
    """Returns whether each task is ready and fits the worker, and whether the worker has room for all tasks that start immediately."""
    worker = proposal.worker
    if not can_take(machine, worker) or not proposal.tasks:
        return False
    if worker.runs_suspect or (proposal.tasks[0].suspect and (worker.held or len(proposal.tasks) > 1)):
        return False
    if proposal.other_workers:
        return all(can_take(machine, other) for other in proposal.other_workers) and multi_node.is_lawful(proposal, machine.now)
    count = len(proposal.tasks)
    if count > 1 and len(dict.fromkeys(proposal.tasks)) != count:
        return False
    free, now = dict(worker.free), count - proposal.ahead
    shape = None
    for place, task in enumerate(proposal.tasks):
        if task.state != READY or task.shape.run.paused or (place and task.suspect):
            return False
        if task.shape is not shape:
            shape = task.shape
            if not worker.suits(shape, machine.now) or shape.nodes > 1:
                return False
        if place < now:
            for name, amount in task.shape.needs:
                if name == CORES and task.id in proposal.cores:
                    amount = max(amount, round(proposal.cores[task.id] * UNIT))
                free[name] = free.get(name, 0) - amount
                if free[name] < 0:
                    return False
    return True


def _may_copy(machine: Machine, proposal: CopyProposal) -> bool:
    """Returns whether each task may have a speculative copy, and whether the worker has room for all copies."""
    worker = proposal.worker
    if not can_take(machine, worker) or worker.runs_suspect:
        return False
    if not proposal.tasks or len(dict.fromkeys(proposal.tasks)) != len(proposal.tasks):
        return False
    free = dict(worker.free)
    for task in proposal.tasks:
        if task.worker is None or not _may_have_copy(machine, worker, task):
            return False
        for name, amount in speculative_copies.needs_at(task.worker, task):
            free[name] = free.get(name, 0) - amount
            if free[name] < 0:
                return False
    return True


def _may_have_copy(machine: Machine, worker: Worker, task: Task) -> bool:
    """Returns whether a task may have a copy at this worker. A task that possibly ran at a dying worker gets no copy, because the copy
    could kill a second worker."""
    run = task.shape.run
    if task.shape.nodes > 1:
        return False
    if task.state != RUNNING or task.worker is worker or task in machine.state.copies or run.paused or run.options.speculate is False:
        return False
    return not (task.failure_counts is not None and task.failure_counts.deaths) and worker.suits(task.shape, machine.now)


# --- messages --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class AssignmentBuilder:
    """Collects one message: Assign or Delegate. ``known``: specs that the worker has already. ``copies``: whether the tasks are speculative
    copies."""

    known: dict[int, None]
    copies: bool
    specs: list[m.SentSpec] = field(default_factory=list)
    codes: list[Payload] = field(default_factory=list)
    tasks: list[m.SentTask] = field(default_factory=list)
    payloads: list[Payload] = field(default_factory=list)
    size: int = 0


def assign(machine: Machine, proposal: AssignmentProposal) -> bool:
    """Assigns ready tasks to a worker. Returns False if the proposal is refused."""
    worker = proposal.worker
    if not _may_assign(machine, proposal):
        return False
    other_workers = {proposal.tasks[0].id: [other.id for other in proposal.other_workers]} if proposal.other_workers else {}
    machine.record(f.TasksAssigned(worker.id, [task.id for task in proposal.tasks], proposal.ahead, proposal.cores, other_workers))
    send_all(machine, machine.connections[worker.id], proposal.tasks, proposal.cores, m.Assign)
    return True


def duplicate(machine: Machine, proposal: CopyProposal) -> bool:
    """Starts speculative copies of running tasks, with as many cores as the first attempts. Returns False if the proposal is refused."""
    if not _may_copy(machine, proposal):
        return False
    cores: dict[int, float] = {}
    for task in proposal.tasks:
        if task.shape.cores_max and task.worker is not None:
            cores.update((task.id, amount / UNIT) for name, amount in speculative_copies.needs_at(task.worker, task) if name == CORES)
    machine.record(f.TasksDuplicated(proposal.worker.id, [task.id for task in proposal.tasks]))
    send_all(machine, machine.connections[proposal.worker.id], proposal.tasks, cores, m.Assign, copies=True)
    return True


def recall(machine: Machine, proposal: RecallProposal) -> bool:
    """Asks a worker to return those tasks of the proposal that the worker has not started. Returns True (the proposal is accepted) even if
    all tasks have started, because the policy could not know this."""
    worker = proposal.worker
    tasks = [task for task in proposal.tasks if task.worker is worker and task.state == ASSIGNED]
    if machine.link_of(worker.id) is not None and tasks:
        machine.record(f.TasksRecalled(worker.id, [task.id for task in tasks if task not in worker.delegated]))
        machine.send_to_worker(worker.id, m.Recall([(task.id, task.attempt) for task in tasks]))
    return True


def kill(machine: Machine, attempts: Iterable[tuple[Task, Worker, int]]) -> None:
    """Stops these attempts at their workers. A disconnected worker stops its attempts when it reconnects."""
    kills: dict[str, list[tuple[int, int]]] = {}
    for task, worker, number in attempts:
        kills.setdefault(worker.id, []).append((task.id, number))
    for name, items in kills.items():
        machine.send_to_worker(name, m.Kill(items))


def stop_hosted_tasks(machine: Machine, worker: Worker) -> None:
    """Stops the multi-node tasks that occupy a leaving worker. Each task is stopped at the worker that started it."""
    kill(machine, ((task, task.worker, task.attempt) for task in multi_node.hosted_tasks(worker) if task.worker is not None))


def send_all(
    machine: Machine,
    connection: WorkerConnection,
    tasks: list[Task],
    cores: dict[int, float],
    kind: type[m.Assign] | type[m.Delegate],
    copies: bool = False,
) -> None:
    assert connection.link is not None
    known = connection.sent_specs if kind is m.Assign else connection.delegated_specs
    builder = AssignmentBuilder(known, copies)
    for task in tasks:
        if not _add(machine, connection, builder, task, cores.get(task.id, 0.0)):
            _refuse_results(machine, task)
        if builder.size > BYTES_PER_MESSAGE or (task is tasks[-1] and builder.tasks):
            message = kind(builder.specs, builder.tasks)
            machine.effects.append(e.Send(connection.link, message, builder.codes + builder.payloads, not connection.shares))
            builder = AssignmentBuilder(known, copies)


def _refuse_results(machine: Machine, task: Task) -> None:
    """Fails a task whose arguments do not fit into one message."""
    assert task.worker is not None
    text = (
        f"the results of other calls in its arguments have more than {show_bytes(MAX_PASSED_BYTES)} together: combine them in several steps"
    )
    failure = Failure("result", "user", text)
    machine.fail_attempt(f.AttemptFailed(task.worker.id, task.id, failure, "", True, 0, False, False, (0, 0, 0), b""))


def _with_failures(run: Run, task: Task, launch: dict[str, Any]) -> dict[str, Any]:
    """Adds an environment variable to the launch description of a task. A task can wait for the end of other tasks by ``after_any``. The
    variable is the number of these other tasks that failed or were cancelled."""
    return {**launch, "env": {**launch.get("env", {}), FAILED_DEPENDENCIES: str(run.failed_dependencies(task.id & INDEX_MASK))}}


def _add(machine: Machine, connection: WorkerConnection, builder: AssignmentBuilder, task: Task, cores: float) -> bool:
    """Adds a task to a message. Returns False if the arguments of the task are too large."""
    whole = not connection.shares
    run = task.shape.run
    pieces = passed_results.with_results(run, task, whole) if run.expected_files else (task.payload,)
    payload_length = sum([sent_bytes(piece, whole) for piece in pieces])
    if len(pieces) > 1 and payload_length > MAX_PASSED_BYTES:
        return False
    number = run.id << INDEX_BITS | task.spec
    launch = multi_node.with_hosts(machine.state, task) if machine.state.multi_node_workers else None
    if task.id & INDEX_MASK in run.after_any:
        launch = _with_failures(run, task, launch or machine.state.spec_of(task).launch)
    if number not in builder.known or launch is not None:
        builder.known[number] = None
        spec = machine.state.spec_of(task)
        length = sent_bytes(spec.code, whole)
        builder.codes.append(spec.code)
        contents = tuple(record.content for record in run.spec_contents.get(task.spec, ()))
        needs = dict(spec.request.amounts())
        matching = (spec.full_requirement, spec.rank, spec.tags)
        builder.specs.append(m.SentSpec(number, spec.kind, spec.time_s, needs, launch or spec.launch, length, contents, *matching))
        builder.size += length
    memory = task.failure_counts.memory if task.failure_counts else 0
    contents = tuple(record.content for record in task.contents) if task.contents else ()
    attempt = machine.state.copies[task].attempt if builder.copies else task.attempt
    intermediate = tuple(intermediate_files.inputs_of(task)) if run.expected_files or run.earlier_files else ()
    builder.tasks.append(m.SentTask(task.id, attempt, number, payload_length, cores, memory, contents, intermediate))
    builder.payloads.extend(pieces)
    builder.size += payload_length + ROW_BYTES * (len(contents) + len(intermediate))
    return True
