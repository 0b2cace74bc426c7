"""Simulates clients that submit, watch and die. They reconnect, and remember everything the master reported."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from pilotfish.core.state import SUPERSEDED
from pilotfish.model import messages as m
from pilotfish.model.contents import KEY_BYTES, Content, ExpectedFile
from pilotfish.model.ids import task_id
from pilotfish.model.states import DONE, TASK_STATES
from pilotfish.model.task import TaskSpec
from tests.simulation.world.simulated_contents import made_by
from tests.simulation.world.simulated_network import SimulatedLink
from tests.simulation.world.simulated_tasks import PersonPlan, payload_of
from tests.simulation.world.wire_codec import Frame, read_to_client, write_from_client

if TYPE_CHECKING:
    from tests.simulation.world.fault_world import FaultWorld

RECONNECT_S = 0.5


class Broken(AssertionError):
    """The master reported something impossible to a client: a bug."""


class SimulatedClient:
    """A client. ``view``: finished tasks as reported to it, index -> (state, cause, result)."""

    def __init__(self, world: FaultWorld, plan: PersonPlan) -> None:
        self.world = world
        self.plan = plan
        self.blocked_to_master_until = 0.0
        self.blocked_to_peer_until = 0.0
        self.link: SimulatedLink | None = None
        self.away = False
        self.run = 0
        self.accepted = 0
        self.accepted_ever = 0
        self.sent = 0
        self.specs_sent = 0
        self.refused = ""
        self.close_sent = False
        self.finished = False
        self.left_at = world.now
        self.left_early = False
        self.present = False
        """True if connected and answered by the master."""
        self.cursor = 0
        self.view: dict[int, tuple[int, str, bytes]] = {}
        self.told_ever: dict[int, tuple[int, str, bytes]] = {}
        self.outputs_taken = 0
        """Number of finished tasks whose outputs it has acknowledged; the master may have deleted these outputs."""
        self._life = 0

    # --- the link -------------------------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        if self.link is None and not self.away and not self.finished:
            self.link = self.world.network.dial(self, "client")

    def proved(self, link: SimulatedLink, epoch: int) -> None:
        if link is self.link:
            self._say(m.Open(self.plan.uid, self.plan.options))

    def link_closed(self, link: SimulatedLink) -> None:
        if link is self.link:
            self._lost()

    def _absent(self) -> None:
        self.link = None
        self.cut_off()

    def cut_off(self) -> None:
        """The master does not see this client any more, even if the client does not know."""
        if self.present:
            self.present = False
            self.left_at = self.world.now

    def _lost(self) -> None:
        self._absent()
        self.world.after(RECONNECT_S * (0.5 + self.world.dice.random()), self.connect)

    def die(self, away_s: float) -> None:
        """Kills the process. It is started again and knows nothing but its uid."""
        if self.link is not None:
            self.world.network.end_at_peer(self.link)
            self._absent()
        self._life += 1
        self.away = True
        self.accepted = self.sent = self.specs_sent = self.cursor = 0
        self.close_sent = False
        self.view = {}
        self.world.after(away_s, self._come_back)

    def _come_back(self) -> None:
        self.away = False
        self.connect()

    def _say(self, message: m.Message, body: bytes = b"") -> None:
        if self.link is not None:
            frame = write_from_client(message, body, through_json=self.world.scenario.clients_speak_json)
            self.world.network.send_to_master(self.link, frame)

    def link_heard(self, link: SimulatedLink, item: Frame) -> None:
        if link is self.link:
            message, body = read_to_client(item)
            _HANDLERS[type(message)](self, message, body)

    # --- submitting -----------------------------------------------------------------------------------------------------------------

    def _opened(self, message: m.Opened, body: bytes) -> None:
        if message.tasks < self.accepted_ever:
            raise Broken(f"{self.plan.uid}: {self.accepted_ever} tasks were accepted, only {message.tasks} are known")
        self.run = message.run
        self.present = self.link is not None and not self.link.to_master.dead  # false for a late message of a master that was cut off
        self.world.oracle.opened(self)
        resume = message.tasks if self.plan.trusts_opened else min(self.accepted, message.tasks)
        self.sent = resume
        self.accepted = message.tasks if self.plan.trusts_opened else self.accepted
        self.specs_sent = message.specs if self.plan.trusts_opened else 0
        self.close_sent = False
        self._say(m.Watch(self.run, self.cursor, True))
        self._submit_more()

    def _submit_more(self) -> None:
        plan = self.plan
        if self.refused:
            return
        while self.sent < len(plan.tasks) and self.sent - self.accepted < plan.in_flight * plan.batch:
            count = self._submittable(min(plan.batch, len(plan.tasks) - self.sent))
            if not count:
                break
            self._submit(count)
        if self.accepted >= len(plan.tasks) and plan.closes and not self.close_sent:
            self.close_sent = True
            self._say(m.Close(self.run))

    def _submittable(self, count: int) -> int:
        """Returns how many of the next tasks need no output that is not made yet."""
        for offset, task in enumerate(self.plan.tasks[self.sent : self.sent + count]):
            if not task.is_promised and any(maker not in self.told_ever for maker in task.uses):
                return offset
        return count

    def _contents(self, index: int) -> tuple[Content, ...]:
        """Returns the contents that a task needs, including existing outputs of other tasks."""
        task = self.plan.tasks[index]
        found = dict.fromkeys(task.contents)
        for maker in task.uses if not task.is_promised else ():
            state, _, result = self.told_ever[maker]
            if state == DONE:
                attempt = int(result.rsplit(b"|", 2)[1])
                found.update((made, None) for made, _ in made_by(self.plan.tasks[maker], task_id(self.run, maker), attempt))
        return tuple(found)

    def _submit(self, count: int) -> None:
        plan, first = self.plan, self.sent
        chosen = plan.tasks[first : first + count]
        highest = max(task.spec for task in chosen) + 1
        first_spec = min(self.specs_sent, highest)
        specs = plan.specs[first_spec:highest]
        codes = [spec.code for spec in specs if isinstance(spec.code, bytes)]
        payloads = [payload_of(plan, index) for index in range(first, first + count)]
        message = m.Submit(
            self.run,
            first,
            first_spec,
            [_without_code(spec) for spec in specs],
            [len(code) for code in codes],
            [(task.spec, len(payload)) for task, payload in zip(chosen, payloads, strict=True)],
            {offset: list(task.needs) for offset, task in enumerate(chosen) if task.needs},
            contents={offset: wanted for offset in range(count) if (wanted := self._contents(first + offset))},
            expected_files={
                offset: tuple(ExpectedFile(maker, "out", str(maker)) for maker in task.uses)
                for offset, task in enumerate(chosen)
                if task.uses and task.is_promised
            },
            keys=b"".join(record_of_task(f"{plan.uid}.{index}") for index in range(first, first + count)),
        )
        self.sent += count
        self.specs_sent = max(self.specs_sent, highest)
        self._say(message, b"".join([*codes, *payloads]))

    def _accepted(self, message: m.Accepted, body: bytes) -> None:
        self.accepted = max(self.accepted, message.tasks)
        self.accepted_ever = max(self.accepted_ever, message.tasks)
        self.sent = max(self.sent, self.accepted)
        think_s = 0.0 if self.world.calm else self.plan.think_s * self.world.dice.random()
        self.world.after(think_s, self._continue, self._life)
        self._maybe_leave()

    def _continue(self, life: int) -> None:
        if life == self._life and self.link is not None and self.run:
            self._submit_more()

    def _problem(self, message: m.Problem, body: bytes) -> None:
        if "closed" in message.message:
            self.refused = message.message
            self.world.oracle.refused(self, message.message)
        elif "full" in message.message or "out of order" in message.message:
            self.sent, self.specs_sent = self.accepted, 0
            self.world.after(1.0, self._continue, self._life)
        else:
            raise Broken(f"{self.plan.uid} was told: {message.message}")

    # --- watching -------------------------------------------------------------------------------------------------------------------

    def _ended(self, message: m.Ended, body: bytes) -> None:
        skipped = self.world.journal.shadow.runs[self.run].ended[self.cursor : message.cursor]
        if message.cursor < self.cursor or any(index != SUPERSEDED for index in skipped):
            raise Broken(f"{self.plan.uid}: told of ended task number {message.cursor}, number {self.cursor} was next")
        start = 0
        for place, item in enumerate(message.items, message.cursor):
            told = (item.state, item.failure.cause if item.failure else "", body[start : start + item.length])
            start += item.length
            if place < self.outputs_taken and not told[2] and item.index in self.told_ever:
                told = self.told_ever[item.index]
            if task_id(self.run, item.index) in self.world.oracle.reruns:
                self.told_ever[item.index] = told
            elif item.index in self.view:
                raise Broken(f"{self.plan.uid}: task {item.index} ended twice")
            if self.told_ever.setdefault(item.index, told) != told:
                raise Broken(f"{self.plan.uid}: task {item.index} was {self.told_ever[item.index]}, now it is {told}")
            self.view[item.index] = told
        self.cursor = message.cursor + len(message.items)
        if self.plan.options.owned:
            self.outputs_taken = max(self.outputs_taken, self.cursor)
            self._say(m.Taken(self.run, self.cursor))
        if any(task.uses and not task.is_promised for task in self.plan.tasks[self.sent : self.sent + 1]):
            self._submit_more()
        self._maybe_leave()

    def _maybe_leave(self) -> None:
        """Some clients never close their run: they leave, and the master closes the run."""
        if not self.plan.closes and self.accepted >= len(self.plan.tasks) and len(self.view) == self.accepted:
            self.left_early = self.finished = True
            self._hang_up()

    def _hang_up(self) -> None:
        if self.link is not None:
            self.world.network.hang_up_peer(self.link)
            self._absent()

    def _began(self, message: m.Began, body: bytes) -> None:
        return

    def _run_finished(self, message: m.RunFinished, body: bytes) -> None:
        counts = [0] * len(TASK_STATES)
        for state, _, _ in self.view.values():
            counts[state] += 1
        if dict(zip(TASK_STATES, counts, strict=True)) != message.counts:
            raise Broken(f"{self.plan.uid}: the run finished with {message.counts}, this client was told {counts}")
        self.finished = True
        self._hang_up()

    def _answered(self, message: m.Answer, body: bytes) -> None:
        return


def record_of_task(text: str) -> bytes:
    """Returns a record that no other task has."""
    return blake2b(text.encode(), digest_size=KEY_BYTES).digest()


def _without_code(spec: TaskSpec) -> TaskSpec:
    """Removes the code, which is sent in the body."""
    return msgspec.structs.replace(spec, code=b"")


_HANDLERS: dict[type, Any] = {
    m.Opened: SimulatedClient._opened,
    m.Accepted: SimulatedClient._accepted,
    m.Problem: SimulatedClient._problem,
    m.Ended: SimulatedClient._ended,
    m.Began: SimulatedClient._began,
    m.RunFinished: SimulatedClient._run_finished,
    m.Answer: SimulatedClient._answered,
}


class SimulatedOperator:
    """A client that sends queries and commands from time to time. Every request must be answered while the connection holds."""

    def __init__(self, world: FaultWorld) -> None:
        self.world = world
        self.blocked_to_master_until = 0.0
        self.blocked_to_peer_until = 0.0
        self.link: SimulatedLink | None = None
        self.ready = False
        self.asked: dict[int, tuple[str, float]] = {}
        self.answers = 0
        self._next = 0

    def connect(self) -> None:
        if self.link is None:
            self.link = self.world.network.dial(self, "client")

    def proved(self, link: SimulatedLink, epoch: int) -> None:
        self.ready = link is self.link

    def link_closed(self, link: SimulatedLink) -> None:
        if link is self.link:
            self.link = None
            self.ready = False
            self.asked.clear()
            self.world.after(RECONNECT_S, self.connect)

    def hang_up(self) -> None:
        if self.link is not None:
            self.world.network.hang_up_peer(self.link)
            self.link = None
            self.ready = False
            self.asked.clear()

    def ask(self, kind: str, payloads: Sequence[bytes] = (), **arguments: Any) -> None:
        if self.link is None or not self.ready:
            return
        self._next += 1
        self.asked[self._next] = (kind, self.world.now)
        message = m.Ask(self._next, kind, arguments, lengths=list(map(len, payloads)))
        frame = write_from_client(message, b"".join(payloads), through_json=True)
        self.world.network.send_to_master(self.link, frame)

    def link_heard(self, link: SimulatedLink, item: Frame) -> None:
        if link is not self.link:
            return
        message, _ = read_to_client(item)
        if isinstance(message, m.Answer | m.Problem):
            if self.asked.pop(message.query, None) is None:
                raise Broken(f"an answer to question {message.query}, which is not open: {message}")
            self.answers += 1
