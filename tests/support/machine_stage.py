"""Drives one machine in tests of the core, with a clock, fake agents and clients, and a replay that is compared after every turn."""

from __future__ import annotations

from typing import Any, TypeVar

from pilotfish import plugins
from pilotfish.core.apply import apply
from pilotfish.core.machine import Machine, Turn
from pilotfish.core.policy_interface import Policy, Provisioner
from pilotfish.core.state import State, Task
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.facts import TurnRecord, decode_record, encode_record
from pilotfish.model.ids import task_id
from pilotfish.model.settings import PoolSettings
from pilotfish.model.task import Failure, RunOptions, TaskSpec
from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.matchers import LocalityMatcher
from tests.support.local_provisioner import LocalProvisioner
from tests.support.state_check import check, fingerprint

CLIENT = 1_000_000
Kind = TypeVar("Kind", bound=m.Message)


class Stage:
    """Checks every turn: the invariants of the state, and that its facts, encoded as in the journal, give the same state."""

    def __init__(self, settings: PoolSettings | None = None, policy: Policy | None = None, provisioner: Provisioner | None = None) -> None:
        self.settings = settings or PoolSettings()
        self.policy = policy or Dispatcher(LocalityMatcher())
        self.provisioner = provisioner or LocalProvisioner()
        self.now = 1000.0
        self.journal: list[bytes] = []
        self.shadow = State()
        self.effects: list[e.Effect] = []
        self.links = 0
        self.held: dict[int, dict[int, int]] = {}
        """By agent link: task -> attempt, as the agent understood its assignments."""
        self.start(State())

    # --- the machine ----------------------------------------------------------------------------------------------------------------

    def start(self, state: State) -> None:
        self.machine = Machine(state, self.policy, self.provisioner, self.settings, plugins.traits)
        self._take(self.machine.start(self.now))

    def restart(self) -> None:
        """Kill the master and recover it from its journal."""
        state = State()
        for record in self.journal:
            turn = decode_record(record)
            for fact in turn.facts:
                apply(state, fact, turn.at)
        assert fingerprint(state) == fingerprint(self.machine.state)
        self.held.clear()
        self.start(state)

    def tell(self, *inputs: i.Input, after_s: float = 0.001) -> list[e.Effect]:
        self.now += after_s
        return self._take(self.machine.handle(inputs, self.now))

    def wait(self, seconds: float, quietly: bool = True) -> list[e.Effect]:
        """Let time pass as a host would, with a turn at every deadline. ``quietly`` False: agents send heartbeats in between."""
        effects: list[e.Effect] = []
        until = self.now + seconds
        while self.machine.deadline is not None and self.machine.deadline <= until:
            self.now = max(self.now, self.machine.deadline)
            beats = [] if quietly else [i.AgentMessage(link, m.Heartbeat([])) for link in list(self.machine.agent_links)]
            effects += self._take(self.machine.handle(beats, self.now))
        self.now = until
        return effects

    def _take(self, turn: Turn) -> list[e.Effect]:
        check(self.machine.state)
        if turn.facts:
            record = encode_record(TurnRecord(turn.at, turn.facts))
            self.journal.append(record)
            again = decode_record(record)
            for fact in again.facts:
                apply(self.shadow, fact, again.at)
            assert fingerprint(self.shadow) == fingerprint(self.machine.state)
        self.effects = turn.effects
        for effect in turn.effects:
            if isinstance(effect, e.Send) and isinstance(effect.message, m.Assign):
                held = self.held.setdefault(effect.link, {})
                for sent in effect.message.tasks:
                    held[sent.task] = sent.attempt
        return turn.effects

    def sent(self, kind: type[Kind], link: int | None = None) -> list[Kind]:
        """Messages of this kind that the last turn sent."""
        sends = [effect for effect in self.effects if isinstance(effect, e.Send)]
        return [send.message for send in sends if isinstance(send.message, kind) and link in (None, send.link)]

    # --- clients --------------------------------------------------------------------------------------------------------------------

    def ask(self, kind: str, **arguments: Any) -> Any:
        return self.request("", kind, **arguments)

    def request(self, request: str, kind: str, **arguments: Any) -> Any:
        """Ask with a request id, by which a repetition is recognised."""
        self.tell(i.ClientMessage(CLIENT, m.Ask(1, kind, arguments, request)))
        problems = self.sent(m.Problem)
        if problems:
            return problems[0]
        return self.sent(m.Answer)[-1].data

    def open_run(self, uid: str = "run", **options: Any) -> int:
        self.tell(i.ClientMessage(CLIENT, m.Open(uid, RunOptions(**options))))
        return self.sent(m.Opened)[0].run

    def submit(
        self,
        run: int,
        spec: TaskSpec,
        count: int = 1,
        deps: dict[int, list[int]] | None = None,
        after_any: dict[int, list[int]] | None = None,
    ) -> list[Task]:
        known = self.machine.state.runs[run]
        first, first_spec = len(known.tasks), len(known.specs)
        message = m.Submit(run, first, first_spec, [spec], [0], [(first_spec, 1)] * count, deps or {}, after_any=after_any or {})
        self.tell(i.ClientMessage(CLIENT, message, [b"", *[b"x"] * count]))
        return known.tasks[first:]

    def close_run(self, run: int) -> None:
        self.tell(i.ClientMessage(CLIENT, m.Close(run)))

    def work(self, spec: TaskSpec | None = None, count: int = 1, **options: Any) -> list[Task]:
        """Submit a new run with tasks of one spec."""
        uid = f"run{self.machine.state.next_run}"
        return self.submit(self.open_run(uid, **options), spec or TaskSpec("python"), count)

    # --- agents ---------------------------------------------------------------------------------------------------------------------

    def join(self, worker: str, cores: float = 1.0, **offer: Any) -> int:
        """Connect an agent, with nothing or with ``holding``. Returns its link."""
        self.links += 1
        capacity = {"cores": cores, **offer.pop("capacity", {})}
        fields = {"tags": {}, "info": {}, "ends_in_s": None, "poll_s": 0.0, "holding": [], "pilot": "", **offer}
        hello = m.Hello(
            worker, fields["pilot"], capacity, fields["tags"], fields["info"], fields["ends_in_s"], fields["poll_s"], fields["holding"]
        )
        self.tell(i.AgentMessage(self.links, hello))
        return self.links

    def started(self, link: int, *tasks: Task) -> None:
        self.tell(i.AgentMessage(link, m.Heartbeat([(task.id, self.held[link][task.id]) for task in tasks])))

    def finish(self, link: int, *tasks: Task, failure: Failure | None = None, wall_us: int = 1000) -> None:
        """Send results of these tasks; without any, of all tasks that the agent holds."""
        numbers = [task.id for task in tasks] or list(self.held.get(link, {}))
        items = [m.ResultItem(number, self.held[link].pop(number), failure, wall_us, wall_us, 1000, 1) for number in numbers]
        self.tell(i.AgentMessage(link, m.Results(0, items), [b"r"] * len(items)))

    def lose(self, worker: str, reason: str = "was killed by signal 9") -> None:
        self.tell(i.AgentMessage(0, m.AgentDied(worker, reason)))

    def task(self, run: int, index: int) -> Task:
        return self.machine.state.task(task_id(run, index))


def fail(cause: str = "exit", blame: str = "task") -> Failure:
    return Failure(cause, blame, "made up")
