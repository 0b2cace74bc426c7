"""What is to be done about attempts that run for long. Pure; ``machine.py`` is the only user."""

from __future__ import annotations

from typing import Any, List, Tuple

from .work import HELD_UP_S, NEVER, REPORT_START_S, TERMINATE_GRACE_S, Slot, Work

Effect = Tuple[Any, ...]


def look_at_slots(work: Work, now: float, ending: bool, started: List[List[int]]) -> List[Effect]:
    """Tell of long runners (in ``started``), free those behind them, stop those over their time, press on with those condemned."""
    effects: List[Effect] = []
    due = NEVER
    for slot in work.busy.values():
        begun = slot.begun
        head = slot.attempts[0]
        limit = head.spec.time_s
        if limit > 0 and now >= begun + limit and not slot.condemned:
            slot.condemn(["time", "task", "it ran longer than its time limit of %g s" % limit], gently=True)
        if slot.condemned:
            _press(slot, now, effects)
        elif now >= begun + REPORT_START_S and not slot.reported:
            slot.reported = True
            started.append([head.task, head.attempt])
        warning = slot.take_warning() if ending else 0
        if warning:
            effects.append(("warn", slot.number, warning))
        if not slot.condemned and len(slot.attempts) > 1 and not slot.slow and now >= begun + HELD_UP_S:
            slot.slow = True
            _ask_back(slot, effects)
        due = min(due, slot.next_look())
    work.next_look = due
    return effects


def _ask_back(slot: Slot, effects: List[Effect]) -> None:
    if not slot.asked_back:
        slot.asked_back = True
        effects.append(("take_back", slot.number))


def _press(slot: Slot, now: float, effects: List[Effect]) -> None:
    """Stop what runs in this slot, by steps; those sent ahead are brought to safety first."""
    if slot.condemned == 1 and (len(slot.attempts) > 1 or slot.asked_back):
        _ask_back(slot, effects)
    elif slot.condemned == 1 and slot.gently:
        slot.condemned = 2
        slot.kill_at = now + TERMINATE_GRACE_S
        effects.append(("terminate", slot.number))
    elif slot.condemned == 1 or (slot.condemned == 2 and now >= slot.kill_at):
        slot.condemned = 3
        effects.append(("kill", slot.number))
