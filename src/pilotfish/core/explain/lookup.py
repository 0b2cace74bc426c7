"""Finds the run, task, worker, pilot or site that a user named.

A run is named by its number, its uid, its name (the newest run of that name) or ``last`` (the newest run). A task is named by a run and an
index: ``3.17``, ``sweep.17``, ``last.17``. A ``subject`` is a run, a task, or the name of a worker, pilot or site.
"""

from __future__ import annotations

from typing import NamedTuple

from pilotfish.core.pilots.pilot_records import SiteRecord
from pilotfish.core.state import Run, State, Task, Worker
from pilotfish.errors import BadInput, did_you_mean
from pilotfish.model.ids import task_id
from pilotfish.model.site import LOCAL, SiteEvent

LAST = "last"
MAX_DIGITS = 18
"""Maximum digits of a number. A longer text is a name."""


class NamedPilot(NamedTuple):
    """A present or past pilot. ``events``: the events of a past pilot that are still in the history of its site."""

    name: str
    events: tuple[SiteEvent, ...] = ()


class NamedSite(NamedTuple):
    name: str
    record: SiteRecord


NamedObject = Run | Task | Worker | NamedPilot | NamedSite


def find_run(state: State, wanted: object = LAST) -> Run:
    """Returns the run with this number, uid or name; for None, the last run."""
    text = LAST if wanted is None else str(wanted)
    if text == LAST and not state.runs:
        raise BadInput("there are no runs yet", "Start one: pilotfish run -- COMMAND")
    if not text.strip():
        raise BadInput(
            f"{text!r} is no run: it is empty (an unset variable?)",
            "Write its number or its name, or last for the newest; see: pilotfish status",
        )
    run = _run_named(state, text)
    if run is not None:
        return run
    name, _, index = text.rpartition(".")
    if name and index.isdecimal() and (name.isdecimal() or _run_named(state, name)):
        hint = f"Its run is {name}; for the task alone: pilotfish logs {text}"
        raise BadInput(f"{text!r} is a task, and a run is needed here", hint)
    names = dict.fromkeys(run.options.name for run in state.runs.values() if run.options.name)
    near = "" if _is_number(text) else did_you_mean(text, names)
    raise BadInput(f"there is no run {wanted!r}", near or "See the runs there are: pilotfish status")


def _run_named(state: State, text: str) -> Run | None:
    if text == LAST and state.runs:
        return state.runs[max(state.runs)]
    if _is_number(text) and int(text) in state.runs:
        return state.runs[int(text)]
    if text in state.run_uids:
        return state.runs[state.run_uids[text]]
    return next((run for run in reversed(state.runs.values()) if run.options.name == text), None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS


def find_task(state: State, wanted: object) -> Task:
    """Returns the task RUN.INDEX."""
    text = str(wanted)
    name, _, index = text.rpartition(".")
    if not name or not _is_number(index):
        raise BadInput(f"task {text!r}: a task is RUN.INDEX, such as 3.17", "List them: pilotfish tasks")
    run = _run_named(state, name)
    task = state.find_task(task_id(run.id, int(index))) if run is not None else None
    if task is None:
        raise BadInput(f"there is no task {text}", "List them: pilotfish tasks")
    return task


def find_worker(state: State, wanted: object) -> Worker:
    """Returns a worker that is in the pool now."""
    worker = state.workers.get(str(wanted))
    if worker is None:
        raise BadInput(f"there is no worker {str(wanted)!r}", "List them: pilotfish workers")
    return worker


def find_pilot(state: State, wanted: object) -> NamedPilot:
    """Returns a present pilot, or an ended pilot that is still in the history of its site."""
    name = str(wanted)
    if name in state.pilots:
        return NamedPilot(name)
    events = tuple(event for record in state.sites.values() for event in record.history if event.pilot == name)
    if not name or not events:
        raise BadInput(f"there is no pilot {name}", "List them: pilotfish status --json")
    return NamedPilot(name, events)


def find_site(state: State, wanted: object) -> NamedSite:
    name = str(wanted)
    record = state.sites.get(name)
    if record is None or (record.site is None and name != LOCAL):
        known = [site for site, record in state.sites.items() if record.site is not None]
        hint = f"known are: {', '.join(known)}" if known else f"describe it: pilotfish site add {name} --backend slurm"
        raise BadInput(f"there is no site {name!r}", hint)
    return NamedSite(name, record)


def find_named(state: State, wanted: object = None) -> NamedObject:
    """Returns the object with this name; None stands for the last run. If several objects have this name, a worker or a present pilot comes
    first, because users cannot choose the names of workers and pilots. A run comes next, and a site or an ended pilot last."""
    if wanted is None:
        return find_run(state)
    text = str(wanted)
    number, dot, index = text.partition(".")
    if dot and _is_number(number) and _is_number(index):
        return find_task(state, text)
    worker = state.workers.get(text) or state.ended_workers.get(text)
    if worker is not None:
        return worker
    if text in state.pilots:
        return NamedPilot(text)
    run = _run_named(state, text)
    if run is not None:
        return run
    for find in (find_site, find_pilot):
        try:
            return find(state, text)
        except BadInput:
            continue
    name, dot, index = text.rpartition(".")
    if dot and _is_number(index) and name.strip():
        find_run(state, name)  # raises the error for a wrong run name
        return find_task(state, text)
    if _is_number(text) or not text.strip():
        return find_run(state, text)  # raises the error for a wrong run number
    names = [run.options.name for run in state.runs.values() if run.options.name]
    near = did_you_mean(text, [*names, *state.workers, *state.pilots, *state.sites])
    hint = near or "See what there is: pilotfish status, pilotfish workers --all, pilotfish pilots or pilotfish sites"
    raise BadInput(f"there is no run, worker, pilot or site {text!r}", hint)
