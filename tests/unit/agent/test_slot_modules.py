"""A slot never gets attempts with different keys in one queue, and slots with the right key are preferred."""

from __future__ import annotations

from pilotfish.agent.node.attempts import Attempt, AttemptQueue, AttemptSpec

NEEDS = (("cores", 1.0),)


class Node:
    def __init__(self, cores: float) -> None:
        self.queue = AttemptQueue({"cores": cores})
        self.specs: dict[tuple[str, str | None], AttemptSpec] = {}
        self.tasks = 0

    def add(self, modules: str | None, count: int = 1, estimate_s: float = 0.0001) -> None:
        kind = "exec" if modules is None else "python"
        launch = {} if not modules else {"modules": modules}
        key = kind, modules
        if key not in self.specs:
            self.specs[key] = AttemptSpec(len(self.specs), kind, 0.0, {"cores": 1.0}, launch, b"")
        self.specs[key].estimate_s = estimate_s
        needs = self.queue.needs_of(self.specs[key], 0.0, 0)
        for _ in range(count):
            self.tasks += 1
            self.queue.enqueue(Attempt(self.tasks, 1, self.specs[key], b"", needs))

    def started(self) -> dict[int, list[str | None]]:
        self.queue.fill(0.0)
        names = {spec.process_key: modules for (_, modules), spec in self.specs.items()}
        found = {slot: [names[attempt.spec.process_key] for attempt in attempts] for slot, attempts in self.queue.to_start.items()}
        self.queue.to_start = {}
        return found

    def finish(self, slot: int) -> None:
        view = self.queue.slots[slot]
        while view.attempts:
            self.queue.finished(view, 0.0)


def test_calls_with_other_modules_are_not_queued_behind_each_other() -> None:
    node = Node(1.0)
    node.add("a", 3)
    node.add("b", 3)
    assert node.started() == {0: ["a", "a", "a"]}
    node.finish(0)
    assert node.started() == {1: ["b", "b", "b"]}


def test_an_idle_slot_with_the_same_modules_is_preferred_then_a_new_one() -> None:
    node = Node(2.0)
    node.add("a")
    node.add("b")
    assert node.started() == {0: ["a"], 1: ["b"]}
    node.finish(0)
    node.finish(1)
    node.add("a", estimate_s=-1.0)
    node.add("c", estimate_s=-1.0)
    assert node.started() == {0: ["a"], 2: ["c"]}


def test_the_slot_that_was_idle_for_the_longest_time_is_replaced_when_many_are_idle() -> None:
    node = Node(1.0)
    for slot, modules in enumerate("ab"):
        node.add(modules)
        assert node.started() == {slot: [modules]}
        node.finish(slot)
    node.add("c")
    assert node.started() == {0: ["c"]}


def test_calls_without_own_modules_are_kept_apart_from_calls_with_them() -> None:
    node = Node(1.0)
    node.add("")
    node.add("a")
    assert node.started() == {0: [""]}


def test_executables_have_slots_of_their_own_and_take_turns_with_calls_without_new_processes() -> None:
    node = Node(1.0)
    node.add("a")
    assert node.started() == {0: ["a"]}
    node.finish(0)
    for _ in range(3):
        node.add(None)
        assert node.started() == {1: [None]}
        node.finish(1)
        node.add("a")
        assert node.started() == {0: ["a"]}
        node.finish(0)
