"""Carries out commands: cancel, pause, set, forget, stop, drain. Each function returns the data of the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from pilotfish.core.data import stored_results
from pilotfish.core.explain import lookup, queries
from pilotfish.core.policy_interface import RecallProposal
from pilotfish.core.state import Run, Task, Worker
from pilotfish.core.tasks import assignment, speculative_copies
from pilotfish.core.workers import leases
from pilotfish.errors import BadInput
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import messages as m
from pilotfish.model.states import DONE
from pilotfish.model.task import RunOptions

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine


def cancel_run(machine: Machine, run: Run, reason: str) -> int:
    unfinished = run.unfinished
    _stop_at_workers(machine, (task for task in run.tasks if task.state < DONE))
    machine.record(f.RunCancelled(run.id, reason, keeps_payloads=not run.options.owned))
    return unfinished


def _stop_at_workers(machine: Machine, tasks: Iterable[Task]) -> None:
    """Stops tasks that are being cancelled. If a client owns the run, the master also deletes the payloads of these tasks. Only this client
    can run the tasks again, and it has copies of the payloads."""
    held: list[tuple[Task, Worker, int]] = []
    for task in tasks:
        if task.shape.run.options.owned:
            machine.release_payload(task.payload)
        held.extend((task, *attempt) for attempt in speculative_copies.attempts(machine.state, task))
    assignment.kill(machine, held)


def _cancel(machine: Machine, arguments: dict[str, Any]) -> dict[str, int]:
    reason = str(arguments.get("reason", "asked for"))
    if "run" in arguments:
        return {"cancelled": cancel_run(machine, lookup.find_run(machine.state, arguments.get("run")), reason)}
    names = arguments.get("tasks", [])
    if not isinstance(names, list):
        raise BadInput(f"{names!r} are not names of tasks", "pilotfish tasks lists them")
    tasks = [lookup.find_task(machine.state, name) for name in names]
    live = list({task: None for task in tasks if task.state < DONE})
    if live:
        _stop_at_workers(machine, live)
        for owned in (False, True):
            cancelled = [task.id for task in live if task.shape.run.options.owned == owned]
            if cancelled:
                machine.record(f.TasksCancelled(cancelled, reason, keeps_payloads=not owned))
        machine.after_failure(live)
    return {"cancelled": len(live)}


def _set_paused(machine: Machine, arguments: dict[str, Any], paused: bool) -> dict[str, Any]:
    run = lookup.find_run(machine.state, arguments.get("run"))
    if run.paused != paused:
        machine.record(f.RunPaused(run.id, paused))
    return queries.run_row(machine, run)


CHANGEABLE = ("priority", "share", "weight", "deadline", "sites")
MAX_WEIGHT, MAX_PRIORITY, MAX_NAME, MAX_TIME = 1e6, 1_000_000_000, 200, 1e15


def _set(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    """Changes options of a run. If a user names a share without a weight, the share keeps its weight."""
    run = lookup.find_run(machine.state, arguments.get("run"))
    if run.finished:
        raise BadInput(f"run {run.id} has ended", "pilotfish status lists the runs")
    given = {name: arguments[name] for name in CHANGEABLE if name in arguments}
    if "share" in given:
        given.setdefault("weight", 0.0)
    try:
        changed = msgspec.convert(list({**msgspec.structs.asdict(run.options), **given}.values()), RunOptions)
    except msgspec.ValidationError as problem:
        raise BadInput(f"run {run.id} cannot be changed so: {problem}", "pilotfish set --help") from problem
    check_options(changed)
    if changed != run.options:
        machine.record(f.RunOptionsChanged(run.id, changed))
        recall_from_other_sites(machine, run)
    return queries.run_row(machine, run)


def recall_from_other_sites(machine: Machine, run: Run) -> None:
    """Recalls tasks of the run from workers at forbidden sites: sites that are not in ``sites`` of the run. Only tasks that have not
    started are recalled. If ``sites`` is empty, no site is forbidden."""
    sites = run.options.sites
    for worker in machine.state.workers.values() if sites else ():
        if worker.site not in sites:
            queued = [task for task in (*worker.ahead, *worker.delegated) if task.shape.run is run]
            if queued:
                assignment.recall(machine, RecallProposal(worker, queued))


def check_options(options: RunOptions) -> None:
    """Refuses invalid shares, deadlines and priorities."""
    if not (0 <= options.weight <= MAX_WEIGHT and len(options.share) <= MAX_NAME and 0 <= options.deadline < MAX_TIME):
        text = f"share {options.share[:MAX_NAME]!r} with weight {options.weight:g} and deadline {options.deadline:g} cannot be"
        raise BadInput(text, "see docs/how-to/share-a-pool.md")
    if options.priority is not None and abs(options.priority) > MAX_PRIORITY:
        raise BadInput(f"priority is {options.priority}", f"choose a number up to {MAX_PRIORITY}")


def _forget(machine: Machine, arguments: dict[str, Any]) -> dict[str, int]:
    run = lookup.find_run(machine.state, arguments.get("run"))
    if not run.finished:
        raise BadInput(f"run {run.id} is not finished", f"pilotfish cancel {run.id}")
    for task in run.tasks:
        machine.release_payload(task.payload)
        machine.release_payload(task.output)
    for spec in run.specs:
        machine.release_payload(spec.code)
    _release_contents(machine, run)
    machine.record(f.RunForgotten(run.id))
    return {"forgotten": run.id}


def _release_contents(machine: Machine, run: Run) -> None:
    """Releases the contents of a run, except contents that another run needs. The master deletes its copies of released contents later.
    Workers delete their copies when they need space."""
    kept: dict[str, list[str]] = {}
    for record in (machine.state.contents[digest] for digest in run.contents):
        if record.runs > 1:
            continue
        if record.at_master:
            machine.effects.append(e.ReleaseContent(record.digest))
        elif record.maker:
            for worker in record.holders:
                kept.setdefault(worker, []).append(record.digest)
    for worker, digests in kept.items():
        machine.send_to_worker(worker, m.ReleaseContents(digests))


def _stop(machine: Machine, arguments: dict[str, Any]) -> dict[str, int]:
    """Ends the master. With ``now``, unfinished tasks are cancelled. Without ``now``, unfinished tasks stay in the journal and can be
    resumed."""
    cancelled = 0
    if arguments.get("now"):
        for run in list(machine.state.runs.values()):
            if not run.finished:
                cancelled += cancel_run(machine, run, "the pool was stopped")
    machine.finish("the pool was stopped")
    return {"unfinished": machine.state.unfinished, "cancelled": cancelled}


def _workers_set(machine: Machine, arguments: dict[str, Any]) -> dict[str, float]:
    wanted = arguments.get("local")
    if not isinstance(wanted, int | float) or not 0 <= wanted <= 1e6:
        raise BadInput(f"a pool cannot have {wanted!r} cores here", "pilotfish workers --local-cores 2")
    cores = float(wanted)
    site = machine.state.sites.get("local")
    if site is not None and site.held:
        machine.record(f.SiteHeld("local", ""))
    if cores != machine.state.local_cores:
        machine.record(f.PoolSized(cores))
    return {"local": cores}


def _drain(machine: Machine, arguments: dict[str, Any]) -> dict[str, str]:
    worker = lookup.find_worker(machine.state, arguments.get("worker"))
    leases.drain(machine, worker, str(arguments.get("reason", "asked for")))
    return {"draining": worker.id}


def _clear(machine: Machine, arguments: dict[str, Any]) -> dict[str, str]:
    worker = lookup.find_worker(machine.state, arguments.get("worker"))
    if worker.quarantined_until:
        machine.record(f.WorkerQuarantined(worker.id, 0.0, "cleared by hand"))
    return {"cleared": worker.id}


def _revoke(machine: Machine, arguments: dict[str, Any]) -> dict[str, str]:
    """Revokes a key. New connections with this key are refused, and workers that joined with this key are removed."""
    key_id = queries.read_text(arguments, "key_id")
    if key_id not in machine.state.revoked:
        machine.record(f.KeyRevoked(key_id))
    for worker in list(machine.state.workers.values()):
        if key_id == f"pilot:{worker.pilot}":
            leases.lose_worker(machine, worker, "had its key revoked", died=False)
    return {"revoked": key_id}


def _cache_forget(machine: Machine, arguments: dict[str, Any]) -> dict[str, list[int]]:
    """Makes sure that the results of these runs, and equal results of other runs, are not reused from now on. Without runs, this applies to
    all results."""
    names = arguments.get("runs")
    runs = list(machine.state.runs.values()) if not names else [lookup.find_run(machine.state, name) for name in names]
    numbers = [run.id for run in runs if stored_results.has_results(run)]
    if numbers:
        machine.record(f.ResultsForgotten(numbers))
    return {"forgotten": numbers}


COMMANDS: dict[str, Callable[[Machine, dict[str, Any]], Any]] = {
    "cancel": _cancel,
    "pause": partial(_set_paused, paused=True),
    "resume": partial(_set_paused, paused=False),
    "set": _set,
    "forget": _forget,
    "stop": _stop,
    "workers_set": _workers_set,
    "drain": _drain,
    "quarantine_clear": _clear,
    "revoke": _revoke,
    "cache_forget": _cache_forget,
}
