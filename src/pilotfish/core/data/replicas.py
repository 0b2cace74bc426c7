"""Records which worker holds which content, and finds the sites where a task can get its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from pilotfish.core.state import ContentRecord, Run, State, Task, Worker
from pilotfish.model import facts as f
from pilotfish.model.contents import Content, ProducedContent
from pilotfish.model.site import LOCAL
from pilotfish.model.states import JOINED


def refer_to(state: State, run: Run, contents: Iterable[Content]) -> tuple[ContentRecord, ...]:
    """Returns the records of contents that a run needs. Creates missing records. If a content has a path, its record gets this path."""
    records = []
    for content in contents:
        record = _known(state, run, content.digest, content.size)
        if content.path:
            record.path, record.mtime_ns, record.inode = content.path, content.mtime_ns, content.inode
        records.append(record)
    return tuple(records)


def record_produced(state: State, task: Task, worker: Worker, contents: Iterable[ProducedContent]) -> None:
    """Records contents that a task left at its worker, at the master or at both."""
    run = task.shape.run
    for content in contents:
        record = _known(state, run, content.digest, content.size)
        record.at_master = record.at_master or content.at_master
        record.maker = task.id
        if content.at_worker:
            record.holders[worker.id] = worker.holds[record] = None


def _known(state: State, run: Run, digest: str, size: int) -> ContentRecord:
    record = state.contents.get(digest)
    if record is None:
        record = state.contents[digest] = ContentRecord(digest, size)
    if digest not in run.contents:
        run.contents[digest] = None
        record.runs += 1
    return record


def changed(state: State, fact: f.ReplicasChanged, at: float) -> None:
    worker = state.workers[fact.worker]
    for digest in fact.gained:
        record = state.contents[digest]
        record.holders[worker.id] = worker.holds[record] = None
    for digest in fact.lost:
        record = state.contents[digest]
        record.holders.pop(worker.id, None)
        worker.holds.pop(record, None)


def forget_worker(worker: Worker) -> None:
    """Forgets the replicas at a worker that has ended. If the contents are still on the disk of the node, the next agent on this node
    reports them."""
    for record in worker.holds:
        record.holders.pop(worker.id, None)
    worker.holds = {}


def forget_run(state: State, run: Run) -> None:
    for digest in run.contents:
        record = state.contents[digest]
        record.runs -= 1
        if not record.runs:
            del state.contents[digest]
            for worker in record.holders:
                state.workers[worker].holds.pop(record, None)


def needs(task: Task) -> tuple[ContentRecord, ...]:
    """Returns all inputs of a task that are contents."""
    shared = task.shape.run.spec_contents
    return (*shared.get(task.spec, ()), *task.contents) if shared else task.contents


def can_get_inputs(state: State, task: Task, site: str) -> bool:
    """Returns whether a worker at this site can get all inputs of a task.

    A worker can get a content from the master, from a file of the user, from workers of the same site, and from workers on this machine. If
    no suitable worker at any site can get all inputs, this function returns True for every site. The task is then assigned, and fails with
    a message that names the missing input.
    """
    needed = needs(task)
    kept = [record for record in needed if not (record.at_master or record.path) and record.holders] if needed else ()
    if not kept:
        return True
    sites = _sites_with_all(state, kept)
    if sites is None or site in sites:
        return True
    holders = (state.workers[name] for name in kept[0].holders)  # try the holders first, because one of them is probably suitable
    return not any(worker.site in sites and _can_take(worker, task, state) for worker in chain(holders, state.workers.values()))


def _can_take(worker: Worker, task: Task, state: State) -> bool:
    return worker.state == JOINED and not worker.quarantined_until and worker.suits(task.shape, state.at)


def _sites_with_all(state: State, kept: Sequence[ContentRecord]) -> set[str] | None:
    """Returns the sites that can get all of these contents; None if every site can."""
    found: set[str] | None = None
    for record in kept:
        sites = {state.workers[worker].site for worker in record.holders}
        if LOCAL not in sites:
            found = sites if found is None else found & sites
    return found
