"""Whatever agents, clients and sites say, and in whatever order, the core keeps its invariants. Hypothesis looks for a counterexample."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pilotfish.core import state_snapshot
from pilotfish.core.apply import apply
from pilotfish.core.explain import task_reasons
from pilotfish.core.state import State
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.facts import TurnRecord, decode_record, encode_record
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import DONE
from pilotfish.model.task import Failure, Request, TaskSpec
from tests.support.machine_stage import CLIENT, Stage
from tests.support.state_check import fingerprint

WORKERS = st.sampled_from(["w1", "w2", "w3"])
RUNS = st.integers(1, 3)
INDICES = st.integers(0, 8)
ATTEMPTS = st.integers(1, 4)
FAILURES = st.sampled_from(
    [
        None,
        None,
        Failure("exit", "task", "3"),
        Failure("oom", "task", ""),
        Failure("crash", "task", ""),
        Failure("slot-lost", "worker", ""),
        Failure("disk", "worker", ""),
        Failure("version", "user", ""),
    ]
)
SPECS = st.builds(
    TaskSpec,
    kind=st.just("python"),
    request=st.builds(
        Request,
        cores=st.sampled_from([0.5, 1.0, 2.0]),
        cores_max=st.sampled_from([0.0, 3.0]),
        memory=st.sampled_from([0, 4]),
        nodes=st.sampled_from([1, 1, 2]),
    ),
    time_s=st.sampled_from([0.0, 50.0]),
    retries=st.integers(0, 2),
    losses=st.integers(0, 3),
    priority=st.integers(-1, 1),
    tags=st.sampled_from([{}, {}, {"gpu": "yes"}]),
    concurrency_limit=st.sampled_from([("", 0), ("", 0), ("x", 1), ("x", 2), ("y", 1)]),
)


class CoreStory(RuleBasedStateMachine):
    """Agents that keep to the protocol and agents that do not; ``Stage`` checks the state and the replay after every turn."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(PoolSettings(quarantine_after=2, author_s=20, quarantine_s=30))
        self.links: dict[str, int] = {}

    @property
    def state(self) -> State:
        return self.stage.machine.state

    def _link(self, worker: str) -> int:
        return self.links.get(worker, 0)

    # --- clients --------------------------------------------------------------------------------------------------------------------

    @rule(run=RUNS, owned=st.booleans(), most=st.integers(0, 2))
    def open_run(self, run: int, owned: bool, most: int) -> None:
        self.stage.open_run(f"uid{run}", owned=owned, max_failures=most)

    @rule(run=RUNS, spec=SPECS, count=st.integers(1, 4), needs=st.sampled_from(["", "success", "end"]), first=st.integers(-2, 1))
    def submit(self, run: int, spec: TaskSpec, count: int, needs: str, first: int) -> None:
        known = self.state.runs.get(run)
        if known is None:
            return
        start = max(0, len(known.tasks) + first)
        deps, after_any = ({count - 1: [start - 1]} if needs == kind and start > 0 else {} for kind in ("success", "end"))
        message = m.Submit(run, start, len(known.specs), [spec], [0], [(len(known.specs), 1)] * count, deps, after_any=after_any)
        before = len(known.tasks)
        self.stage.tell(i.ClientMessage(CLIENT, message, [b"", *[b"x"] * count]))
        assert len(known.tasks) in (before, max(before, start + count))

    @rule(run=RUNS)
    def close(self, run: int) -> None:
        self.stage.close_run(run)

    @rule(run=RUNS, cursor=st.integers(0, 5))
    def watch(self, run: int, cursor: int) -> None:
        self.stage.tell(i.ClientMessage(CLIENT, m.Watch(run, cursor, True)))

    @rule(kind=st.sampled_from(["pause", "resume", "cancel", "rerun", "forget", "tasks", "run", "why"]), run=RUNS)
    def ask_about_run(self, kind: str, run: int) -> None:
        self.stage.ask(kind, run=run)

    @rule(kind=st.sampled_from(["task", "why", "tail", "payload"]), run=RUNS, index=INDICES)
    def ask_about_task(self, kind: str, run: int, index: int) -> None:
        self.stage.tell(i.ClientMessage(CLIENT, m.Ask(1, kind, {"task": f"{run}.{index}"})))

    @rule(run=RUNS, index=INDICES)
    def cancel_task(self, run: int, index: int) -> None:
        self.stage.ask("cancel", tasks=[f"{run}.{index}"])

    @rule(kind=st.sampled_from(["drain", "quarantine_clear", "why"]), worker=WORKERS)
    def ask_about_worker(self, kind: str, worker: str) -> None:
        self.stage.ask(kind, worker=worker)

    @rule(cores=st.sampled_from([0, 2, 4]))
    def size_pool(self, cores: int) -> None:
        self.stage.ask("workers_set", local=cores)

    @rule()
    def client_leaves(self) -> None:
        self.stage.tell(i.LinkClosed(CLIENT))

    # --- agents ---------------------------------------------------------------------------------------------------------------------

    @rule(worker=WORKERS, cores=st.sampled_from([1.0, 2.0]), honest=st.booleans(), ends=st.sampled_from([None, 40.0]))
    def hello(self, worker: str, cores: float, honest: bool, ends: float | None) -> None:
        """An agent joins or comes back: with all that it was given, or with empty hands."""
        held = self.stage.held.get(self._link(worker), {}) if honest else {}
        holding = [(task, attempt, m.STARTED if task % 2 else m.QUEUED) for task, attempt in held.items()]
        offer: dict[str, Any] = {"holding": holding, "ends_in_s": ends, "tags": {"gpu": "yes"} if cores > 1 else {}}
        self.links[worker] = self.stage.join(worker, cores, capacity={"memory": 16.0}, pilot="p", **offer)
        self.stage.held.setdefault(self.links[worker], {}).update(held)

    @rule(worker=WORKERS, failure=FAILURES, count=st.integers(1, 4), wall_us=st.sampled_from([100, 3_000_000]))
    def results(self, worker: str, failure: Failure | None, count: int, wall_us: int) -> None:
        link = self._link(worker)
        numbers = list(self.stage.held.get(link, {}))[:count]
        if numbers:
            items = [m.ResultItem(number, self.stage.held[link].pop(number), failure, wall_us, 1, 1, 1) for number in numbers]
            self.stage.tell(i.AgentMessage(link, m.Results(0, items), [b"r"] * len(items)))

    @rule(worker=WORKERS, run=RUNS, index=INDICES, attempt=ATTEMPTS, failure=FAILURES)
    def stray_result(self, worker: str, run: int, index: int, attempt: int, failure: Failure | None) -> None:
        """Old, repeated or made up."""
        item = m.ResultItem(run << 32 | index, attempt, failure, 1, 1, 1, 1)
        self.stage.tell(i.AgentMessage(self._link(worker), m.Results(0, [item, item]), [b"r", b"r"]))

    @rule(worker=WORKERS, run=RUNS, index=INDICES, attempt=ATTEMPTS)
    def beat(self, worker: str, run: int, index: int, attempt: int) -> None:
        held = list(self.stage.held.get(self._link(worker), {}).items())[:1]
        self.stage.tell(i.AgentMessage(self._link(worker), m.Heartbeat([*held, (run << 32 | index, attempt)])))

    @rule(worker=WORKERS, count=st.integers(1, 3))
    def returned(self, worker: str, count: int) -> None:
        held = self.stage.held.get(self._link(worker), {})
        items = list(held.items())[-count:]
        for task, _ in items:
            del held[task]
        self.stage.tell(i.AgentMessage(self._link(worker), m.Returned(items)))

    @rule(worker=WORKERS, how=st.sampled_from(["leave", "gone", "closed"]))
    def part(self, worker: str, how: str) -> None:
        link = self._link(worker)
        if how == "leave":
            self.stage.tell(i.AgentMessage(link, m.Leave("it is time")))
        elif how == "gone":
            self.stage.lose(worker)
        else:
            self.stage.tell(i.LinkClosed(link))

    # --- the world ------------------------------------------------------------------------------------------------------------------

    @rule(number=st.integers(1, 4), what=st.sampled_from(["accepted", "well", "badly", "unseen"]))
    def pilot(self, number: int, what: str) -> None:
        name = f"local-{number}"
        if what == "accepted":
            self.stage.tell(i.PilotAccepted(name, "job"))
        else:
            self.stage.tell(i.PilotEndReported(name, what == "well", "so it is", witnessed=what != "unseen"))

    @rule(full=st.booleans())
    def space(self, full: bool) -> None:
        self.stage.tell(i.JournalSpaceChanged(full))

    @rule(seconds=st.sampled_from([0.5, 5.0, 25.0]), quietly=st.booleans())
    def wait(self, seconds: float, quietly: bool) -> None:
        self.stage.wait(seconds, quietly)

    @rule(seconds=st.sampled_from([0.5, 60.0]))
    def sleep(self, seconds: float) -> None:
        """The master itself is stopped for a while."""
        self.stage.tell(after_s=seconds)

    @rule()
    def restart(self) -> None:
        self.stage.restart()
        self.links.clear()

    @precondition(lambda self: self.state.runs)
    @rule()
    def compact(self) -> None:
        again = State()
        records = [encode_record(TurnRecord(self.state.at, [fact])) for fact in state_snapshot.dump(self.state)]
        for record in records:
            for fact in decode_record(record).facts:
                apply(again, fact, self.state.at)
        assert fingerprint(again) == fingerprint(self.state)
        self.stage.journal = records

    # --- always ---------------------------------------------------------------------------------------------------------------------

    @invariant()
    def whoever_waits_knows_why(self) -> None:
        for run in self.state.runs.values():
            for task in run.tasks:
                if task.state < DONE:
                    assert task_reasons.explain_task(self.stage.machine, task)["reasons"]

    @invariant()
    def the_next_turn_is_not_in_the_past(self) -> None:
        deadline = self.stage.machine.deadline
        assert deadline is None or deadline >= self.stage.machine.now


TestCoreStory = CoreStory.TestCase
TestCoreStory.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
