"""From an accepted proposal to the words that the agent gets: what it must know of specs it has not seen, then the tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilotfish.core.presence import Presence
from pilotfish.core.proposals import Proposal
from pilotfish.core.state import Task
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import messages as m
from pilotfish.model.ids import INDEX_BITS, run_of
from pilotfish.model.task import Payload, sent_bytes

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

BYTES_PER_MESSAGE = 16 * 1024 * 1024


class Parcelling:
    """One Assign in the making."""

    def __init__(self) -> None:
        self.specs: list[m.SentSpec] = []
        self.codes: list[Payload] = []
        self.tasks: list[m.SentTask] = []
        self.payloads: list[Payload] = []
        self.size = 0


def assign(machine: Machine, proposal: Proposal) -> None:
    worker = proposal.worker
    machine.record(f.TasksAssigned(worker.id, [task.id for task in proposal.tasks], proposal.ahead, proposal.cores))
    presence = machine.presence[worker.id]
    parcelling = Parcelling()
    for task in proposal.tasks:
        _add(machine, presence, parcelling, task, proposal.cores.get(task.id, 0.0))
        if parcelling.size > BYTES_PER_MESSAGE:
            _send(machine, presence, parcelling)
            parcelling = Parcelling()
    if parcelling.tasks:
        _send(machine, presence, parcelling)


def _add(machine: Machine, presence: Presence, parcelling: Parcelling, task: Task, cores: float) -> None:
    whole = not presence.shares
    number = run_of(task.id) << INDEX_BITS | task.spec
    if number not in presence.sent_specs:
        presence.sent_specs[number] = None
        spec = machine.state.spec_of(task)
        length = sent_bytes(spec.code, whole)
        parcelling.codes.append(spec.code)
        parcelling.specs.append(m.SentSpec(number, spec.kind, spec.time_s, dict(spec.request.amounts()), spec.launch, length))
        parcelling.size += length
    length = sent_bytes(task.payload, whole)
    memory = task.troubles.memory if task.troubles else 0
    parcelling.tasks.append(m.SentTask(task.id, task.attempt, number, length, cores, memory))
    parcelling.payloads.append(task.payload)
    parcelling.size += length


def _send(machine: Machine, presence: Presence, parcelling: Parcelling) -> None:
    assert presence.link is not None
    message = m.Assign(parcelling.specs, parcelling.tasks)
    machine.effects.append(e.Send(presence.link, message, parcelling.codes + parcelling.payloads, not presence.shares))
