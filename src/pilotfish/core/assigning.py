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
    """One Assign or Lend in the making. ``known``: the specs that have been sent."""

    def __init__(self, known: dict[int, None]) -> None:
        self.known = known
        self.specs: list[m.SentSpec] = []
        self.codes: list[Payload] = []
        self.tasks: list[m.SentTask] = []
        self.payloads: list[Payload] = []
        self.size = 0


def assign(machine: Machine, proposal: Proposal) -> None:
    worker = proposal.worker
    machine.record(f.TasksAssigned(worker.id, [task.id for task in proposal.tasks], proposal.ahead, proposal.cores))
    send_all(machine, machine.presence[worker.id], proposal.tasks, proposal.cores, m.Assign)


def send_all(machine: Machine, presence: Presence, tasks: list[Task], cores: dict[int, float], kind: type[m.Assign] | type[m.Lend]) -> None:
    known = presence.sent_specs if kind is m.Assign else presence.lent_specs
    parcelling = Parcelling(known)
    for task in tasks:
        _add(machine, presence, parcelling, task, cores.get(task.id, 0.0))
        if parcelling.size > BYTES_PER_MESSAGE:
            _send(machine, presence, parcelling, kind)
            parcelling = Parcelling(known)
    if parcelling.tasks:
        _send(machine, presence, parcelling, kind)


def _add(machine: Machine, presence: Presence, parcelling: Parcelling, task: Task, cores: float) -> None:
    whole = not presence.shares
    number = run_of(task.id) << INDEX_BITS | task.spec
    if number not in parcelling.known:
        parcelling.known[number] = None
        spec = machine.state.spec_of(task)
        length = sent_bytes(spec.code, whole)
        parcelling.codes.append(spec.code)
        contents = tuple(record.content for record in task.shape.run.spec_contents.get(task.spec, ()))
        needs = dict(spec.request.amounts())
        words = (spec.requirement, spec.rank, spec.tags)
        parcelling.specs.append(m.SentSpec(number, spec.kind, spec.time_s, needs, spec.launch, length, contents, *words))
        parcelling.size += length
    length = sent_bytes(task.payload, whole)
    memory = task.troubles.memory if task.troubles else 0
    contents = tuple(record.content for record in task.contents) if task.contents else ()
    parcelling.tasks.append(m.SentTask(task.id, task.attempt, number, length, cores, memory, contents))
    parcelling.payloads.append(task.payload)
    parcelling.size += length


def _send(machine: Machine, presence: Presence, parcelling: Parcelling, kind: type[m.Assign] | type[m.Lend]) -> None:
    assert presence.link is not None
    message = kind(parcelling.specs, parcelling.tasks)
    machine.effects.append(e.Send(presence.link, message, parcelling.codes + parcelling.payloads, not presence.shares))
