"""How facts about a run as a whole change the state."""

from __future__ import annotations

from pilotfish.core import replicas, usage
from pilotfish.core.moves import maybe_ended
from pilotfish.core.state import Run, State
from pilotfish.model import facts as f


def opened(state: State, fact: f.RunOpened, at: float) -> None:
    run = state.runs[fact.run] = Run(fact.run, fact.uid, fact.options, at)
    state.run_uids[fact.uid] = fact.run
    state.next_run = max(state.next_run, fact.run + 1)
    usage.join(state, run)


def options_changed(state: State, fact: f.RunOptionsChanged, at: float) -> None:
    run = state.runs[fact.run]
    before, run.options = run.options, fact.options
    if (before.share, before.weight) != (fact.options.share, fact.options.weight):
        account = run.account
        usage.join(state, run)
        usage.leave(state, run, account)
    for shape in run.shapes.values():
        shape.priority = run.priority_of(shape.made_from[0])


def application_advanced(state: State, fact: f.ApplicationAdvanced, at: float) -> None:
    state.runs[fact.run].advanced = fact.cursor


def closed(state: State, fact: f.RunClosed, at: float) -> None:
    run = state.runs[fact.run]
    run.closed = fact.reason
    maybe_ended(run, at)


def paused(state: State, fact: f.RunPaused, at: float) -> None:
    state.runs[fact.run].paused = fact.paused


def outputs_taken(state: State, fact: f.OutputsTaken, at: float) -> None:
    run = state.runs[fact.run]
    for index in run.ended[run.taken : fact.count]:
        run.tasks[index].output = b""
    run.taken = fact.count


def forgotten(state: State, fact: f.RunForgotten, at: float) -> None:
    run = state.runs.pop(fact.run)
    del state.run_uids[run.uid]
    replicas.run_gone(state, run)
    usage.leave(state, run, run.account)
