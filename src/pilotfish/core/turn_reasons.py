"""Why a task waits although nothing is wrong with it: others are before it in the line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pilotfish.core import deadlines
from pilotfish.core.state import Run, Shape, Task
from pilotfish.core.usage import Account, standing, typical_s

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

Reason = dict[str, Any]


def waits_for_turn(machine: Machine, task: Task) -> Reason | None:
    """Who goes first, and what would change that."""
    shape = task.shape
    live = [other for other in machine.state.ready if not other.run.paused]
    others = [other for other in live if other.run is not shape.run and other.priority >= shape.priority]
    higher = max(others, key=lambda other: other.priority, default=shape)
    if higher.priority > shape.priority:
        text = f"run {higher.run.id} has a higher priority ({higher.priority}, not {shape.priority}), and tasks that are ready"
        return _reason("priority", text, f"pilotfish set {shape.run.id} --priority {higher.priority}")
    return _late(machine, shape.run, others) or _less_served(shape, live)


def _late(machine: Machine, run: Run, others: list[Shape]) -> Reason | None:
    pool = deadlines.pool_cores(machine.state)

    def in_danger(one: Run) -> bool:
        return deadlines.needed(one, machine.now, pool) > one.occupied

    before = in_danger(run)
    for other in dict.fromkeys(shape.run for shape in others):
        if other.options.deadline and in_danger(other) and not (before and run.options.deadline <= other.options.deadline):
            text = f"run {other.id} would miss its deadline otherwise, and goes first until that is certain not to happen"
            return _reason("deadline", text, f"pilotfish set {other.id} --deadline none")
    return None


def _less_served(shape: Shape, live: list[Shape]) -> Reason | None:
    alike = [other for other in live if other.priority == shape.priority]
    typical = typical_s([shape, *alike])
    own = shape.run.account
    first = min(typical, key=lambda account: standing(account, typical[account]))
    if first is own or standing(first, typical[first]) >= standing(own, typical[own]):
        return None
    text = f"it is the turn of {_named(first)}, which of late had less of the pool for its weight than {_named(own)}"
    return _reason("share", text, f"pilotfish set {shape.run.id} --share {own.name or 'NAME'}:{2 * own.weight:g}")


def _named(account: Account) -> str:
    return f"share {account.name}" if account.name else "the runs that name no share"


def _reason(code: str, text: str, *commands: str) -> Reason:
    return {"code": code, "text": text, "commands": list(commands)}
