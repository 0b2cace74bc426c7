"""The master as a pure machine: inputs and a clock go in, facts and effects come out.

It does no I/O and asks no time. A host (live or simulated) calls ``start`` once and ``handle`` whenever something happened or the
``deadline`` came; it writes the facts down, makes them durable, and only then performs the effects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from pilotfish.core.apply import apply
from pilotfish.core.clients import client_messages, pool_commands, subscriptions
from pilotfish.core.connections import WorkerConnection
from pilotfish.core.data.worker_reports import ReportedCaches
from pilotfish.core.pilots import site_events
from pilotfish.core.pilots.factory_interface import PilotProposal, WithdrawalProposal
from pilotfish.core.policy_interface import (
    AssignmentProposal,
    CopyProposal,
    DelegationProposal,
    HoldProposal,
    Policy,
    PolicyView,
    Provisioner,
    RecallProposal,
)
from pilotfish.core.state import UNIT, State, Task, Worker
from pilotfish.core.tasks import assignment, multi_node
from pilotfish.core.tasks.retry_rules import judge_death
from pilotfish.core.workers import agent_messages, site_masters
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.settings import PoolSettings
from pilotfish.model.site import DIED
from pilotfish.model.states import ACTIVE, ASSIGNED, DONE, ENDING, FAILED, JOINED, READY, RUNNING
from pilotfish.model.task import Failure, StoredPayload

RETURN_S = 15.0
"""After a restart, workers get at least so long to come back: agents call again every 5 s at the latest."""
STALL_S = 1.0
"""Called so much later than asked for: it was the master that slept, not the workers."""
SOON_S = 0.01
"""The soonest that a policy or strategy is asked again when nothing happens."""


_UNIMPORTANT = (f.TasksStarted, f.TasksClaimed, f.LinkMeasured, f.RequestAnswered)
"""Facts by which no room becomes free and no task ready: nothing is to be decided because of them."""


def _matters(fact: f.Fact) -> bool:
    return type(fact) not in _UNIMPORTANT


@dataclass(slots=True)
class Turn:
    at: float
    facts: list[f.Fact]
    effects: list[e.Effect]


class Machine:
    def __init__(self, state: State, policy: Policy, strategy: Provisioner, settings: PoolSettings) -> None:
        self.state = state
        self.policy = policy
        self.strategy = strategy
        self.settings = settings
        self.deadline: float | None = None
        self.now = self.started_at = state.at
        self.facts: list[f.Fact] = []
        self.effects: list[e.Effect] = []
        self.presence: dict[str, WorkerConnection] = {}
        self.agent_links: dict[int, str] = {}
        self.audience = subscriptions.Subscriptions()
        self.about: dict[str, object] = {}
        """What the host wants to be told about itself to whoever asks for the status."""
        self.history_damaged = False
        """Some of what was written down could not be read again."""
        self.refused_proposals = 0
        self.stale_results = 0
        self.sightings: dict[str, site_events.PilotStatus] = {}
        """What the sites said last of pilots that have not joined; not written down."""
        self.caches = ReportedCaches()
        self.site_masters = site_masters.SiteMasters()
        self.site_troubles: dict[str, str] = {}
        self.credentials: dict[str, tuple[float, tuple[i.CredentialSeen, ...]]] = {}
        """What sites want to see of us, and when it was looked at."""
        self.space_full = False
        self.no_room_at_home = ""
        """Why files that tasks made cannot come home just now, as the host has found."""
        self.look_again = False
        self.finish_at: float | None = None
        self.finishing = False
        """Somebody asked us to end: no new pilots, however much there is to do."""
        self.resting = False
        """The pool was stopped, and so far people only look: nothing is started. Set before ``start``."""
        self.stirred = True
        """Something changed that no fact tells of, such as who can be reached: decide anew."""
        self._look_at: float | None = None
        self._decided_at = 0.0
        self._timers: list[tuple[float, int, str, str]] = []
        self._timer_count = 0

    # --- turns --------------------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> Turn:
        """The first turn after (re)start: whoever was there gets time to come back."""
        self.now = self.started_at = now = max(now, self.state.at)
        self.record(f.MasterStarted(self.state.epoch + 1))
        if not self.state.sized and self.settings.workers:
            self.record(f.PoolSized(float(self.settings.workers)))
        for worker in self.state.workers.values():
            lease_at = now + self._time_to_return(worker)
            self.presence[worker.id] = WorkerConnection(lease_at)
            self.set_timer(lease_at, "lease", worker.id)
            if worker.quarantined_until:
                self.set_timer(worker.quarantined_until, "quarantine", worker.id)
        for name in [name for name, site in self.state.sites.items() if site.held]:
            # Whoever starts a master again may have mended what was wrong.
            self.record(f.SiteHeld(name, ""))
        if not self.resting:
            self._call_authors()
        for name, record in self.state.sites.items():
            if record.site is not None:
                self.effects.append(e.DescribeSite(name, record.site))
        for pilot in self.state.pilots.values():
            self.effects.append(e.AdoptPilot(pilot.id, pilot.site, pilot.size, pilot.job))
            if pilot.state == ENDING:
                self.effects.append(e.CancelPilot(pilot.id))
        return self._conclude()

    def _call_authors(self) -> None:
        for run in self.state.runs.values():
            if not run.finished:
                client_messages.author_gone(self, run)
                if run.options.application and not run.closed:
                    self.effects.append(e.StartApplication(run.id, run.uid, run.options.application))

    def go_on(self) -> None:
        """Somebody wants the work of a pool that was stopped."""
        if self.resting:
            self.resting, self.stirred = False, True
            self._call_authors()

    def handle(self, inputs: Sequence[i.Input], now: float) -> Turn:
        """All news first, then one decision."""
        now = max(now, self.now)
        slept = self.deadline is not None and now - self.deadline > STALL_S
        self.now = now
        if slept:
            self._forgive()
        for item in inputs:
            _HEAR[type(item)](self, item)
        self._expire()
        return self._conclude()

    def _conclude(self) -> Turn:
        due = self._look_at is not None and self.now >= self._look_at
        due = due or (
            bool(self.state.ready) and self.now >= self._decided_at + self.settings.beat_s
        )  # time itself may have changed something
        if due or self.stirred or any(map(_matters, self.facts)):
            self._decide()
        subscriptions.tell(self)
        self._consider_finish()
        self.deadline = self._next_deadline()
        turn = Turn(self.now, self.facts, self.effects)
        self.facts, self.effects = [], []
        return turn

    def record(self, fact: f.Fact) -> None:
        apply(self.state, fact, self.now)
        self.facts.append(fact)

    def send(self, link: int, message: m.Message, payloads: list[Any] | None = None) -> None:
        self.effects.append(e.Send(link, message, payloads or []))

    def peeked(self, message: m.Peeked, payloads: list[Any]) -> None:
        client_messages.peeked(self, message, payloads)

    def release_payload(self, payload: object) -> None:
        if isinstance(payload, StoredPayload):
            self.effects.append(e.ReleasePayload(payload))

    # --- time -----------------------------------------------------------------------------------------------------------------------

    def set_timer(self, at: float, kind: str, key: str) -> None:
        self._timer_count += 1
        heappush(self._timers, (at, self._timer_count, kind, key))

    def _next_deadline(self) -> float | None:
        candidates = [self._timers[0][0]] if self._timers else []
        if self._look_at is not None:
            candidates.append(self._look_at)
        if self.finish_at is not None:
            candidates.append(self.finish_at)
        if self.presence:
            # Often enough that a sleep of ours is noticed before it can be taken for the silence of others.
            candidates.append(self.now + self.settings.beat_s)
        if self.look_again:
            self.look_again = False
            candidates.append(self.now)
        return min(candidates, default=None)

    def _forgive(self) -> None:
        """We slept, nobody knows since when: whoever was there gets time to come back, as after a start."""
        for name, presence in self.presence.items():
            presence.lease_at = max(presence.lease_at, self.now + self._time_to_return(self.state.workers[name]))

    def _time_to_return(self, worker: Worker) -> float:
        return max(RETURN_S, agent_messages.lease_s(self, worker))

    def _expire(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            _, _, kind, key = heappop(timers)
            _EXPIRE[kind](self, key)

    # --- deciding -----------------------------------------------------------------------------------------------------------------

    def _outlook(self) -> PolicyView:
        divide = self.site_masters.divide if self.site_masters.by_site else None
        return PolicyView(self.state, self.now, self.settings.ahead_s, self._can_take, divide)

    def _can_take(self, worker: Worker) -> bool:
        presence = self.presence.get(worker.id)
        return presence is not None and presence.link is not None and worker.state == JOINED and not worker.quarantined_until

    def _decide(self) -> None:
        self.stirred = False
        self._decided_at = self.now
        self._decide_pilots()
        outlook = self._outlook()
        moments = [self.strategy.next_look_at(self.state, self.now)]
        if not self.space_full and not self.resting:
            self._decide_tasks(outlook)
            moments.append(self.policy.next_look_at(outlook))
        moments.append(self._retire_idle(outlook))
        # Whoever asks for a moment that is over gets the next one that makes sense, or the host would turn without end.
        soonest = min([moment for moment in moments if moment is not None], default=None)
        self._look_at = max(soonest, self.now + SOON_S) if soonest is not None else None

    def _retire_idle(self, outlook: PolicyView) -> float | None:
        """Send home who has had nothing to do for long; when to look again."""
        idle_s = self.settings.idle_s
        if not idle_s:
            return None
        idle = [worker for worker in outlook.workers if not worker.held]
        for worker in idle:
            if worker.progress_at + idle_s <= self.now:
                agent_messages.drain(self, worker, f"had nothing to do for {idle_s:g} s")
        return min((worker.progress_at + idle_s for worker in idle if worker.state == JOINED), default=None)

    def _decide_tasks(self, outlook: PolicyView) -> None:
        for proposal in self.policy.propose(outlook):
            if isinstance(proposal, RecallProposal):
                self._recall(proposal)
            elif isinstance(proposal, DelegationProposal):
                self._lend(proposal)
            elif isinstance(proposal, CopyProposal):
                self.refused_proposals += not (self._can_take(proposal.worker) and assignment.duplicate(self, proposal))
            elif self._lawful(proposal):
                assignment.assign(self, proposal)
            else:
                self.refused_proposals += 1

    def _lawful(self, proposal: AssignmentProposal) -> bool:
        """The machine is the law: a policy's proposal is believed only after this."""
        worker = proposal.worker
        if not self._can_take(worker) or not proposal.tasks:
            return False
        if worker.runs_suspect or (proposal.tasks[0].suspect and (worker.held or len(proposal.tasks) > 1)):
            return False
        if proposal.beside:
            return all(map(self._can_take, proposal.beside)) and multi_node.is_lawful(proposal, self.now)
        count = len(proposal.tasks)
        if count > 1 and len(dict.fromkeys(proposal.tasks)) != count:
            return False
        free, now = dict(worker.free), count - proposal.ahead
        shape = None
        for place, task in enumerate(proposal.tasks):
            if task.state != READY or task.shape.run.paused or (place and task.suspect):
                return False
            if task.shape is not shape:
                shape = task.shape
                if not worker.suits(shape, self.now) or shape.nodes > 1:
                    return False
            if place < now:
                for name, amount in task.shape.needs:
                    if name == "cores" and task.id in proposal.cores:
                        amount = max(amount, round(proposal.cores[task.id] * UNIT))
                    free[name] = free.get(name, 0) - amount
                    if free[name] < 0:
                        return False
        return True

    def _lend(self, loan: DelegationProposal) -> None:
        fit = all(task.state == READY and not task.suspect and not task.shape.run.paused and task.shape.nodes == 1 for task in loan.tasks)
        if self.site_masters.of(loan.worker) is None or not self._can_take(loan.worker) or not loan.tasks or not fit:
            self.refused_proposals += 1
        else:
            site_masters.lend(self, loan.worker, loan.tasks)

    def _recall(self, recall: RecallProposal) -> None:
        presence = self.presence.get(recall.worker.id)
        tasks = [task for task in recall.tasks if task.worker is recall.worker and task.state == ASSIGNED]
        if presence is None or presence.link is None or not tasks:
            return
        self.record(f.TasksRecalled(recall.worker.id, [task.id for task in tasks if task not in recall.worker.lent]))
        self.send(presence.link, m.Recall([(task.id, task.attempt) for task in tasks]))

    def _decide_pilots(self) -> None:
        if self.finishing or self.resting:
            return
        for proposal in self.strategy.propose(self.state, self.now):
            if isinstance(proposal, HoldProposal):
                self.record(f.SiteHeld(proposal.site, proposal.reason))
            elif isinstance(proposal, WithdrawalProposal):
                self._withdraw(proposal)
            elif proposal.size.cores >= 0 and proposal.size.nodes > 0:
                self.request_pilot(proposal)
            else:
                self.refused_proposals += 1

    def request_pilot(self, wish: PilotProposal, by_hand: bool = False) -> str:
        pilot = f"{wish.site}-{self.state.next_pilot}"
        self.record(f.PilotRequested(pilot, wish.site, wish.size, wish.reason, wish.replaces, by_hand))
        self.effects.append(e.SubmitPilot(pilot, wish.site, wish.size))
        return pilot

    def _withdraw(self, proposal: WithdrawalProposal) -> None:
        """One pilot less: cancelled if it waits; if it runs, its workers finish what they have, and go."""
        pilot = self.state.pilots.get(proposal.pilot)
        if pilot is None or pilot.state > ACTIVE:
            self.refused_proposals += 1
        elif pilot.workers:
            for worker in list(pilot.workers):
                agent_messages.drain(self, self.state.workers[worker], proposal.reason)
        else:
            self.end_pilot(pilot.id, proposal.reason, proposal.cause)

    def _consider_finish(self) -> None:
        """Without work, without clients and without runs that may still grow, the master may end after a while."""
        work = self.state.unfinished or any(not run.closed for run in self.state.runs.values())
        if self.audience.links or (work and not self.resting):
            self.finish_at = None
        elif self.finish_at is None:
            self.finish_at = self.now + self.settings.linger_s
        elif self.now >= self.finish_at:
            self.finish_at = None
            self.finish("no work and no client")

    def finish(self, reason: str) -> None:
        """Send everybody home. What is unfinished stays in the journal and goes on when a master starts again."""
        self.finishing = True
        for worker in list(self.state.workers.values()):
            agent_messages.leave(self, worker, reason)
        for pilot in list(self.state.pilots.values()):
            if pilot.state <= ACTIVE:
                self.end_pilot(pilot.id, reason)
        self.effects.append(e.Finish(reason))

    # --- losing things --------------------------------------------------------------------------------------------------------------

    def lose_worker(self, worker: Worker, reason: str, *, died: bool) -> None:
        """A worker died (nothing of it runs any more) or fell silent: its tasks run elsewhere.

        What had room there may have begun, and so may as many of those that waited there, if results were lost with it. They are charged:
        a task that fells its worker before anybody knew that it ran would otherwise do so for ever. Those further back are believed to be
        untouched only the first time: quick ones before such a task would otherwise hide it, again and again."""
        if worker.ends_at is not None and self.now >= worker.ends_at:
            agent_messages.leave(self, worker, f"{reason}, and its time was over")
            return
        assignment.stop_beside(self, worker)
        started: list[Task] = list(worker.active)
        untouched: list[Task] = list(worker.lent)
        places = len(started)
        for place, task in enumerate(worker.ahead):
            (started if place < places or task.attempt > 1 or task.state == RUNNING else untouched).append(task)
        if untouched:
            self.record(f.TasksReturned(worker.id, [task.id for task in untouched], f"worker {worker.id} {reason}"))
        for task in reversed(started):  # the first of them shall be the first in the queue again
            # The end of one may have cancelled the others, when their run had its fill of failures.
            if worker.has(task):
                self.fail_attempt(judge_death(self.state, worker, task, reason, died))
        self.end_worker(worker, lost=True, reason=reason)

    def end_worker(self, worker: Worker, *, lost: bool, reason: str) -> None:
        """Forget a worker that holds nothing any more, and tell it so if it still listens."""
        self.record(f.WorkerEnded(worker.id, lost, reason))
        self.caches.gone(worker.id)
        site_masters.gone(self, worker)
        presence = self.presence.pop(worker.id, None)
        if presence is not None and presence.link is not None:
            self.agent_links.pop(presence.link, None)
            self.send(presence.link, m.Retire(reason))
            self.effects.append(e.HangUp(presence.link))
        pilot = self.state.pilots.get(worker.pilot)
        if pilot is not None and pilot.state <= ACTIVE and pilot.joined and not pilot.workers:
            self.end_pilot(pilot.id, reason, DIED if lost else "")

    def end_pilot(self, pilot: str, reason: str, cause: str = "") -> None:
        self.record(f.PilotEnding(pilot, reason, cause))
        self.effects.append(e.CancelPilot(pilot))

    def fail_attempt(self, fact: f.AttemptFailed) -> None:
        task = self.state.task(fact.task)
        self.record(fact)
        if fact.final:
            self.after_bad_end([task])

    def after_bad_end(self, ended: list[Task]) -> None:
        """What needed these tasks can never run; and a run may have had enough failures."""
        hopeless: dict[int, Task] = {}
        waiting = list(ended)
        reason = ended[0]
        while waiting:
            task = waiting.pop()
            run = task.shape.run
            for other in (run.tasks[index] for index in task.children or ()):
                if other.state < DONE and other.id not in hopeless:
                    hopeless[other.id] = other
                    waiting.append(other)
        if hopeless:
            text = f"task {reason.id >> 32}.{reason.id & INDEX_MASK}, which it needs, did not end well"
            self.record(f.TasksSkipped(list(hopeless), Failure("dependency", "task", text)))
        run = reason.shape.run
        if run.options.max_failures and run.counts[FAILED] >= run.options.max_failures and run.unfinished:
            pool_commands.cancel_run(self, run, f"{run.counts[FAILED]} task{'s' * (run.counts[FAILED] > 1)} failed")


# --- inputs -------------------------------------------------------------------------------------------------------------------------


def _client_spoke(machine: Machine, item: i.ClientMessage) -> None:
    client_messages.hear(machine, item.link, item.message, item.payloads)


def _link_closed(machine: Machine, item: i.LinkClosed) -> None:
    worker = machine.agent_links.pop(item.link, None)
    if worker is not None:
        presence = machine.presence.get(worker)
        if presence is not None and presence.link == item.link:
            presence.link = None
            machine.stirred = True
    client_messages.link_closed(machine, item.link)


def _link_paused(machine: Machine, item: i.LinkPaused) -> None:
    machine.audience.paused[item.link] = None


def _link_resumed(machine: Machine, item: i.LinkResumed) -> None:
    machine.audience.paused.pop(item.link, None)


def _space_changed(machine: Machine, item: i.SpaceChanged) -> None:
    machine.space_full = item.full
    machine.stirred = True


def _home_room_changed(machine: Machine, item: i.HomeRoomChanged) -> None:
    machine.no_room_at_home = item.problem


def _link_measured(machine: Machine, item: i.TransferMeasured) -> None:
    machine.record(f.LinkMeasured(item.site, item.size, item.seconds))


def _work_wanted(machine: Machine, item: i.WorkWanted) -> None:
    machine.go_on()


_HEAR: dict[type, Callable[[Machine, Any], None]] = {
    i.AgentMessage: agent_messages.hear,
    i.ClientMessage: _client_spoke,
    i.LinkClosed: _link_closed,
    i.LinkPaused: _link_paused,
    i.LinkResumed: _link_resumed,
    **site_events.NEWS,
    i.SpaceChanged: _space_changed,
    i.HomeRoomChanged: _home_room_changed,
    i.TransferMeasured: _link_measured,
    i.WorkWanted: _work_wanted,
}


# --- timers -------------------------------------------------------------------------------------------------------------------------


def _lease_expired(machine: Machine, key: str) -> None:
    worker, presence = machine.state.workers.get(key), machine.presence.get(key)
    if worker is None or presence is None:
        return
    if presence.lease_at > machine.now:
        machine.set_timer(presence.lease_at, "lease", key)
        return
    machine.lose_worker(worker, f"has been silent for {machine.settings.lease_s:g} s", died=False)


def _quarantine_expired(machine: Machine, key: str) -> None:
    worker = machine.state.workers.get(key)
    if worker is not None and 0 < worker.quarantined_until <= machine.now:
        machine.record(f.WorkerQuarantined(key, 0.0, "its quarantine is over"))


_EXPIRE: dict[str, Callable[[Machine, str], None]] = {
    "lease": _lease_expired,
    "quarantine": _quarantine_expired,
    "author": client_messages.author_expired,
    "peek": client_messages.peek_expired,
}
