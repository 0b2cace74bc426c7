"""Answers queries with rows. A query changes nothing."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotfish.core.data import data_rows, stored_results
from pilotfish.core.explain import lookup, site_reasons, task_reasons
from pilotfish.core.explain.rerun_advice import failure_row
from pilotfish.core.learning import speedups
from pilotfish.core.state import Place, Run, State, Task, Worker
from pilotfish.core.tasks.fair_share import ShareAccount
from pilotfish.core.tasks.run_deadlines import late_s
from pilotfish.errors import BadInput
from pilotfish.model.contents import KEY_BYTES
from pilotfish.model.ids import INDEX_MASK, show_task
from pilotfish.model.states import DONE, JOINED, PILOT_STATES, TASK_STATES, WORKER_STATES
from pilotfish.model.task import UNIT, Payload, sent_bytes

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

MAX_NUMBER = 1 << 53
"""Maximum offset or limit."""
MAX_OUTPUT_BYTES = 8 << 20
"""Maximum bytes of outputs per answer. A single larger output is sent alone."""
MAX_ROWS = 10_000
"""Maximum rows per answer. With an offset, a client gets the next rows."""


def read_number(arguments: dict[str, Any], name: str, default: int) -> int:
    """Returns the argument ``name`` as a whole number from 0 to MAX_NUMBER."""
    value = arguments.get(name, default)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not 0 <= number <= MAX_NUMBER:
        raise BadInput(f"{name}: {value!r} is not a number from 0 on", "write it in digits, as in 2")
    return number


def read_text(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value:
        raise BadInput(f"{name}: {value!r} is no text", "use the same version of Pilotfish on both sides")
    return value


def run_row(machine: Machine, run: Run) -> dict[str, Any]:
    elapsed = (run.ended_at or machine.now) - run.first_started_at - run.idle_s if run.first_started_at else 0.0
    rate = len(run.ended) / elapsed if elapsed > 0 else 0.0
    eta_s = run.unfinished / rate if rate and not run.finished else None
    return {
        "run": run.id,
        "uid": run.uid,
        "owned": run.options.owned,
        "name": run.options.name,
        "command": run.options.command,
        "cwd": run.options.cwd,
        "state": "done" if run.finished else "closed" if run.closed else "open",
        "status": task_reasons.status_of(run),
        "incomplete": run.incomplete,
        "closed": run.closed,
        "paused": run.paused,
        "counts": dict(zip(TASK_STATES, run.counts, strict=True)),
        "tasks": len(run.tasks),
        "ends": len(run.ended),
        "attempts": run.attempts,
        "reused": len(run.reused),
        "resume": run.options.resume,
        "contents": len(run.contents),
        "moving": data_rows.moving(machine, run) if run.contents and not run.finished else None,
        "opened_at": run.opened_at,
        "started_at": run.first_started_at,
        "reopened_at": run.reopened_at,
        "ended_at": run.ended_at,
        "elapsed_s": elapsed,
        "rate_per_s": rate,
        "eta_s": eta_s,
        "share": run.options.share,
        "priority": run.options.priority,
        "deadline": run.options.deadline or None,
        "late_s": late_s(run, eta_s, machine.now),
        "usage": {"wall_s": sum(run.wall_us) / 1e6, "cpu_s": sum(run.cpu_us) / 1e6, "rss_bytes": max(run.rss_kib, default=0) * 1024},
    }


def task_row(machine: Machine, task: Task) -> dict[str, Any]:
    """Returns a task as a row. ``worker``, ``node`` and ``site`` describe the current attempt. If there is no current attempt, they
    describe the last attempt."""
    run, index, worker = task.shape.run, task.id & INDEX_MASK, task.worker
    failure_counts, copy = task.failure_counts, machine.state.copies.get(task)
    place = run.places[run.last_places[index]] if worker is None else Place(worker.id, worker.node, worker.site)
    wall_s, ended_at, started_at = run.wall_us[index] / 1e6, run.end_times[index] or None, None
    if ended_at is not None and place.worker:
        started_at = ended_at - wall_s
    elif worker is not None and task in worker.started:
        started_at = worker.started[task]
        wall_s = machine.now - started_at
    return {
        "id": show_task(task.id),
        "run": run.id,
        "index": index,
        "name": run.specs[task.spec].name,
        "kind": run.specs[task.spec].kind,
        "state": TASK_STATES[task.state],
        "attempt": task.attempt,
        "worker": place.worker or None,
        "node": place.node or None,
        "site": place.site or None,
        "started_at": started_at and round(started_at, 3),
        "ended_at": ended_at and round(ended_at, 3),
        "copy": copy.worker.id if copy is not None and copy.worker is not None else None,
        "failure": failure_row(task),
        "wall_s": wall_s,
        "cpu_s": run.cpu_us[index] / 1e6,
        "rss_bytes": run.rss_kib[index] * 1024,
        "left_out_bytes": run.left_out.get(index, 0),
        "failures": failure_counts.failures if failure_counts else 0,
        "losses": failure_counts.losses + failure_counts.deaths if failure_counts else 0,
        "suspect": task.suspect,
        "waits_for": task.waits_for,
        "reused_from": show_task(run.reused[index]) if index in run.reused else None,
        **({"failed_before": run.failed_dependencies(index)} if index in run.after_any and not task.waits_for else {}),
    }


def worker_row(machine: Machine, worker: Worker) -> dict[str, Any]:
    state = WORKER_STATES[worker.state]
    if worker.state == JOINED:
        state = "quarantined" if worker.quarantined_until else "busy" if worker.held else "idle"
    return {
        "worker": worker.id,
        "pilot": worker.pilot,
        "site": worker.site,
        "state": state,
        "connected": machine.link_of(worker.id) is not None,
        "capacity": {name: amount / UNIT for name, amount in worker.capacity.items()},
        "free": {name: amount / UNIT for name, amount in worker.free.items()},
        "running": len(worker.active),
        "ahead": len(worker.ahead),
        "lent": len(worker.delegated),
        "assigned": [show_task(task.id) for task in worker.active],
        "tasks_done": worker.done,
        "tasks_failed": worker.failed,
        "tags": worker.tags,
        "info": worker.info,
        "properties": worker.properties,
        "joined_at": worker.joined_at,
        "ends_at": worker.ends_at,
        "quarantined_until": worker.quarantined_until or None,
        "reason": worker.reason,
        "history": [{"at": at, "state": what} for at, what in worker.history],
    }


def _status(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    state = machine.state
    workers = [worker_row(machine, worker) for worker in state.workers.values()]
    return {
        **machine.host_status,
        "uptime_s": machine.now - machine.started_at,
        "epoch": state.epoch,
        "now": machine.now,
        "unfinished": state.unfinished,
        "local_cores": state.local_cores,
        "cores": sum(row["capacity"].get("cores", 0) for row in workers),
        "workers": dict(Counter(row["state"] for row in workers)),
        "shares": [_share_row(account) for account in state.shares.values()],
        "pilots": [_pilot_row(machine, name) for name in state.pilots],
        "runs": [run_row(machine, run) for run in state.runs.values()],
        "moving": data_rows.moving(machine),
        "warnings": [reason.row() for reason in task_reasons.warnings(machine)],
        "refused_proposals": machine.refused_proposals,
        "stale_results": machine.stale_results,
    }


def _share_row(account: ShareAccount) -> dict[str, Any]:
    return {"share": account.name, "weight": account.weight, "runs": account.runs, "cores": account.occupied / UNIT, "core_s": account.used}


def _pilot_row(machine: Machine, name: str) -> dict[str, Any]:
    pilot, status = machine.state.pilots[name], machine.pilot_status.get(name)
    workers = machine.state.workers
    return {
        "pilot": pilot.id,
        "site": pilot.site,
        "state": PILOT_STATES[pilot.state],
        "cores": pilot.cores,
        "job": pilot.job,
        "workers": pilot.workers,
        "reason": pilot.reason,
        "requested_at": pilot.requested_at,
        "joined_at": min((workers[worker].joined_at for worker in pilot.workers), default=None),
        "queue_note": "" if status is None or status.runs else status.reason,
    }


def _runs(machine: Machine, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    return [run_row(machine, run) for run in machine.state.runs.values()]


def _one_run(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    return run_row(machine, lookup.find_run(machine.state, arguments.get("run")))


def _read_page(arguments: dict[str, Any]) -> tuple[int, int]:
    return read_number(arguments, "offset", 0), min(read_number(arguments, "limit", MAX_ROWS), MAX_ROWS)


def _tasks(machine: Machine, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    run = lookup.find_run(machine.state, arguments.get("run"))
    wanted = arguments.get("state")
    if wanted is not None and wanted not in TASK_STATES:
        raise BadInput(f"state {wanted!r} is none of {', '.join(TASK_STATES)}", f"pilotfish tasks {run.id} --state failed")
    number = None if wanted is None else TASK_STATES.index(wanted)
    first, limit = _read_page(arguments)
    chosen = run.tasks if number is None else [task for task in run.tasks if task.state == number]
    return [task_row(machine, task) for task in chosen[first : first + limit]]


def _one_task(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    task = lookup.find_task(machine.state, arguments.get("task"))
    spec = machine.state.spec_of(task)
    row = task_row(machine, task)
    row["spec"] = {
        "kind": spec.kind,
        "name": spec.name,
        "request": dict(spec.request.amounts()),
        "cores_max": spec.request.cores_max,
        "nodes": spec.request.nodes,
        "time_s": spec.time_s,
        "retries": spec.retries,
        "losses": spec.losses,
        "priority": task.shape.priority,
        "tags": spec.tags,
        "launch": {key: value for key, value in spec.launch.items() if key != "env"},
    }
    return row


def _payload(machine: Machine, arguments: dict[str, Any]) -> Payload:
    task = lookup.find_task(machine.state, arguments.get("task"))
    which = arguments.get("which", "result")
    if which == "code":
        return machine.state.spec_of(task).code
    return _payload_of(task, which)


def _payload_of(task: Task, which: object) -> Payload:
    if which == "result":
        return task.output if task.state >= DONE else b""
    return task.payload


class Outputs(NamedTuple):
    """An answer with the outputs of several tasks as its body. ``data`` contains the lengths of the outputs."""

    data: dict[str, Any]
    outputs: list[Payload]


def _outputs(machine: Machine, arguments: dict[str, Any]) -> Outputs:
    """Returns the outputs of the tasks that the argument ``tasks`` names, in the same order. If the argument ``which`` is not ``result``,
    returns the payloads of these tasks instead. The answer contains the first task, and as many of the next tasks as fit into
    MAX_OUTPUT_BYTES."""
    wanted = arguments.get("tasks")
    if not isinstance(wanted, list) or not wanted:
        raise BadInput(f"tasks: {wanted!r} is not a list of tasks", 'write it as ["3.17"]')
    outputs: list[Payload] = []
    lengths: list[int] = []
    total = 0
    for name in wanted[:MAX_ROWS]:
        task = lookup.find_task(machine.state, name)
        output = _payload_of(task, arguments.get("which", "result"))
        length = sent_bytes(output, whole=True)
        total += length
        if outputs and total > MAX_OUTPUT_BYTES:
            break
        outputs.append(output)
        lengths.append(length)
    return Outputs({"lengths": lengths}, outputs)


def _spec(machine: Machine, arguments: dict[str, Any]) -> Outputs:
    """Returns the launch description in a task's spec. The body of the answer is the code in the spec: the code of a call, or the small
    input files of an executable."""
    spec = machine.state.spec_of(lookup.find_task(machine.state, arguments.get("task")))
    return Outputs({"launch": spec.launch}, [spec.code])


def _workers(machine: Machine, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    state = machine.state
    shown = list(state.workers.values())
    if arguments.get("all"):
        shown += state.ended_workers.values()
    return [worker_row(machine, worker) for worker in shown]


def _data(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    run = None if arguments.get("run") is None else lookup.find_run(machine.state, arguments.get("run"))
    first, limit = _read_page(arguments)
    return data_rows.data(machine, run, first, limit)


def _why(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    """Explains the object that the arguments name: the ``subject`` that a user typed, or a ``run``, ``task``, ``worker``, ``pilot`` or
    ``site``. If the arguments name no object, explains the last run.

    The answer for a task also contains the row of the task and the row of its run. The answer for a run also contains the row of the run.
    """
    subject = _find_named(machine.state, arguments)
    if isinstance(subject, Task):
        rows = {"task": task_row(machine, subject), "run": run_row(machine, subject.shape.run)}
        return task_reasons.explain_task(machine, subject) | rows
    if isinstance(subject, Worker):
        return task_reasons.explain_worker(machine, subject)
    if isinstance(subject, lookup.NamedPilot):
        return site_reasons.explain_pilot(machine, subject)
    if isinstance(subject, lookup.NamedSite):
        return site_reasons.explain_site(machine, subject)
    return task_reasons.explain_run(machine, subject) | {"run": run_row(machine, subject)}


def _find_named(state: State, arguments: dict[str, Any]) -> lookup.NamedObject:
    for kind, find in _FINDERS.items():
        if kind in arguments:
            return find(state, arguments[kind])
    return lookup.find_run(state)


_FINDERS: dict[str, Callable[[State, object], lookup.NamedObject]] = {
    "subject": lookup.find_named,
    "worker": lookup.find_worker,
    "pilot": lookup.find_pilot,
    "site": lookup.find_site,
    "task": lookup.find_task,
    "run": lookup.find_run,
}


def _results(machine: Machine, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns for each key the task whose result can be reused. With ``explain``, compares the other keys with earlier tasks."""
    try:
        records = base64.b64decode(read_text(arguments, "keys"), validate=True)
    except ValueError:
        records = b"?"
    if len(records) % KEY_BYTES:
        raise BadInput("keys: they are not whole records", "use the same version of Pilotfish on both sides")
    return stored_results.lookup(machine, records, bool(arguments.get("explain")), read_number(arguments, "run", 0))


def _unfinished_equals(machine: Machine, arguments: dict[str, Any]) -> list[dict[str, int]]:
    return stored_results.unfinished_equals(machine.state, lookup.find_run(machine.state, arguments.get("run")))


def _cache(machine: Machine, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    return stored_results.rows(machine)


def _forecasts(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "policy": machine.settings.policy,
        "reason": machine.policy.describe(),
        "quality": machine.state.forecasts.quality(),
        "forecasts": [*machine.state.forecasts.table(), *speedups.table(machine.state)],
    }


QUERIES: dict[str, Callable[[Machine, dict[str, Any]], Any]] = {
    "status": _status,
    "runs": _runs,
    "run": _one_run,
    "tasks": _tasks,
    "task": _one_task,
    "payload": _payload,
    "outputs": _outputs,
    "workers": _workers,
    "sites": site_reasons.sites,
    "data": _data,
    "forecasts": _forecasts,
    "results": _results,
    "unfinished_equals": _unfinished_equals,
    "spec": _spec,
    "cache": _cache,
    "why": _why,
}
