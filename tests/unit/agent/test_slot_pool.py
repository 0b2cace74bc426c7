"""Tests the slot pool without processes."""

from __future__ import annotations

import os
import selectors
import socket
from collections import deque
from typing import Any, cast

from pilotfish.agent.node.agent_machine import AgentMachine, WorkerOffer
from pilotfish.agent.node.attempts import Attempt, AttemptSpec
from pilotfish.agent.node.slot_pool import RAISE_LIMIT_S, RETIRE_TIMEOUT_S, START_PAUSE_S, SlotPool
from pilotfish.agent.node.slot_process import SlotProcess
from pilotfish.agent.slots.shared_page import QUIT
from pilotfish.agent.slots.slot_server import SlotServer

Answer = tuple[int, bool, int, bytes]


class Executable(SlotProcess):
    """A slot that runs an executable and reports what the test sets."""

    def __init__(self, says: list[Any]) -> None:
        self.number = 0
        self.peeks = {}
        self.assigned = deque()
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
    slots = SlotPool(machine, selectors.DefaultSelector(), {}, SlotServer(os.getpid(), socket.socket()))
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


class Replaced(Executable):
    """A slot that has run attempts with another key, and does not end when it is asked to."""

    def __init__(self) -> None:
        super().__init__([])
        self.told: list[Any] = []

    def has_other_key(self, wanted: str) -> bool:
        return True

    def order(self, what: int, body: bytes = b"") -> None:
        self.told.append(what)

    def kill_all(self) -> None:
        self.told.append("kill")


class Fresh(Executable):
    def assign(self, attempts: Any, now: float) -> None:
        pass


def test_a_slot_that_is_replaced_and_does_not_end_is_killed() -> None:
    slots, _ = make_slots()
    old = slots.processes[0] = Replaced()
    slots._spare = [Fresh([])]
    slots.start(0, [Attempt(1, 1, AttemptSpec(0, "exec", 0.0, {}, {}, b""), b"", ())], 1.0)
    assert slots.processes[0] is not old and old.told == [QUIT]
    slots.check_timers(1.0 + RETIRE_TIMEOUT_S / 2)
    assert slots.deadline <= 1.0 + RETIRE_TIMEOUT_S and old.told == [QUIT]
    for _ in range(2):
        slots.check_timers(1.0 + RETIRE_TIMEOUT_S)
    assert old.told == [QUIT, "kill"]
