"""Keeps the site master of each site: the elected agent that assigns delegated tasks.

A site master gets many tasks at once and assigns them to the workers that it serves. It reports to the master which workers it serves, and
which worker got which task. Served workers need not send heartbeats to the master. Workers that no site master serves get their tasks
directly from the master.

The master accepts a report about an attempt only from the site master to which this attempt is delegated. So if two agents believe that
they are the site master, at most one report about an attempt counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from pilotfish.core.policy_interface import DelegationProposal
from pilotfish.core.state import Task, Worker
from pilotfish.core.tasks import assignment, speculative_copies
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import messages as m
from pilotfish.model.settings import AUTO, DISTRIBUTED
from pilotfish.model.states import JOINED, READY

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

REPORT_VALID_S = 40.0
"""A report of a site master extends the leases of the workers that it serves. These leases then end at least this many seconds after the
report. A site master sends a report every ten seconds."""
MAX_CONTACTS = 20
"""Maximum peers whose addresses a new worker gets."""


@dataclass(slots=True)
class SiteMasterTerm:
    """The site master of a site in one term. ``served``: the workers that it serves, which can include the site master itself."""

    worker: str
    number: int
    served: dict[str, None] = field(default_factory=dict)
    expects_full_list: bool = False
    """Whether the next report of the site master names all workers that it serves."""


class SiteMasters:
    """Holds the site master of each site. Site masters are not part of the state, because the site masters themselves report again after a
    restart of the master."""

    def __init__(self) -> None:
        self.by_site: dict[str, SiteMasterTerm] = {}

    def of(self, worker: Worker) -> SiteMasterTerm | None:
        """Returns the term of this worker if it is the site master of its site; otherwise None."""
        term = self.by_site.get(worker.site)
        return term if term is not None and term.worker == worker.id else None

    def divide(self, workers: list[Worker]) -> tuple[list[tuple[Worker, list[Worker]]], list[Worker]]:
        """Divides workers into two parts: site masters, each with the workers that it serves, and the other workers.

        If a site master is not in ``workers``, the workers that it serves are among the other workers. The other workers get their tasks
        directly from the master.
        """
        able = {worker.id: worker for worker in workers}
        found = []
        for term in self.by_site.values():
            site_master = able.get(term.worker)
            if site_master is not None and (served := [able.pop(name) for name in term.served if name in able]):
                found.append((site_master, served))
        return (found, list(able.values())) if found else ([], workers)


def needs_site_master(machine: Machine, site: str) -> bool:
    wanted = machine.settings.matching
    if wanted != AUTO:
        return wanted == DISTRIBUTED
    there = (worker for worker in machine.state.workers.values() if worker.site == site and worker.state == JOINED)
    return next(islice(there, machine.large_site - 1, None), None) is not None


def term_and_address(machine: Machine, worker: Worker) -> tuple[int, Any]:
    """Returns the number of the current term of the worker's site, and the address of the site master; (0, None) if the site needs no site
    master. If the site needs a site master, but has none that is connected and has an address for peers, this worker becomes the site
    master."""
    if not needs_site_master(machine, worker.site):
        return 0, None
    term = machine.site_masters.by_site.get(worker.site)
    connection = machine.connections.get(term.worker) if term is not None else None
    if term is None or connection is None or connection.peer is None:
        term = machine.site_masters.by_site[worker.site] = SiteMasterTerm(worker.id, 1 if term is None else term.number + 1)
        connection = machine.connections[worker.id]
    return term.number, connection.peer


def introduce(machine: Machine, worker: Worker) -> None:
    """Sends a worker the addresses of the workers that joined its site last. The latest workers will probably stay longest. If ``worker``
    itself has no address for peers, sends nothing: this worker cannot be a site master, and its delegated tasks are requeued."""
    connection = machine.connections[worker.id]
    if connection.peer is None:
        _requeue_delegated(machine, worker, "it is no longer the master of its site")
        return
    others = (other for other in reversed(machine.state.workers.values()) if other is not worker and other.site == worker.site)
    present = (machine.connections[other.id] for other in others if other.id in machine.connections)
    contacts = (other.peer for other in present if other.peer is not None and other.link is not None)
    if connection.link is not None:
        latest = list(islice(contacts, MAX_CONTACTS))
        machine.effects.append(e.IntroducePeer(connection.link, worker.site, latest, *term_and_address(machine, worker)))


def claimed(machine: Machine, worker: Worker, term: int) -> None:
    """Handles the claim of a worker to be site master. The next report of this worker must name all workers that it serves, because the
    master possibly missed earlier reports."""
    if accept_claim(machine, worker, term):
        machine.site_masters.by_site[worker.site].expects_full_list = True


def worker_connected(machine: Machine, worker: Worker) -> None:
    """Turns off the heartbeats of a newly connected worker if a site master serves it. A served worker reports to the site master."""
    term = machine.site_masters.by_site.get(worker.site)
    if term is not None and worker.id in term.served:
        _set_heartbeats(machine, worker.id, True)


def accept_claim(machine: Machine, worker: Worker, term: int) -> bool:
    """Handles the claim of a worker to be the site master of its site in this term. If the claim is accepted, the term of the former site
    master ends, and the function returns True. The claim is refused if a different site master has a later term, or an equal term and a
    lower peer id. The function then returns False. It also returns False for term 0, which means that the worker is no longer the site
    master: its term ends, and its delegated tasks are requeued."""
    by_site = machine.site_masters.by_site
    known = by_site.get(worker.site)
    if not term:
        if known is not None and known.worker == worker.id:
            end_term(machine, known)
            del by_site[worker.site]
        _requeue_delegated(machine, worker)
        return False
    if known is not None and known.worker != worker.id:
        if _claim_rank(machine, known.worker, known.number) > _claim_rank(machine, worker.id, term):
            return False
        end_term(machine, known)
        known = None
    if known is None:
        known = by_site[worker.site] = SiteMasterTerm(worker.id, term)
        machine.decide_again = True
    known.number = term
    return True


def _claim_rank(machine: Machine, name: str, term: int) -> tuple[int, int]:
    connection = machine.connections.get(name)
    node = int(connection.peer[0], 16) if connection is not None and connection.peer is not None else 1 << 256
    return term, -node


def end_term(machine: Machine, term: SiteMasterTerm) -> None:
    """Ends a term: requeues delegated tasks that no worker got, and turns on the heartbeats of the served workers."""
    worker = machine.state.workers.get(term.worker)
    if worker is not None:
        _requeue_delegated(machine, worker)
    for name in term.served:
        _set_heartbeats(machine, name, False)
    term.served.clear()


def _requeue_delegated(machine: Machine, worker: Worker, reason: str = "its site has another master") -> None:
    if worker.delegated:
        machine.record(f.TasksReturned(worker.id, [task.id for task in worker.delegated], reason))


def _set_heartbeats(machine: Machine, name: str, quiet: bool) -> None:
    connection = machine.connections.get(name)
    if connection is None:
        return
    connection.lease_at = max(connection.lease_at, machine.now + max(2 * machine.settings.lease_s, REPORT_VALID_S))
    machine.send_to_worker(name, m.SetHeartbeats(quiet))


def update_served(machine: Machine, worker: Worker, message: m.DelegatedWorkers) -> None:
    known = machine.site_masters.of(worker) is not None
    if not (accept_claim(machine, worker, message.term) if message.term else known):
        return
    if not known:
        introduce(machine, worker)  # after this, the site master repeats the reports that were ignored
    term = machine.site_masters.by_site[worker.site]
    workers = machine.state.workers
    for name in message.joined:
        if name in workers and workers[name].site == worker.site and name not in term.served:
            term.served[name] = None
            _set_heartbeats(machine, name, True)
    removed = message.removed
    if term.expects_full_list:
        named = dict.fromkeys(message.joined)
        removed = [name for name in term.served if name not in named]
        term.expects_full_list = False
    for name in removed:
        if term.served.pop(name, worker) is None:
            _set_heartbeats(machine, name, False)
    until = machine.now + max(machine.settings.lease_s, REPORT_VALID_S)
    for name in term.served:
        connection = machine.connections.get(name)
        if connection is not None:
            connection.lease_at = max(connection.lease_at, until)
    machine.decide_again = True


def record_claimed(machine: Machine, site_master: Worker, message: m.ClaimedTasks) -> None:
    """Records which worker got which delegated task. Stops attempts that are not delegated to this site master."""
    for name, items in message.given:
        worker = machine.state.workers.get(name)
        if worker is None or worker.site != site_master.site:
            lost = [number for number, attempt in items if is_delegated(machine, site_master, number, attempt)]
            if lost:
                machine.record(f.TasksReturned(site_master.id, lost, f"worker {name}, which had them, was lost"))
            continue
        wanted: list[tuple[int, int]] = []
        unwanted: list[tuple[int, int]] = []
        for number, attempt in items:
            task = machine.state.find_task(number)
            if task is not None and task.worker is worker and task.attempt == attempt and task not in worker.delegated:
                continue  # the worker itself has already reported this attempt
            (wanted if is_delegated(machine, site_master, number, attempt) else unwanted).append((number, attempt))
        if wanted:
            machine.record(f.TasksClaimed(worker.id, [number for number, _ in wanted]))
        if unwanted:
            machine.send_to_worker(name, m.Kill(unwanted))


def requeue_missing(machine: Machine, site_master: Worker, message: m.DelegatedTasks) -> None:
    """Requeues delegated tasks that the site master does not list. These tasks never reached the site master, or the site master has lost
    them. Stops listed tasks that are not delegated to this site master."""
    held = dict.fromkeys(message.items)
    missing = [task.id for task in site_master.delegated if (task.id, task.attempt) not in held]
    if missing:
        machine.record(f.TasksReturned(site_master.id, missing, "the delegated tasks never reached its site"))
    unwanted = [(number, attempt) for number, attempt in held if not is_delegated(machine, site_master, number, attempt)]
    if unwanted:
        machine.send_to_worker(site_master.id, m.Kill(unwanted))


def is_delegated(machine: Machine, site_master: Worker, number: int, attempt: int) -> bool:
    task = machine.state.find_task(number)
    return task is not None and task in site_master.delegated and task.attempt == attempt


def find_current(machine: Machine, worker: Worker, number: int, attempt: int) -> Task | None:
    """Returns the task of an attempt that a worker reports, if the attempt is current; otherwise None. If the attempt still counts as
    delegated to the worker's site master, records that the worker got the task."""
    task = machine.state.find_task(number)
    if task is None:
        return None
    if attempt and speculative_copies.attempt_at(machine.state, worker, task) == attempt and task not in worker.delegated:
        return task
    holder = task.worker
    if task.attempt != attempt or holder is None or task not in holder.delegated or holder.site != worker.site:
        return None
    # The task is delegated to the worker's site master. The report of the site master was lost or is late.
    machine.record(f.TasksClaimed(worker.id, [number]))
    return task


def delegate(machine: Machine, proposal: DelegationProposal) -> bool:
    """Delegates ready tasks to a site master. Returns False if the proposal is refused."""
    worker, tasks = proposal.worker, proposal.tasks
    if machine.site_masters.of(worker) is None or not assignment.can_take(machine, worker) or not tasks:
        return False
    if any(task.state != READY or task.suspect or task.shape.run.paused or task.shape.nodes > 1 for task in tasks):
        return False
    machine.record(f.TasksDelegated(worker.id, [task.id for task in tasks]))
    assignment.send_all(machine, machine.connections[worker.id], tasks, {}, m.Delegate)
    return True


def worker_ended(machine: Machine, worker: Worker) -> None:
    """Handles the end of a worker. If the worker was a site master, its term ends."""
    term = machine.site_masters.by_site.get(worker.site)
    if term is None:
        return
    term.served.pop(worker.id, None)
    if term.worker == worker.id:
        end_term(machine, term)
