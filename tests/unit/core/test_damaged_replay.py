"""A journal with a hole in it: whatever record is missing, the rest makes a sound state and no result that was kept is lost."""

from __future__ import annotations

import msgspec
import pytest

from pilotfish.core.apply import apply
from pilotfish.core.machine import Machine, Turn
from pilotfish.core.state import State
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import DONE
from pilotfish.model.task import Failure, Payload, RunOptions, TaskSpec
from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.matchers import LocalityMatcher
from pilotfish.store.state_storage import apply_repaired, settle
from tests.support.local_provisioner import LocalProvisioner
from tests.support.state_check import check

TASKS = 12


class History:
    """A small run with everything in it: dependencies, failures, a worker that dies, a second run, a cancel, a rerun."""

    def __init__(self) -> None:
        self.machine = Machine(State(), Dispatcher(LocalityMatcher()), LocalProvisioner(), PoolSettings(local_cores=2))
        self.turns: list[Turn] = []
        self.now = 1000.0
        self._keep(self.machine.start(self.now))
        self._play()

    def _keep(self, turn: Turn) -> list[e.Effect]:
        if turn.facts:
            self.turns.append(turn)
        return turn.effects

    def _do(self, *inputs: i.Input) -> list[e.Effect]:
        self.now += 0.1
        return self._keep(self.machine.handle(inputs, self.now))

    def _play(self) -> None:
        self._do(i.ClientMessage(1, m.Open("one", RunOptions())))
        spec = TaskSpec("python", retries=1, concurrency_limit=("x", 3))
        for first in range(0, TASKS, 4):
            specs = [spec] if first == 0 else []
            tasks = [(0, 1)] * 4
            deps = {3: [first]}
            payloads: list[Payload] = [*([b""] * len(specs)), *([b"x"] * 4)]
            self._do(
                i.ClientMessage(
                    1, m.Submit(1, first, 0 if first == 0 else 1, specs, [0] * len(specs), tasks, deps, after_any={2: [first]}), payloads
                )
            )
        effects = self._do(i.AgentMessage(2, m.Hello("local-1", "local-1", {"cores": 2.0}, {}, {}, None, 0.0, [])))
        effects = self._answer(2, effects, 0)
        self._do(i.PilotEndReported("local-1", False, "was killed by signal 9"))
        effects = self._do(i.AgentMessage(3, m.Hello("local-2", "local-2", {"cores": 2.0}, {}, {}, None, 0.0, [])))
        for number in range(40):
            effects = self._answer(3, effects, number)
        self._do(i.ClientMessage(1, m.Close(1)))
        self._do(i.ClientMessage(1, m.Open("two", RunOptions())))
        self._do(i.ClientMessage(1, m.Submit(2, 0, 0, [spec], [0], [(0, 1)] * 3), [b"", b"y", b"y", b"y"]))
        self._do(i.ClientMessage(1, m.Ask(9, "cancel", {"run": 2})))
        changes = {"specs": [[0, msgspec.structs.replace(spec, time_s=9.0), False]]}
        effects = self._do(i.ClientMessage(1, m.Ask(10, "rerun", {"run": 2, "changes": changes})))
        for number in range(40, 44):
            effects = self._answer(3, effects, number)

    def _answer(self, link: int, effects: list[e.Effect], number: int) -> list[e.Effect]:
        tasks = [
            task
            for effect in effects
            if isinstance(effect, e.Send) and isinstance(effect.message, m.Assign)
            for task in effect.message.tasks
        ]
        bad = Failure("exit", "task", "exit status 1")
        items = [
            m.ResultItem(task.task, task.attempt, bad if task.task % 5 == 0 and task.attempt == 1 else None, 9, 9, 9, 1) for task in tasks
        ]
        return self._do(i.AgentMessage(link, m.Results(number, items), [b"r"] * len(items))) if items else []


HISTORY = History()


def replay_without(missing: set[int]) -> State:
    state = State()
    holes = False
    for number, turn in enumerate(HISTORY.turns):
        if number in missing:
            holes = True
            continue
        for fact in turn.facts:
            assert isinstance(fact, f.Fact)
            if holes:
                apply_repaired(state, fact, turn.at)
            else:
                apply(state, fact, turn.at)
    if holes:
        settle(state, state.at)
    return state


def results_kept(missing: set[int]) -> dict[int, Payload]:
    """What the remaining records say about tasks that are done."""
    kept: dict[int, Payload] = {}
    for number, turn in enumerate(HISTORY.turns):
        for fact in turn.facts if number not in missing else []:
            if isinstance(fact, f.TasksDone):
                kept.update(zip(fact.tasks, fact.outputs, strict=True))
    return kept


def test_the_history_is_worth_the_name() -> None:
    state = replay_without(set())
    assert state.runs[1].counts[DONE] == TASKS
    kinds = {type(fact).__name__ for turn in HISTORY.turns for fact in turn.facts}
    assert {"TasksAdded", "TasksAssigned", "TasksDone", "AttemptFailed", "WorkerEnded", "RunCancelled", "TasksRerun", "PilotEnded"} <= kinds
    assert state.runs[2].counts[DONE] == 3


@pytest.mark.parametrize("missing", range(len(HISTORY.turns)))
def test_any_one_record_may_be_missing(missing: int) -> None:
    state = replay_without({missing})
    check(state)
    for task, output in results_kept({missing}).items():
        found = state.find_task(task)
        assert found is not None and found.state == DONE and found.output == output, f"task {task:x}"


@pytest.mark.parametrize("first", range(0, len(HISTORY.turns), 3))
def test_a_whole_stretch_may_be_missing(first: int) -> None:
    missing = set(range(first, first + 5))
    state = replay_without(missing)
    check(state)
    for task in results_kept(missing):
        found = state.find_task(task)
        assert found is not None and found.state == DONE


@pytest.mark.parametrize("missing", range(0, len(HISTORY.turns), 4))
def test_a_mended_state_goes_on(missing: int) -> None:
    machine = Machine(replay_without({missing}), Dispatcher(LocalityMatcher()), LocalProvisioner(), PoolSettings(local_cores=2))
    machine.start(HISTORY.now + 1.0)
    machine.handle([], HISTORY.now + 100.0)
    check(machine.state)
