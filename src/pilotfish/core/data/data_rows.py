"""Shows contents as rows: where each content is, whether it is in transfer, and how many tasks need it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotfish.core.data.replicas import needs
from pilotfish.core.state import ContentRecord, Run, Task, Worker
from pilotfish.model.ids import show_task
from pilotfish.model.states import ASSIGNED, DONE

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

SOURCES = ("here", "peers", "storage", "master")
"""Places where needed contents were found: the cache, peers, the site's storage or a shared disk, the master."""
MAX_HEARTBEATS_OLD = 3


class TransferView(NamedTuple):
    """A content in transfer to or from a worker. ``to_master``: whether the content goes from the worker to the master."""

    worker: Worker
    digest: str
    done: int
    size: int
    to_master: bool
    rate: float | None

    @property
    def eta_s(self) -> float | None:
        return (self.size - self.done) / self.rate if self.rate else None


def transfers(machine: Machine, run: Run | None = None) -> Iterator[TransferView]:
    """Yields the current transfers of one run, or of all runs."""
    for worker in machine.state.workers.values():
        for transfer in transfers_at(machine, worker):
            if run is None or _concerns(run, transfer, machine.state.contents.get(transfer.digest)):
                yield transfer


def transfers_at(machine: Machine, worker: Worker) -> Iterator[TransferView]:
    """Yields the current transfers at a worker, from its last report."""
    connection = machine.connections.get(worker.id)
    if connection is None or not connection.transfers.moving or _is_old(machine, worker, connection.transfers.at):
        return
    for digest, done, size in connection.transfers.moving:
        record = machine.state.contents.get(digest)
        # If the master does not know the content, a task at the worker has just made it.
        to_master = record is None or record in worker.holds
        yield TransferView(worker, digest, done, size, to_master, connection.transfers.rate(digest))


def _is_old(machine: Machine, worker: Worker, at: float) -> bool:
    """Returns whether a worker's report about its transfers is too old to use. ``at``: the time of the report. An old report can list
    transfers that have ended, because a worker need not report the end of a transfer while a site master serves the worker."""
    return machine.now - at > MAX_HEARTBEATS_OLD * max(machine.settings.beat_s, worker.poll_s)


def _concerns(run: Run, transfer: TransferView, record: ContentRecord | None) -> bool:
    if record is not None:
        return transfer.digest in run.contents
    return any(task.shape.run is run for task in transfer.worker.active)


def moving(machine: Machine, run: Run | None = None) -> dict[str, Any] | None:
    """Returns a summary of the current transfers as one row; None if there is no transfer."""
    found = list(transfers(machine, run))
    if not found:
        return None
    done, size = sum(one.done for one in found), sum(one.size for one in found)
    rate = sum(one.rate or 0.0 for one in found)
    eta_s = (size - done) / rate if rate else None
    return {"contents": len(found), "done_bytes": done, "bytes": size, "rate_bytes_per_s": rate, "eta_s": eta_s}


def missing(task: Task) -> list[ContentRecord]:
    """Returns the inputs of a task that are not at its worker, as far as the master knows."""
    assert task.worker is not None
    return [record for record in needs(task) if record not in task.worker.holds]


def data(machine: Machine, run: Run | None, offset: int, limit: int) -> dict[str, Any]:
    """Returns totals over all contents of one run or of all runs, and a row for each content of one page (``offset``, ``limit``). The order
    of the contents is: contents in transfer; lost contents, which no machine has; all other contents. Within each group, the contents are
    sorted by the number of tasks that need them, and then by size, largest first."""
    state = machine.state
    records = [state.contents[digest] for digest in run.contents] if run is not None else list(state.contents.values())
    needed = _needed([run] if run is not None else state.runs.values())
    in_transfer: dict[str, list[TransferView]] = {}
    for transfer in transfers(machine, run):
        in_transfer.setdefault(transfer.digest, []).append(transfer)
    records.sort(key=lambda record: (record.digest not in in_transfer, not record.is_nowhere, -needed[record], -record.size, record.digest))
    inputs = [record for record in records if record.path]
    at_workers = [task for worker in state.workers.values() for task in worker.active if run in (None, task.shape.run)]
    return {
        "run": run.id if run is not None else None,
        "total": len(records),
        "bytes": sum(record.size for record in records),
        "inputs": {"contents": len(inputs), "bytes": sum(record.size for record in inputs)},
        "nowhere": sum(record.is_nowhere for record in records),
        "waiting_tasks": sum(task.state == ASSIGNED and bool(missing(task)) for task in at_workers),
        "moving": moving(machine, run),
        "got": _input_counts(machine, state.workers.values()),
        "sites": _sites(machine, records),
        "contents": [_row(machine, record, needed[record], in_transfer) for record in records[offset : offset + limit]],
    }


def _needed(runs: Iterable[Run]) -> Counter[ContentRecord]:
    """Returns, for each content, the number of unfinished tasks that need it."""
    found: Counter[ContentRecord] = Counter()
    for run in runs:
        if not run.contents or not run.unfinished:
            continue
        specs: Counter[int] = Counter()
        for task in run.tasks:
            if task.state < DONE:
                specs[task.spec] += 1
                found.update(task.contents)
        for spec, records in run.spec_contents.items():
            for record in records:
                found[record] += specs[spec]
    return found


def _row(machine: Machine, record: ContentRecord, needed: int, in_transfer: dict[str, list[TransferView]]) -> dict[str, Any]:
    workers = machine.state.workers
    return {
        "digest": record.digest,
        "size": record.size,
        "name": record.path.rpartition("/")[2],
        "path": record.path,
        "made_by": show_task(record.maker) if record.maker else None,
        "needed_by": needed,
        "home": record.at_master or bool(record.path),
        "stored": record.at_master,
        "mtime_ns": record.mtime_ns,
        "nowhere": record.is_nowhere,
        "workers": list(record.holders),
        "sites": dict(Counter(workers[worker].site for worker in record.holders)),
        "moving": [_transfer_row(transfer) for transfer in in_transfer.get(record.digest, ())],
    }


def _transfer_row(transfer: TransferView) -> dict[str, Any]:
    return {
        "worker": transfer.worker.id,
        "site": transfer.worker.site,
        "to": "master" if transfer.to_master else "worker",
        "done_bytes": transfer.done,
        "bytes": transfer.size,
        "rate_bytes_per_s": transfer.rate,
        "eta_s": transfer.eta_s,
    }


def _sites(machine: Machine, records: list[ContentRecord]) -> list[dict[str, Any]]:
    """Returns a row for each site, with the number and bytes of the contents at this site. If several workers of a site have a content, it
    counts once, because agents of one node share a cache."""
    workers = machine.state.workers
    held: dict[str, list[int]] = {worker.site: [0, 0] for worker in workers.values()}
    for record in records:
        for site in dict.fromkeys(workers[worker].site for worker in record.holders):
            held[site][0] += 1
            held[site][1] += record.size
    rows = []
    for site, (count, size) in held.items():
        there = [worker for worker in workers.values() if worker.site == site]
        rows.append({"site": site, "workers": len(there), "contents": count, "bytes": size, "got": _input_counts(machine, there)})
    return rows


def _input_counts(machine: Machine, workers: Iterable[Worker]) -> dict[str, dict[str, int]]:
    """Returns the number and bytes of the inputs that these workers have needed, by the place where the inputs were found."""
    sums = [0] * (2 * len(SOURCES))
    for worker in workers:
        connection = machine.connections.get(worker.id)
        if connection is not None and len(connection.transfers.input_counts) == len(sums):
            sums = [one + other for one, other in zip(sums, connection.transfers.input_counts, strict=True)]
    return {source: {"contents": sums[2 * place], "bytes": sums[2 * place + 1]} for place, source in enumerate(SOURCES)}
