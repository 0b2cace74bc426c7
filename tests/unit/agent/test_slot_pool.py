"""Tests the slot pool without processes."""

from __future__ import annotations

import selectors
from typing import Any, cast

from pilotfish.agent.node.agent_machine import AgentMachine, WorkerOffer
from pilotfish.agent.node.slot_pool import RAISE_LIMIT_S, START_PAUSE_S, SlotPool
from pilotfish.agent.node.slot_process import SlotProcess

Answer = tuple[int, bool, int, bytes]


class Executable(SlotProcess):
    """A slot that runs an executable and reports what the test sets."""

    def __init__(self, says: list[Any]) -> None:
        self.number = 0
        self.peeks = {}
        self._says = says
        self.outgoing = cast("Any", ())

    def peek(self, query: int, stream: int, offset: int) -> None:
        self.peeks[query] = offset

    def is_open(self) -> bool:
        return True

    def receive(self, now: float) -> Any:
        return self._says.pop(0)


def make_slots() -> tuple[SlotPool, list[Answer]]:
    machine = AgentMachine(WorkerOffer("w1", "p1", {"cores": 8.0}), seed=1, now=0.0)
    slots = SlotPool(machine, selectors.DefaultSelector(), {})
    answers: list[Answer] = []
    slots.answer_peek = lambda *answer: answers.append(answer)
    return slots, answers


def test_a_peek_at_an_executable_that_just_ended_is_answered_while_a_long_call_keeps_the_slot_from_reading() -> None:
    slots, answers = make_slots()
    process = slots.processes[0] = Executable([([(None, 1, 1, 1, b"")], [])])
    slots.peek(7, 0, 1, 30, 1.0)
    assert answers == []
    slots.ready(process, selectors.EVENT_READ, 1.1)
    assert answers == [(7, False, 30, b"")]


def test_a_peek_answered_together_with_the_end_is_answered_once() -> None:
    slots, answers = make_slots()
    process = slots.processes[0] = Executable([([(None, 1, 1, 1, b"")], [(0, 7, 30, 1, b"", b"text")]), ([], [(0, 7, 30, 0, b"", b"")])])
    slots.peek(7, 0, 1, 30, 1.0)
    slots.ready(process, selectors.EVENT_READ, 1.1)
    slots.ready(process, selectors.EVENT_READ, 1.2)
    slots.check_timers(slots.deadline)
    assert answers == [(7, True, 30, b"text")]


def test_after_a_limit_more_slots_are_tried_step_by_step_up_to_the_wanted_number() -> None:
    slots, _ = make_slots()
    attempts = slots.machine.attempts
    wanted = attempts.max_slots
    for number in range(5):
        slots.processes[number] = Executable([])
    assert slots._start_failed("too many", True, 0.0) == 0 and attempts.max_slots == 5
    assert slots.deadline == RAISE_LIMIT_S
    slots.check_timers(RAISE_LIMIT_S)
    assert 5 < attempts.max_slots < wanted
    while slots.deadline < 1000:
        slots.check_timers(slots.deadline)
    assert attempts.max_slots == wanted


def test_with_no_slot_left_there_is_a_pause_and_only_the_third_failed_start_costs_an_attempt() -> None:
    slots, _ = make_slots()
    charged = []
    for _ in range(6):
        charged.append(slots._start_failed("too many", True, 0.0))
        assert slots.machine.attempts.max_slots == 0 and slots.deadline == START_PAUSE_S
        slots.check_timers(START_PAUSE_S)
        assert slots.machine.attempts.max_slots == 1
    assert charged == [0, 0, 1, 0, 0, 1] and not slots.machine.exited
