"""The agent's slots, with the processes left out."""

from __future__ import annotations

import selectors
from typing import Any, cast

from pilotfish.agent.node.agent_machine import AgentMachine, WorkerOffer
from pilotfish.agent.node.slot_pool import PAUSE_S, WIDEN_S, SlotPool
from pilotfish.agent.node.slot_process import SlotProcess

Answer = tuple[int, bool, int, bytes]


class Executable(SlotProcess):
    """A slot that has begun an executable and says what the test has it say."""

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


def test_a_look_at_an_executable_that_has_just_ended_is_answered_though_a_long_call_keeps_the_slot_from_reading() -> None:
    slots, answers = make_slots()
    process = slots.processes[0] = Executable([([(None, 1, 1, 1, b"")], [])])
    slots.peek(7, 0, 1, 30, 1.0)
    assert answers == []
    slots.ready(process, selectors.EVENT_READ, 1.1)
    assert answers == [(7, False, 30, b"")]


def test_an_answer_that_came_with_the_end_is_the_one_that_counts_and_none_is_given_twice() -> None:
    slots, answers = make_slots()
    process = slots.processes[0] = Executable([([(None, 1, 1, 1, b"")], [(0, 7, 30, 1, b"", b"text")]), ([], [(0, 7, 30, 0, b"", b"")])])
    slots.peek(7, 0, 1, 30, 1.0)
    slots.ready(process, selectors.EVENT_READ, 1.1)
    slots.ready(process, selectors.EVENT_READ, 1.2)
    slots.passed(slots.deadline)
    assert answers == [(7, True, 30, b"text")]


def test_after_a_limit_slots_are_tried_again_in_steps_until_there_are_as_many_as_were_meant() -> None:
    slots, _ = make_slots()
    work = slots.machine.work
    meant = work.max_slots
    for number in range(5):
        slots.processes[number] = Executable([])
    assert slots._false_start("too many", True, 0.0) == 0 and work.max_slots == 5
    assert slots.deadline == WIDEN_S
    slots.passed(WIDEN_S)
    assert 5 < work.max_slots < meant
    while slots.deadline < 1000:
        slots.passed(slots.deadline)
    assert work.max_slots == meant


def test_with_no_slot_left_there_is_a_pause_and_only_the_third_try_costs_an_attempt() -> None:
    slots, _ = make_slots()
    charged = []
    for _ in range(6):
        charged.append(slots._false_start("too many", True, 0.0))
        assert slots.machine.work.max_slots == 0 and slots.deadline == PAUSE_S
        slots.passed(PAUSE_S)
        assert slots.machine.work.max_slots == 1
    assert charged == [0, 0, 1, 0, 0, 1] and not slots.machine.exited
