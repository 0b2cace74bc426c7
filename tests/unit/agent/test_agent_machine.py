"""Tests the agent machine: protocol rules one by one, and a seeded storm in which every attempt must end exactly once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pilotfish.agent.node.agent_machine import DOWN, WELCOMED, AgentMachine, WorkerOffer

WELCOME = ["welcome", 1, 5.0, 60.0]


def make_machine(cores: float = 2.0, **offer_fields: Any) -> AgentMachine:
    offer = WorkerOffer("w1", "p1", {"cores": cores, "memory": 1000.0})
    for name, value in offer_fields.items():
        setattr(offer, name, value)
    return AgentMachine(offer, seed=1, now=0.0)


def joined(cores: float = 2.0, **offer_fields: Any) -> AgentMachine:
    machine = make_machine(cores, **offer_fields)
    assert machine.turn(0.0) == [("dial",)]
    machine.linked(1, 0.0)
    assert machine.turn(0.0)[0][1][0] == "hello"
    machine.received(WELCOME, b"", 0.0)
    machine.turn(0.0)
    return machine


def assign(
    *tasks: tuple[int, int], spec: int = 1, time_s: float = 0.0, needs: dict[str, float] | None = None, kind: str = "python"
) -> list[Any]:
    needs = {"cores": 1.0} if needs is None else needs
    rows = [[task, attempt, spec, 0, 0, 0, [], []] for task, attempt in tasks]
    return ["assign", [[spec, kind, time_s, needs, {}, 0, [], "", "", {}]], rows]


def ok(wall_us: int = 100_000) -> tuple[None, int, int, int, bytes]:
    return (None, wall_us, 0, 0, b"")


def of(effects: list[Any], kind: str) -> list[Any]:
    return [effect for effect in effects if effect[0] == kind]


def sent(effects: list[Any], tag: str) -> list[Any]:
    return [effect[1] for effect in effects if effect[0] == "send" and effect[1][0] == tag]


def starts(effects: list[Any]) -> dict[int, list[int]]:
    return {slot: [attempt.task for attempt in attempts] for _, slot, attempts in of(effects, "start")}


def test_queued_tasks_start_in_order_as_far_as_the_capacity_goes() -> None:
    machine = joined()
    machine.received(assign((1, 1), (2, 1), (3, 1)), b"", 0.0)
    assert starts(machine.turn(0.0)) == {0: [1], 1: [2]}
    machine.slot_finished(1, [ok()], 0.1)
    effects = machine.turn(0.1)
    assert starts(effects) == {1: [3]}
    assert sent(effects, "results") == [["results", 0, [[2, 1, None, 100_000, 0, 0, 0]]]]


def test_a_task_that_does_not_fit_holds_back_those_behind_it() -> None:
    machine = joined()
    machine.received(assign((1, 1)), b"", 0.0)
    machine.received(assign((2, 1), spec=2, needs={"cores": 2.0}), b"", 0.0)
    machine.received(assign((3, 1)), b"", 0.0)
    assert starts(machine.turn(0.0)) == {0: [1]}
    machine.slot_finished(0, [ok()], 1.0)
    assert starts(machine.turn(1.0)) == {0: [2]}


@pytest.mark.parametrize("rows", [[[1, 1, 5, 0, 0, 0, [], [], "more"]], [[1, 1, 5]], [["x"]], [[1, 1, 1, 10, 0, 0, [], []]], 5])
def test_an_unreadable_assignment_from_a_peer_is_dropped(rows: Any) -> None:
    machine = joined()
    machine.received(assign((1, 1)), b"", 0.0)
    machine.assigned_by_peer(["assign", [], rows], b"", 0.0)
    machine.assigned_by_peer(["assign"], b"", 0.0)
    effects = machine.turn(0.0)
    assert starts(effects) == {0: [1]} and not of(effects, "disconnect")


def test_an_attempt_that_is_held_or_done_is_not_taken_again() -> None:
    machine = joined()
    machine.received(assign((1, 1)), b"", 0.0)
    machine.turn(0.0)
    machine.received(assign((1, 1)), b"", 0.0)
    assert starts(machine.turn(0.0)) == {}
    machine.slot_finished(0, [ok()], 0.1)
    machine.turn(0.1)
    machine.received(["acked", 0, 0], b"", 0.2)
    machine.received(assign((1, 1)), b"", 0.2)
    assert starts(machine.turn(0.2)) == {}
    assert not machine.results.kept


def test_free_resources_are_reported_again_after_an_assignment_that_is_not_new() -> None:
    """The site master counts the resources as taken, and assigns nothing more until it hears otherwise."""
    machine = joined(cores=1.0)
    machine.received(["quiet", True], b"", 0.0)
    assert of(machine.turn(0.0), "report_free") == [("report_free", {"cores": 1.0, "memory": 1000.0})]
    machine.assigned_by_peer(assign((1, 1)), b"", 0.0)
    assert of(machine.turn(0.0), "report_free") == [("report_free", {"cores": 0.0, "memory": 1000.0})]
    machine.slot_finished(0, [ok()], 0.1)
    assert of(machine.turn(0.1), "report_free") == [("report_free", {"cores": 1.0, "memory": 1000.0})]
    machine.assigned_by_peer(assign((1, 1)), b"", 0.2)
    assert of(machine.turn(0.2), "report_free") == [("report_free", {"cores": 1.0, "memory": 1000.0})]
    assert of(machine.turn(0.3), "report_free") == [], "once"


def test_a_delegated_worker_stays_delegated_for_one_connection_only() -> None:
    """The next master may know no site master, and would take silence for death."""
    machine = joined()
    machine.received(["quiet", True], b"", 0.0)
    machine.turn(0.0)
    machine.unlinked(10.0)
    assert machine.turn(10.0) == [("dial",)]
    machine.linked(1, 10.0)
    machine.turn(10.0)
    machine.received(WELCOME, b"", 10.0)
    assert sent(machine.turn(15.0), "beat")


def test_free_resources_are_reported_after_every_introduction() -> None:
    """The first introduction may come after the worker was delegated; until then it has no peers."""
    machine = joined()
    machine.received(["quiet", True], b"", 0.0)
    assert of(machine.turn(0.0), "report_free")
    machine.received(["introduce", "here"], b"", 0.0)
    assert [effect[0] for effect in machine.turn(0.0) if effect[0] in ("introduce", "report_free")] == ["introduce", "report_free"]


def test_a_newer_attempt_has_the_old_one_killed() -> None:
    machine = joined(cores=1.0)
    machine.received(assign((1, 1)), b"", 0.0)
    machine.turn(0.0)
    machine.received(assign((1, 2)), b"", 0.1)
    assert of(machine.turn(0.1), "kill") == [("kill", 0)]
    machine.slot_died(0, 1, ["slot-lost", "worker", ""], (0, 0, 0), 0.2)
    effects = machine.turn(0.2)
    assert starts(effects) == {1: [1]} and not sent(effects, "results")


def test_short_tasks_are_prefetched_and_recalled_from_behind_a_long_one() -> None:
    machine = joined(cores=1.0)
    machine.received(assign(*[(task, 1) for task in range(10)]), b"", 0.0)
    assert starts(machine.turn(0.0)) == {0: [0]}
    machine.slot_finished(0, [ok(wall_us=1000)], 0.001)
    assert starts(machine.turn(0.001)) == {0: list(range(1, 10))}
    assert of(machine.turn(0.027), "recall") == [("recall", 0)]
    machine.slot_returned(0, 8, 0.028)
    assert [attempt.task for attempt in machine.attempts.queue] == list(range(2, 10))
    assert starts(machine.turn(0.03)) == {}
    machine.slot_finished(0, [ok(wall_us=30_000)], 0.031)
    assert starts(machine.turn(0.031))[0][0] == 2


def test_prefetched_attempts_of_a_dead_slot_are_queued_again_and_only_the_started_are_reported() -> None:
    machine = joined(cores=1.0)
    machine.received(assign(*[(task, 1) for task in range(5)]), b"", 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [ok(wall_us=100)], 0.001)
    machine.turn(0.001)
    machine.slot_died(0, 2, ["crash", "task", "signal 11"], (5, 6, 7), 0.002)
    effects = machine.turn(0.002)
    rows = [row for header in sent(effects + machine.turn(0.3), "results") for row in header[2]]
    assert sorted((row[0], row[2][0]) for row in rows) == [(1, "slot-lost"), (2, "crash")]
    assert starts(effects)[1][0] == 3


def test_a_time_limit_terminates_then_kills_and_says_time() -> None:
    machine = joined(cores=1.0)
    machine.received(assign((1, 1), time_s=1.0), b"", 0.0)
    machine.turn(0.0)
    assert machine.deadline == pytest.approx(0.05)
    assert sent(machine.turn(0.05), "beat") == [["beat", [[1, 1]], [], []]]
    assert machine.deadline == pytest.approx(1.0)
    assert of(machine.turn(1.0), "terminate") == [("terminate", 0)]
    assert of(machine.turn(3.0), "kill") == [("kill", 0)]
    machine.slot_died(0, 1, ["slot-lost", "worker", "signal 9"], (1, 2, 3), 3.1)
    assert sent(machine.turn(3.1), "results")[0][2][0][2][:2] == ["time", "task"]


def test_an_attempt_that_ended_after_terminate_is_over_time_even_if_it_succeeded() -> None:
    machine = joined(cores=1.0)
    machine.received(assign((1, 1), time_s=1.0), b"", 0.0)
    machine.turn(0.0)
    machine.turn(1.0)
    machine.slot_finished(0, [ok()], 1.1)
    assert sent(machine.turn(1.1), "results")[0][2][0][2][:2] == ["time", "task"]


def test_the_time_of_an_attempt_begins_when_its_slot_is_up() -> None:
    machine = joined(cores=1.0)
    machine.received(assign((1, 1), time_s=1.0), b"", 0.0)
    machine.turn(0.0)
    assert of(machine.turn(1.0), "terminate")
    machine.not_started(0, 1.0)
    assert not of(machine.turn(1.0), "terminate") and machine.deadline == pytest.approx(1.05)
    assert of(machine.turn(2.0), "terminate")


def test_an_attempt_over_its_memory_limit_is_killed_after_prefetched_attempts_were_recalled() -> None:
    machine = joined(cores=1.0)
    machine.received(assign(*[(task, 1) for task in range(5)]), b"", 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [ok(wall_us=100)], 0.001)
    machine.turn(0.001)
    machine.over_limit(0, ["oom", "task", "too much"], 0.002)
    assert of(machine.turn(0.002), "recall") and not of(machine.turn(0.002), "kill")
    machine.slot_returned(0, 3, 0.003)
    assert of(machine.turn(0.003), "kill") == [("kill", 0)]
    machine.slot_died(0, 1, ["slot-lost", "worker", ""], (1, 2, 3, b"last words"), 0.004)
    effects = machine.turn(0.004)
    results = [row for header in sent(effects, "results") for row in header[2]]
    assert [(row[0], row[2], row[6]) for row in results] == [(1, ["oom", "task", "too much"], 10)]
    assert starts(effects)[1][0] == 2


def test_results_are_kept_over_a_lost_link_and_sent_again_under_their_numbers() -> None:
    machine = joined()
    machine.received(assign((1, 1), (2, 1), (3, 1)), b"", 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [ok()], 0.2)
    machine.turn(0.2)
    machine.unlinked(2.0)
    assert ("dial",) in machine.turn(2.0)
    machine.slot_finished(1, [ok()], 2.1)
    machine.linked(1, 2.2)
    hello = sent(machine.turn(2.2), "hello")[0]
    assert sorted(hello[-1]) == [[1, 1, 2], [2, 1, 2], [3, 1, 1]]
    machine.received(WELCOME, b"", 2.3)
    assert [row[0] for row in sent(machine.turn(2.3), "results")[0][2]] == [1, 2]
    machine.received(["acked", 0, 1], b"", 2.4)
    assert not machine.results.kept


def test_recall_returns_only_attempts_that_have_not_started() -> None:
    machine = joined(cores=1.0)
    machine.received(assign((1, 1), (2, 1), (3, 1)), b"", 0.0)
    machine.turn(0.0)
    machine.received(["recall", [[1, 1], [2, 1], [9, 1]]], b"", 0.1)
    assert sent(machine.turn(0.1), "returned") == [["returned", [[2, 1]]]]
    machine.slot_finished(0, [ok()], 0.2)
    assert starts(machine.turn(0.2)) == {0: [3]}


def test_a_draining_agent_returns_queued_attempts_and_leaves_when_all_results_are_acknowledged() -> None:
    machine = joined(cores=1.0)
    machine.received(assign((1, 1), (2, 1)), b"", 0.0)
    machine.turn(0.0)
    machine.received(["drain", "enough"], b"", 0.1)
    assert sent(machine.turn(0.1), "returned") == [["returned", [[2, 1]]]]
    machine.received(assign((3, 1)), b"", 0.2)
    assert sent(machine.turn(0.2), "returned") == [["returned", [[3, 1]]]]
    machine.slot_finished(0, [ok()], 0.3)
    assert not of(machine.turn(0.3), "exit")
    machine.received(["acked", 0, 0], b"", 0.4)
    effects = machine.turn(0.4)
    assert sent(effects, "leave") == [["leave", "enough"]] and of(effects, "exit") == [("exit", "enough", 0)]


def test_a_silent_master_is_disconnected_and_no_contact_ends_the_agent() -> None:
    machine = joined()
    now = 0.0
    seen: list[tuple[float, str]] = []
    while not machine.exited:
        now = machine.deadline
        seen.extend((now, effect[0]) for effect in machine.turn(now))
        if machine.link == 1:
            machine.unlinked(now)
            machine.turn(now)
    assert (15.0, "disconnect") in seen and (15.0, "dial") in seen
    assert seen[-1] == (60.0, "exit")
    dials = [at for at, what in seen if what == "dial"]
    assert 10 < len(dials) < 40


def test_a_master_with_an_older_epoch_is_disconnected() -> None:
    machine = joined()
    machine.unlinked(2.0)
    machine.turn(2.0)
    machine.linked(0, 2.0)
    assert of(machine.turn(2.0), "disconnect")
    assert machine.link == DOWN


def test_a_refusal_before_the_first_welcome_ends_the_agent() -> None:
    machine = make_machine()
    machine.turn(0.0)
    machine.refused("unknown key", 0.1)
    assert machine.turn(0.1) == [("exit", "the master refused this agent: unknown key", 3)]


def test_needs_beyond_the_capacity_are_refused_as_the_fault_of_the_worker() -> None:
    machine = joined()
    machine.received(assign((1, 1), needs={"cores": 64.0}), b"", 0.0)
    row = sent(machine.turn(0.0), "results")[0][2][0]
    assert row[2] == ["spawn", "worker", "this worker cannot run it: it needs 64 cores, this worker has 2"]


def test_a_stalled_agent_does_not_take_its_master_for_silent() -> None:
    machine = joined()
    effects = machine.turn(500.0)
    assert machine.link == WELCOMED and not of(effects, "exit")


def test_an_unreadable_message_of_the_master_only_disconnects() -> None:
    for header in (["assign"], ["assign", [[1]], []], ["assign", 3, 4], ["kill", [[1]]], ["welcome", "x", 1, 1], [None], []):
        machine = joined()
        machine.received(header, b"", 1.0)
        machine.turn(1.0)
        assert not machine.exited


def test_a_polling_agent_disconnects_when_all_is_acknowledged_and_connects_again() -> None:
    machine = joined(poll_s=10.0)
    machine.received(assign((1, 1)), b"", 0.01)
    machine.received(["pulse"], b"", 0.01)
    assert starts(machine.turn(0.01)) == {0: [1]}
    now = machine.deadline
    while machine.link != DOWN:
        now = machine.deadline
        effects = machine.turn(now)
    assert of(effects, "disconnect") and now < 0.2
    machine.slot_finished(0, [ok()], 5.0)
    assert of(machine.turn(5.0), "dial")
    machine.linked(1, 5.1)
    machine.received(WELCOME, b"", 5.1)
    effects = machine.turn(5.1)
    assert len(sent(effects, "results")) == 1 and len(sent(effects, "beat")) == 1


class Storm:
    """A toy master and toy slots that lose, repeat and cut messages at random. Each attempt must be reported exactly once and run at most
    once."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.machine = make_machine(cores=float(self.random.randint(1, 4)))
        self.now = 0.0
        self.link_up = False
        self.to_master: list[Any] = []
        self.slots: dict[int, list[Any]] = {}
        self.ran: dict[tuple[int, int], int] = {}
        self.running: set[int] = set()
        self.assigned: dict[int, int] = {}
        self.done: dict[int, int] = {}
        self.next_task = 0

    def perform(self, effects: list[Any]) -> None:
        machine = self.machine
        for effect in effects:
            if effect[0] == "dial":
                if self.random.random() < 0.3:
                    machine.unlinked(self.now)
                else:
                    machine.linked(1, self.now)
                    self.link_up = True
            elif effect[0] == "disconnect":
                self.link_up = False
            elif effect[0] == "send" and self.link_up:
                self.hear(effect[1])
            elif effect[0] == "start":
                self.slots.setdefault(effect[1], []).extend(effect[2])
            elif effect[0] == "recall":
                held = self.slots.get(effect[1], [])
                keep = 1 if effect[1] in self.running or self.random.random() < 0.5 else 0
                count = max(0, len(held) - keep)
                del held[len(held) - count :]
                machine.slot_returned(effect[1], count, self.now)
            elif effect[0] in ("terminate", "kill"):
                assert len(self.slots[effect[1]]) == 1, "neighbours must be brought to safety first"
                self.kill(effect[1])

    def hear(self, header: list[Any]) -> None:
        if header[0] == "hello":
            held = {(task, attempt) for task, attempt, _ in header[-1]}
            self.machine.received(["welcome", 1, 5.0, 60.0], b"", self.now)
            for task, attempt in list(self.assigned.items()):
                if (task, attempt) not in held:
                    self.give(task, attempt + 1)
        elif header[0] == "results":
            for row in header[2]:
                if self.assigned.get(row[0]) == row[1]:
                    del self.assigned[row[0]]
                    self.done[row[0]] = self.done.get(row[0], 0) + 1
            if self.random.random() < 0.9:
                self.machine.received(["acked", header[1], header[1] + len(header[2]) - 1], b"", self.now)
        elif header[0] == "returned":
            for task, attempt in header[1]:
                if self.assigned.get(task) == attempt:
                    self.give(task, attempt + 1)

    def give(self, task: int, attempt: int) -> None:
        self.assigned[task] = attempt
        frame = assign((task, attempt), spec=task % 3, needs={"cores": 0.5 if task % 3 == 2 else 1.0}, time_s=0.3 if task % 3 == 1 else 0.0)
        for _ in range(self.random.choice((1, 1, 1, 2))):
            self.machine.received(frame, b"", self.now)

    def kill(self, slot: int) -> None:
        held = self.slots.pop(slot)
        begun = 1 if slot in self.running and held else 0
        self.running.discard(slot)
        self.machine.slot_died(slot, begun, ["slot-lost", "worker", ""], (0, 0, 0), self.now)

    def act(self) -> None:
        dice = self.random.random()
        slots = [slot for slot, held in self.slots.items() if held]
        if dice < 0.25 and self.next_task < 60 and self.link_up:
            self.give(self.next_task, 1)
            self.next_task += 1
        elif dice < 0.30 and self.link_up:
            self.link_up = False
            self.machine.unlinked(self.now)
        elif dice < 0.34 and slots:
            self.kill(self.random.choice(slots))
        elif dice < 0.38 and self.link_up and self.assigned:
            task = self.random.choice(list(self.assigned))
            self.machine.received(["recall", [[task, self.assigned[task]]]], b"", self.now)
        elif dice < 0.40 and self.link_up and self.assigned:
            task = self.random.choice(list(self.assigned))
            self.machine.received(["kill", [[task, self.assigned[task]]]], b"", self.now)
            self.give(task, self.assigned[task] + 1)
        elif slots:
            slot = self.random.choice(slots)
            attempt = self.slots[slot][0]
            if slot not in self.running:
                self.running.add(slot)
                key = (attempt.task, attempt.attempt)
                self.ran[key] = self.ran.get(key, 0) + 1
            else:
                self.running.discard(slot)
                self.slots[slot].pop(0)
                self.machine.slot_finished(slot, [ok(wall_us=self.random.choice((10, 1000, 400_000)))], self.now)

    def step(self) -> None:
        self.act()
        effects = self.machine.turn(self.now)
        while effects:
            self.perform(effects)
            effects = self.machine.turn(self.now)
        attempts = self.machine.attempts
        assert all(amount > -1e-6 for amount in attempts.free.values())
        assert {n: [a.task for a in s.attempts] for n, s in attempts.busy.items()} == {
            n: [a.task for a in held] for n, held in self.slots.items() if held
        }
        self.now = min(self.now + self.random.choice((0.0, 0.001, 0.03, 0.5)), max(self.now, self.machine.deadline))


@pytest.mark.parametrize("seed", range(100))
def test_in_a_storm_every_task_ends_once_and_no_attempt_runs_twice(seed: int) -> None:
    storm = Storm(seed)
    for _ in range(20_000):
        storm.step()
        if storm.next_task == 60 and not storm.assigned:
            break
    assert storm.done == dict.fromkeys(range(60), 1)
    assert all(count == 1 for count in storm.ran.values())
