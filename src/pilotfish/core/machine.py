"""Turns inputs and the current time into facts and effects.

The machine does no I/O and reads no clock. Its host (live or simulated) passes the current time with each call. The host calls ``start``
once. After that, the host calls ``handle`` each time something happens, and at the latest at the time ``Machine.deadline``. After each
call, the host first makes the facts durable and then performs the effects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Any

from pilotfish.core.apply import apply
from pilotfish.core.clients import client_messages, pool_commands, subscriptions
from pilotfish.core.connections import ReportedCaches, WorkerConnection
from pilotfish.core.data import stored_results
from pilotfish.core.pilots import site_events
from pilotfish.core.pilots.factory_interface import PilotProposal, WithdrawalProposal
from pilotfish.core.policy_events import events_of
from pilotfish.core.policy_interface import (
    AssignmentProposal,
    CopyProposal,
    DelegationProposal,
    HoldProposal,
    Policy,
    PolicyView,
    Provisioner,
    RecallProposal,
    RetireProposal,
)
from pilotfish.core.state import State, Task
from pilotfish.core.tasks import assignment
from pilotfish.core.workers import agent_messages, leases, site_masters
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.backend_traits import BackendTraits, no_traits
from pilotfish.model.ids import show_task
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import ACTIVE, CANCELLED, DONE, ENDING, FAILED, JOINED
from pilotfish.model.task import DEPENDENCY, Failure, StoredPayload

STALL_S = 1.0
"""If ``handle`` is called more than this many seconds after ``Machine.deadline``, the master was suspended."""
MIN_DECISION_INTERVAL_S = 0.01
"""If nothing happens, a policy or factory is asked again after this many seconds at the earliest."""


_NO_DECISION = (f.TasksStarted, f.TasksClaimed, f.LinkMeasured, f.RequestAnswered)
"""Facts after which the policy is not asked, because they free no cores and make no task ready."""


@dataclass(slots=True)
class Turn:
    at: float
    facts: list[f.Fact]
    effects: list[e.Effect]


class Machine:
    ended_per_message = 5_000
    """Maximum ended tasks in one message to a client. Tests make it smaller."""
    large_site = 200
    """If ``matching`` is auto, sites with at least this number of workers have a site master. Tests make the number smaller."""

    def __init__(
        self,
        state: State,
        policy: Policy,
        provisioner: Provisioner,
        settings: PoolSettings,
        traits: Callable[[str], BackendTraits] = no_traits,  # by backend name
    ) -> None:
        self.state = state
        state.traits = traits
        self.policy = policy
        self.provisioner = provisioner
        self.settings = settings
        self.deadline: float | None = None
        self.now = self.started_at = state.at
        self.facts: list[f.Fact] = []
        self.effects: list[e.Effect] = []
        self.connections: dict[str, WorkerConnection] = {}
        self.agent_links: dict[int, str] = {}
        self.subscriptions = subscriptions.Subscriptions()
        self.host_status: dict[str, object] = {}
        """Values that the host adds to the answer of ``status``."""
        self.history_damaged = False
        """Whether a part of the journal could not be read."""
        self.refused_proposals = 0
        self.stale_results = 0
        self.pilot_status: dict[str, site_events.PilotStatus] = {}
        """For each pilot: the last report of the site about this pilot. The reports are not journaled."""
        self.caches = ReportedCaches()
        self.result_index = stored_results.ResultIndex()
        self.site_masters = site_masters.SiteMasters()
        self.site_problems: dict[str, i.SiteReachability] = {}
        self.credentials: dict[str, tuple[float, tuple[i.CredentialSeen, ...]]] = {}
        """For each site: the time of the last check of its credentials, and the credentials."""
        self.journal_full = False
        self.output_space_problem = ""
        """Why the master's disk cannot take output files now; empty if it can."""
        self.more_to_send = False
        self.finish_at: float | None = None
        self.finishing = False
        """Whether the master is ending. An ending master requests no more pilots, even if tasks wait."""
        self.inspect_only = False
        """Whether the pool was stopped and is only inspected. If True, nothing is started. The host sets this flag before it calls
        ``start``."""
        self.decide_again = True
        """Whether a decision is needed because of a change that is not a fact, such as a new connection."""
        self._decide_at: float | None = None
        self._decided_at = 0.0
        self._timers: list[tuple[float, int, Callable[[Machine, str], None], str]] = []
        self._timer_count = 0

    # --- turns --------------------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> Turn:
        """Makes the first turn after a start or restart. Known workers get time to reconnect."""
        self.now = self.started_at = now = max(now, self.state.at)
        self.state.unneeded_outputs.clear()  # the previous master released these outputs; nothing in this state refers to them
        self.record(f.MasterStarted(self.state.epoch + 1))
        if not self.state.sized and self.settings.local_cores:
            self.record(f.PoolSized(float(self.settings.local_cores)))
        for worker in self.state.workers.values():
            lease_at = now + leases.time_to_return_s(self, worker)
            self.connections[worker.id] = WorkerConnection(lease_at)
            self.set_timer(lease_at, leases.lease_expired, worker.id)
            if worker.quarantined_until:
                self.set_timer(worker.quarantined_until, leases.quarantine_expired, worker.id)
        for name in [name for name, site in self.state.sites.items() if site.held]:
            # Possibly the user fixed the site before the master was started again.
            self.record(f.SiteHeld(name, ""))
        if not self.inspect_only:
            self._restart_applications()
        for name, record in self.state.sites.items():
            if record.site is not None:
                self.effects.append(e.DescribeSite(name, record.site))
        for pilot in self.state.pilots.values():
            self.effects.append(e.AdoptPilot(pilot.id, pilot.site, pilot.size, pilot.job))
            if pilot.state == ENDING:
                self.effects.append(e.CancelPilot(pilot.id))
        return self._conclude()

    def _restart_applications(self) -> None:
        for run in self.state.runs.values():
            if not run.finished:
                client_messages.author_disconnected(self, run)
                if run.options.application and not run.closed:
                    self.effects.append(e.StartApplication(run.id, run.uid, run.options.application))

    def resume(self) -> None:
        """Continues the work of a pool that was stopped."""
        if self.inspect_only:
            self.inspect_only, self.decide_again = False, True
            self._restart_applications()

    def handle(self, inputs: Sequence[i.Input], now: float) -> Turn:
        """Handles all inputs first, then decides once."""
        now = max(now, self.now)
        was_suspended = self.deadline is not None and now - self.deadline > STALL_S
        self.now = now
        if was_suspended:
            leases.extend_all(self)
        for item in inputs:
            _HANDLERS[type(item)](self, item)
        self._expire()
        return self._conclude()

    def _conclude(self) -> Turn:
        due = self._decide_at is not None and self.now >= self._decide_at
        # While tasks are ready, the machine decides from time to time, because a decision can depend on the time.
        due = due or (bool(self.state.ready) and self.now >= self._decided_at + self.settings.beat_s)
        notified = self._notify_policy(0)
        if due or self.decide_again or any(type(fact) not in _NO_DECISION for fact in self.facts):
            self._decide()
        subscriptions.notify(self)
        self._consider_finish()
        self._notify_policy(notified)
        self.deadline = self._next_deadline()
        for stored in self.state.unneeded_outputs:
            self.effects.append(e.ReleasePayload(stored))
        self.state.unneeded_outputs.clear()
        turn = Turn(self.now, self.facts, self.effects)
        self.facts, self.effects = [], []
        return turn

    def _notify_policy(self, first: int) -> int:
        """Sends events to a listening policy, for the facts of this turn from index ``first`` on. Returns the number of facts so far."""
        on_events = getattr(self.policy, "on_events", None)
        if on_events is not None and len(self.facts) > first:
            events = events_of(self.facts[first:])
            if events:
                on_events(events)
        return len(self.facts)

    def record(self, fact: f.Fact) -> None:
        apply(self.state, fact, self.now)
        self.facts.append(fact)

    def send(self, link: int, message: m.Message, payloads: list[Any] | None = None) -> None:
        self.effects.append(e.Send(link, message, payloads or []))

    def link_of(self, worker: str) -> int | None:
        """Returns the open link to a worker; None if the worker is not connected."""
        connection = self.connections.get(worker)
        return connection.link if connection is not None else None

    def send_to_worker(self, worker: str, message: m.Message) -> None:
        """Sends a message to a worker if the worker is connected."""
        link = self.link_of(worker)
        if link is not None:
            self.send(link, message)

    def release_payload(self, payload: object) -> None:
        if isinstance(payload, StoredPayload):
            self.effects.append(e.ReleasePayload(payload))

    # --- time -----------------------------------------------------------------------------------------------------------------------

    def set_timer(self, at: float, expired: Callable[[Machine, str], None], key: str) -> None:
        """Sets a timer. The first turn at or after the time ``at`` calls ``expired`` with the key. Timers are not journaled."""
        self._timer_count += 1
        heappush(self._timers, (at, self._timer_count, expired, key))

    def _next_deadline(self) -> float | None:
        candidates = [self._timers[0][0]] if self._timers else []
        if self._decide_at is not None:
            candidates.append(self._decide_at)
        if self.finish_at is not None:
            candidates.append(self.finish_at)
        if self.connections:
            # With a turn in every interval, the master notices its own suspension and does not take the workers for silent.
            candidates.append(self.now + self.settings.beat_s)
        if self.more_to_send:
            self.more_to_send = False
            candidates.append(self.now)
        return min(candidates, default=None)

    def _expire(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            _, _, expired, key = heappop(timers)
            expired(self, key)

    # --- deciding -----------------------------------------------------------------------------------------------------------------

    def _policy_view(self) -> PolicyView:
        divide = self.site_masters.divide if self.site_masters.by_site else None
        return PolicyView(self.state, self.now, self.settings.ahead_s, partial(assignment.can_take, self), divide)

    def _decide(self) -> None:
        self.decide_again = False
        self._decided_at = self.now
        self._decide_pilots()
        view = self._policy_view()
        times = [self.provisioner.next_look_at(self.state, self.now)]
        if not self.journal_full and not self.inspect_only:
            leases.release_needed_workers(self)
            self._decide_tasks(view)
            times.append(self.policy.next_look_at(view))
        times.append(self._retire_idle(view))
        # The next decision is always in the future. Otherwise the host would loop without pause.
        soonest = min([time for time in times if time is not None], default=None)
        self._decide_at = max(soonest, self.now + MIN_DECISION_INTERVAL_S) if soonest is not None else None

    def _retire_idle(self, view: PolicyView) -> float | None:
        """Drains workers that have been idle for at least ``idle_s`` seconds. Returns the time at which the next idle worker must be
        checked. Returns None if no other worker is idle. If ``idle_s`` is 0, drains no worker and returns None."""
        idle_s = self.settings.idle_s
        if not idle_s:
            return None
        idle = [worker for worker in view.workers if not worker.held]
        for worker in idle:
            if worker.progress_at + idle_s <= self.now:
                leases.drain(self, worker, f"had nothing to do for {idle_s:g} s")
        return min((worker.progress_at + idle_s for worker in idle if worker.state == JOINED), default=None)

    def _decide_tasks(self, view: PolicyView) -> None:
        for proposal in self.policy.propose(view):
            carry_out = _PROPOSALS.get(type(proposal))
            if carry_out is None or not carry_out(self, proposal):
                self.refused_proposals += 1

    def _decide_pilots(self) -> None:
        if self.finishing or self.inspect_only:
            return
        for proposal in self.provisioner.propose(self.state, self.now):
            if isinstance(proposal, HoldProposal):
                self.record(f.SiteHeld(proposal.site, proposal.reason))
            elif isinstance(proposal, WithdrawalProposal):
                self._withdraw(proposal)
            elif isinstance(proposal, PilotProposal) and self._may_request(proposal):
                self.request_pilot(proposal)
            else:
                self.refused_proposals += 1

    def _may_request(self, proposal: PilotProposal) -> bool:
        """Returns whether the proposed pilot can be requested. Its size must be valid. Its site must not be paused, held or full; a site
        without a configuration is not checked for this."""
        record = self.state.sites.get(proposal.site)
        if proposal.size.cores < 0 or proposal.size.nodes <= 0:
            return False
        if record is None or record.site is None:
            return True
        return not record.site.paused and not record.held and len(self.state.pilots_at(proposal.site)) < record.site.max_pilots

    def request_pilot(self, proposal: PilotProposal, by_user: bool = False) -> str:
        pilot = f"{proposal.site}-{self.state.next_pilot}"
        self.record(f.PilotRequested(pilot, proposal.site, proposal.size, proposal.reason, proposal.replaces, by_user))
        self.effects.append(e.SubmitPilot(pilot, proposal.site, proposal.size))
        return pilot

    def _withdraw(self, proposal: WithdrawalProposal) -> None:
        pilot = self.state.pilots.get(proposal.pilot)
        if pilot is None or pilot.state > ACTIVE:
            self.refused_proposals += 1
        else:
            site_events.release_pilot(self, pilot, proposal.reason, proposal.cause)

    def _consider_finish(self) -> None:
        """Ends the master if no client was connected, no task was unfinished and no run was open for ``linger_s`` seconds. If the pool is
        only inspected, unfinished tasks and open runs do not count."""
        work = self.state.unfinished or any(not run.closed for run in self.state.runs.values())
        if self.subscriptions.links or (work and not self.inspect_only):
            self.finish_at = None
        elif self.finish_at is None:
            self.finish_at = self.now + self.settings.linger_s
        elif self.now >= self.finish_at:
            self.finish_at = None
            self.finish("no work and no client")

    def finish(self, reason: str) -> None:
        """Ends all workers and pilots, then the master. Unfinished tasks stay in the journal and continue when a master starts again."""
        self.finishing = True
        for worker in list(self.state.workers.values()):
            leases.leave(self, worker, reason)
        for pilot in list(self.state.pilots.values()):
            if pilot.state <= ACTIVE:
                self.end_pilot(pilot.id, reason)
        self.effects.append(e.Finish(reason))

    # --- ends -----------------------------------------------------------------------------------------------------------------------

    def end_pilot(self, pilot: str, reason: str, cause: str = "") -> None:
        self.record(f.PilotEnding(pilot, reason, cause))
        self.effects.append(e.CancelPilot(pilot))

    def fail_attempt(self, fact: f.AttemptFailed) -> None:
        task = self.state.task(fact.task)
        self.record(fact)
        if fact.final:
            self.after_failure([task])

    def after_failure(self, ended: list[Task]) -> None:
        """Handles failed or cancelled tasks of one run (``ended``). Skips all tasks that need these tasks, directly or through other tasks.
        Cancels the run if it has reached its maximum number of failures. Skipped tasks, and failures before the last rerun, do not
        count."""
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
            failure = reason.failure
            if failure is None or failure.cause != DEPENDENCY:  # the failure of a skipped task already names the first failed task
                how = "was cancelled" if reason.state == CANCELLED else "failed"
                failure = Failure(DEPENDENCY, "task", f"task {show_task(reason.id)}, which it needs, {how}")
            self.record(f.TasksSkipped(list(hopeless), failure))
        run = reason.shape.run
        failed = run.counts[FAILED] - run.uncounted_failures
        if run.options.max_failures and failed >= run.options.max_failures and run.unfinished:
            pool_commands.cancel_run(self, run, f"{failed} task{'s' * (failed > 1)} failed")


# --- inputs -------------------------------------------------------------------------------------------------------------------------


def _link_closed(machine: Machine, item: i.LinkClosed) -> None:
    worker = machine.agent_links.pop(item.link, None)
    if worker is not None:
        connection = machine.connections.get(worker)
        if connection is not None and connection.link == item.link:
            connection.link = None
            machine.decide_again = True
    client_messages.link_closed(machine, item.link)


def _link_paused(machine: Machine, item: i.LinkPaused) -> None:
    if item.paused:
        machine.subscriptions.paused[item.link] = None
    else:
        machine.subscriptions.paused.pop(item.link, None)


def _journal_space_changed(machine: Machine, item: i.JournalSpaceChanged) -> None:
    machine.journal_full = item.full
    machine.decide_again = True


def _output_space_changed(machine: Machine, item: i.OutputSpaceChanged) -> None:
    machine.output_space_problem = item.problem


_HANDLERS: dict[type, Callable[[Machine, Any], None]] = {
    i.AgentMessage: agent_messages.handle,
    i.ClientMessage: client_messages.handle,
    i.LinkClosed: _link_closed,
    i.LinkPaused: _link_paused,
    **site_events.HANDLERS,
    i.JournalSpaceChanged: _journal_space_changed,
    i.OutputSpaceChanged: _output_space_changed,
    i.TransferMeasured: lambda machine, item: machine.record(f.LinkMeasured(item.site, item.size, item.seconds)),
    i.ResumeRequested: lambda machine, item: machine.resume(),
}


# --- proposals ----------------------------------------------------------------------------------------------------------------------


_PROPOSALS: dict[type, Callable[[Machine, Any], bool]] = {
    AssignmentProposal: assignment.assign,
    CopyProposal: assignment.duplicate,
    DelegationProposal: site_masters.delegate,
    RecallProposal: assignment.recall,
    RetireProposal: leases.retire,
}
