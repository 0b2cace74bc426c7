"""Handles messages from agents: validates them and turns them into facts.

A report about an attempt changes nothing if this attempt is no longer current at the reporting worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pilotfish.core.clients import subscriptions
from pilotfish.core.connections import WorkerConnection
from pilotfish.core.pilots.factory_interface import OUTRUN, RELIEVED
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.core.state import Task, Worker
from pilotfish.core.tasks import assignment, speculative_copies
from pilotfish.core.tasks.retry_rules import judge, judge_death, should_quarantine
from pilotfish.core.workers import leases, site_masters
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import ProducedContent
from pilotfish.model.states import ACTIVE, DRAINING, ENDING
from pilotfish.model.task import DISK, Failure, Payload

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

MAX_FULL_DISKS = 10
"""If the disk of a worker is full, only attempts with this number or a larger number are charged to the task. Without this charge, the task
could move from worker to worker for ever."""


def handle(machine: Machine, item: i.AgentMessage) -> None:
    link, message, payloads = item.link, item.message, item.payloads
    if isinstance(message, (m.Hello, m.AgentDied)):
        known = machine.state.workers.get(message.worker)
        if known is not None and item.pilot and known.pilot != item.pilot:
            # The key of a pilot is valid for workers of that pilot only.
            machine.effects.append(e.HangUp(link))
        elif isinstance(message, m.Hello):
            _hello(machine, link, message)
        elif known is not None:
            leases.lose_worker(machine, known, message.reason, died=True)
        return
    worker = machine.state.workers.get(machine.agent_links.get(link, ""))
    if worker is None:
        # The worker was removed while this message was in transfer. Retire and HangUp were already sent.
        for payload in payloads:
            machine.release_payload(payload)
        return
    connection = machine.connections[worker.id]
    connection.lease_at = machine.now + leases.lease_s(machine, worker)
    if isinstance(message, m.Results):
        _results(machine, link, worker, message, payloads)
        if message.gained or message.lost:
            _update_holders(machine, worker, m.CacheReport(message.gained, message.lost))
    elif isinstance(message, m.Heartbeat):
        _started(machine, worker, message.started)
        connection.transfers.update(machine.now, message.moving)
        connection.transfers.input_counts = message.input_counts
        machine.send(link, m.HeartbeatAck())
        if worker.state == DRAINING and not worker.held:
            leases.ask_to_drain(machine, worker)
    elif isinstance(message, m.CacheReport):
        _update_holders(machine, worker, message)
    elif isinstance(message, m.ClaimedTasks):
        site_masters.record_claimed(machine, worker, message)
    elif isinstance(message, m.DelegatedTasks):
        site_masters.requeue_missing(machine, worker, message)
    elif isinstance(message, m.DelegatedWorkers):
        site_masters.update_served(machine, worker, message)
    elif isinstance(message, m.SiteMasterClaim):
        site_masters.claimed(machine, worker, message.term)
    elif isinstance(message, m.Returned):
        _returned(machine, worker, message.items)
    elif isinstance(message, m.Draining):
        leases.drain(machine, worker, message.reason)
    elif isinstance(message, m.Leave):
        leases.leave(machine, worker, message.reason, message.cut_off)
    elif isinstance(message, m.Peeked):
        subscriptions.peeked(machine, message, payloads)


def _hello(machine: Machine, link: int, hello: m.Hello) -> None:
    state = machine.state
    ended = state.ended_workers.get(hello.worker)
    pilot = state.pilots.get(hello.pilot)
    if ended is not None or (pilot is not None and pilot.state == ENDING):
        reason = ended.reason if ended is not None else "its pilot was cancelled"
        machine.send(link, m.Retire(f"this worker was removed: {reason}"))
        machine.effects.append(e.HangUp(link))
        return
    old = machine.connections.get(hello.worker)
    if old is not None and link < old.newest_link:
        # This Hello came late: the agent has already reconnected, so this list of its tasks is outdated.
        machine.effects.append(e.HangUp(link))
        return
    worker = state.workers.get(hello.worker)
    if worker is None:
        ends_at = None if hello.ends_in_s is None else machine.now + hello.ends_in_s
        machine.record(f.WorkerJoined(hello.worker, hello.pilot, hello.capacity, hello.tags, hello.info, ends_at, hello.poll_s))
        worker = state.workers[hello.worker]
        if pilot is not None and pilot.workers == [worker.id]:
            _cancel_replicas(machine, pilot)
    lease_at = machine.now + leases.lease_s(machine, worker)
    if old is None:
        machine.set_timer(lease_at, leases.lease_expired, worker.id)
    elif old.link is not None and old.link != link:
        machine.agent_links.pop(old.link, None)
        machine.effects.append(e.HangUp(old.link))
    machine.connections[worker.id] = WorkerConnection(lease_at, link, link, bool(hello.info.get("shares")), hello.info.get("peer"))
    machine.agent_links[link] = worker.id
    machine.decide_again = True
    machine.send(link, m.Welcome(state.epoch, machine.settings.beat_s, machine.settings.orphan_s))
    if hello.info.get("empty"):
        _update_holders(machine, worker, m.CacheReport([], [], True))
    site_masters.introduce(machine, worker)
    site_masters.worker_connected(machine, worker)
    _reconcile(machine, link, worker, hello.holding)


def _cancel_replicas(machine: Machine, pilot: Pilot) -> None:
    """Cancels the other pilots of a group (a pilot and its replicas) after the first agent of ``pilot`` has joined."""
    first = pilot.replica_of or pilot.id
    pilots = machine.state.pilots
    for other in [pilots[name] for name in (first, *machine.state.pilot_replicas) if name in pilots]:
        if other is not pilot and first in (other.id, other.replica_of) and not other.joined and other.state <= ACTIVE:
            cause = OUTRUN if other.requested_at <= pilot.requested_at else RELIEVED
            machine.end_pilot(other.id, f"{pilot.id} was requested as well and started first", cause)


def _reconcile(machine: Machine, link: int, worker: Worker, holding: list[tuple[int, int, int]]) -> None:
    """Compares the tasks that a connecting agent holds with the tasks that it should hold. Requeues tasks whose assignment never arrived.
    Records attempts as failed if a restarted agent has lost them. Kills attempts that are no longer wanted."""
    held = {(number, attempt): stage for number, attempt, stage in holding}
    state = machine.state
    own = ((task, speculative_copies.attempt_at(state, worker, task)) for task in (*worker.active, *worker.ahead))
    missing = [task for task, attempt in own if attempt and (task.id, attempt) not in held]
    unseen = [task.id for task in missing if not speculative_copies.is_reported_running(worker, task)]
    if unseen:
        machine.record(f.TasksReturned(worker.id, unseen, "the assignment never reached the worker"))
    for lost in missing:
        if worker.has(lost):
            # The agent once reported that this task runs, and now does not know the task. So the agent died and was restarted.
            machine.fail_attempt(judge_death(state, worker, lost, "was restarted", died=True))
    started: list[tuple[int, int]] = []
    unwanted: list[tuple[int, int]] = []
    for number, attempt, stage in holding:
        task = site_masters.find_current(machine, worker, number, attempt)
        if task is None:
            if stage != m.FINISHED:
                unwanted.append((number, attempt))
        elif stage == m.STARTED:
            started.append((number, attempt))
    if unwanted:
        machine.send(link, m.Kill(unwanted))
    _started(machine, worker, started)
    if worker.recalled:
        machine.send(link, m.Recall([(task.id, task.attempt) for task in worker.recalled]))
    if worker.state == DRAINING:
        leases.ask_to_drain(machine, worker)


def _started(machine: Machine, worker: Worker, items: list[tuple[int, int]]) -> None:
    tasks: dict[int, None] = {}
    for number, attempt in items:
        task = site_masters.find_current(machine, worker, number, attempt)
        if task is not None and not speculative_copies.is_reported_running(worker, task):
            tasks[number] = None
    if tasks:
        machine.record(f.TasksStarted(worker.id, list(tasks)))
        machine.subscriptions.newly_running.extend(tasks)


def _results(machine: Machine, link: int, worker: Worker, message: m.Results, payloads: list[Payload]) -> None:
    find_task = machine.state.find_task
    done: dict[Task, tuple[m.ResultItem, Payload]] = {}
    failed: list[tuple[m.ResultItem, Payload]] = []
    for item, payload in zip(message.items, payloads, strict=True):
        task = find_task(item.task)
        if task is None or task.worker is not worker or task.attempt != item.attempt:
            task = site_masters.find_current(machine, worker, item.task, item.attempt)
        if task is None or task in done:
            _stale(machine, worker, item, payload)
        elif item.failure is None:
            done[task] = (item, payload)
        else:
            failed.append((item, payload))
    if done:
        _done(machine, worker, done)
    for item, payload in failed:
        _failed(machine, worker, item, payload)
    machine.send(link, m.Acked(message.first, message.first + len(message.items) - 1))


def _stale(machine: Machine, worker: Worker, item: m.ResultItem, payload: Payload) -> None:
    """Drops a result that is not current, because another attempt was faster or the task was cancelled. Releases its outputs."""
    machine.stale_results += 1
    _drop_outputs(machine, worker, item, payload)


def _drop_outputs(machine: Machine, worker: Worker, item: m.ResultItem, payload: Payload) -> None:
    """Releases the outputs of an attempt, except contents that a run needs or made."""
    machine.release_payload(payload)
    if item.made:
        here = [made.digest for made in item.made if made.at_worker]
        _update_holders(machine, worker, m.CacheReport(here, [], held=[made.digest for made in item.made if not made.at_master]))
        needless = [made.digest for made in item.made if made.at_master and made.digest not in machine.state.contents]
        machine.effects.extend(e.ReleaseContent(digest) for digest in needless)


def _done(machine: Machine, worker: Worker, done: dict[Task, tuple[m.ResultItem, Payload]]) -> None:
    tasks, walls, cpus, sizes, outputs = [], [], [], [], []
    made: dict[int, list[ProducedContent]] = {}
    left_out: dict[int, int] = {}
    if machine.state.copies:
        attempts = ((task, *attempt) for task in done for attempt in speculative_copies.attempts(machine.state, task))
        assignment.kill(machine, (attempt for attempt in attempts if attempt[1] is not worker))
    for task, (item, payload) in done.items():
        if type(task.payload) is not bytes:
            machine.release_payload(task.payload)
        tasks.append(item.task)
        walls.append(item.wall_us)
        cpus.append(item.cpu_us)
        sizes.append(item.rss_kib)
        outputs.append(payload)
        if item.made:
            made[item.task] = item.made
        if item.left_out:
            left_out[item.task] = item.left_out
    machine.record(f.TasksDone(worker.id, tasks, walls, cpus, sizes, outputs, made, left_out))


def _failed(machine: Machine, worker: Worker, item: m.ResultItem, payload: Payload) -> None:
    task = site_masters.find_current(machine, worker, item.task, item.attempt)
    if task is None:
        _stale(machine, worker, item, payload)
        return
    assert item.failure is not None
    if item.failure.cause == DISK and item.failure.blame == "worker" and task.attempt < MAX_FULL_DISKS:
        # The task is not to blame: a different worker runs it, and this worker gets no more tasks.
        _drop_outputs(machine, worker, item, payload)
        machine.record(f.TasksReturned(worker.id, [item.task], item.failure.message))
        leases.drain(machine, worker, item.failure.message)
        return
    failure = _blame_lost_node(machine, task, item.failure) if machine.state.multi_node_workers else item.failure
    fact = judge(machine.state, worker, task, failure, (item.wall_us, item.cpu_us, item.rss_kib), payload)
    if not fact.final:
        _drop_outputs(machine, worker, item, payload)
    elif item.made or item.left_out:
        fact = replace(fact, made=item.made, left_out=item.left_out)
    machine.fail_attempt(fact)
    if item.failure.cause == DISK and item.failure.blame == "worker":
        leases.drain(machine, worker, item.failure.message)
    if should_quarantine(machine.state, worker, machine.settings.quarantine_after):
        until = machine.now + machine.settings.quarantine_s
        last = item.failure.message or item.failure.cause
        reason = f"{len(worker.streak)} different tasks failed there in a row while other workers succeed; the last one: {last}"
        machine.record(f.WorkerQuarantined(worker.id, until, reason))
        machine.set_timer(until, leases.quarantine_expired, worker.id)


def _blame_lost_node(machine: Machine, task: Task, failure: Failure) -> Failure:
    """Returns the failure of a task. If one of the workers of a multi-node task is disconnected, the blame becomes ``worker``: a multi-node
    task can fail because of a dead node before the master notices the dead node."""
    others = (other for other in machine.state.multi_node_workers.get(task, ()) if not other.poll_s)
    lost = next((other for other in others if machine.connections[other.id].link is None), None)
    if lost is None or failure.blame != "task":
        return failure
    return Failure(failure.cause, "worker", f"{failure.message}; worker {lost.id}, which it also had, cannot be reached")


def _update_holders(machine: Machine, worker: Worker, message: m.CacheReport) -> None:
    """Records which contents a worker gained and lost. A change is recorded as a fact if a run needs the content. All other changes are
    only kept in memory, for later runs. Tells the worker to release the contents in ``message.held`` that no run needs."""
    if message.all:
        machine.caches.has_only(worker.id, message.gained)
    else:
        machine.caches.lost(worker.id, message.lost)
        machine.caches.gained(worker.id, message.gained)
    contents = machine.state.contents
    gained = [digest for digest in dict.fromkeys(message.gained) if digest in contents and worker.id not in contents[digest].holders]
    dropped = dict.fromkeys(message.lost)
    if message.all:
        here = dict.fromkeys(message.gained)
        dropped = {record.digest: None for record in worker.holds if record.digest not in here}
    lost = [digest for digest in dropped if digest in contents and worker.id in contents[digest].holders]
    if gained or lost:
        machine.record(f.ReplicasChanged(worker.id, gained, lost))
    needless = [digest for digest in message.held if digest not in contents]
    if needless:
        machine.send_to_worker(worker.id, m.ReleaseContents(needless))


def record_known_holders(machine: Machine, digests: Iterable[str]) -> None:
    """Records which workers already hold contents that a run now needs."""
    found: dict[str, dict[str, None]] = {}
    for digest in digests:
        for worker in machine.caches.holders(digest):
            if worker not in machine.state.contents[digest].holders:
                found.setdefault(worker, {})[digest] = None
    for worker, gained in found.items():
        machine.record(f.ReplicasChanged(worker, list(gained), []))


def _returned(machine: Machine, worker: Worker, items: list[tuple[int, int]]) -> None:
    known = [
        number
        for number, attempt in items
        if site_masters.is_delegated(machine, worker, number, attempt) or site_masters.find_current(machine, worker, number, attempt)
    ]
    if known:
        machine.record(f.TasksReturned(worker.id, list(dict.fromkeys(known)), "handed back"))
