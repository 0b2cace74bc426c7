"""Decides what the agent does. The machine takes inputs and returns effects. It does no I/O.

There is no clock and no thread, and all random numbers come from a seed. Three hosts drive the machine: ``agent_loop``, the fault world of
the tests and the experiment ``overlay``. Each input is a method. A host calls any number of inputs, and then ``turn(now)``, which returns
the effects of these inputs in order. The host also calls ``turn`` at the time ``deadline``, even if there was no input. ``now`` is the time
of any monotonic clock in seconds. ``model/messages.py`` describes headers and bodies: a header is what ``json.loads`` returns, a body is
any bytes-like object.

Inputs (they return nothing)
    linked(epoch, now)          a connection to the master was dialled and authenticated. ``epoch`` grows with each start of a master
    unlinked(now)               the connection to the master is lost, or a dial failed
    refused(reason, now)        the master refused the dial
    received(header, body, now)   a frame of the master arrived
    assigned_by_peer(header, body, now)   an Assign of the site master arrived
    link_active(now)            a part of a frame of the master arrived, so the master is alive
    slot_finished(slot, items, now)
                                attempts of this slot ended, in the order in which they were assigned.
                                items: [(failure or None, wall_us, cpu_us, rss_kib, payload), ...]; failure: [cause, blame, message].
                                An item with a sixth element (any value) has a payload that must be uploaded
    slot_died(slot, started, failure, usage, now)
                                the slot process and its descendants are dead. The slot had started its first ``started`` attempts. The last
                                started attempt ends with ``failure`` and usage = (wall_us, cpu_us, rss_kib[, payload]). The other started
                                attempts end with slot-lost. Attempts that had not started return to the head of the queue. Slot
                                numbers are never reused
    slot_returned(slot, count, now)
                                answer to recall: the slot will not start its last ``count`` attempts
    not_started(slot, now)      answer to terminate: the attempt was not terminated, because it had not started. The time limit of the
                                attempt begins anew
    fetched(digest, now)        a content is in the cache
    not_fetched(digest, failure, now)   a content cannot be fetched
    staging.changed(gained, lost)   contents entered or left the cache
    left_out(number, size, now)   ``size`` bytes of output are missing in the result of the upload ``number``, and are stored nowhere
    uploaded(number, failure, payload, produced, now)
                                answer to upload: the failure or None, the payload of the result, and the rows of produced contents
    over_limit(slot, failure, now)   the running attempt exceeded its memory limit. The agent kills the attempt, which ends with ``failure``
    send_to_master(header, now)   the network of the peers has a message for the master
    stop(reason, now)           a signal came, or the supervisor is dead. The agent leaves at once

Effects (tuples)
    ("dial",)                   connect and authenticate. Answer with linked, unlinked or refused
    ("disconnect", reason)      close the connection or give up the dial. Do not call unlinked
    ("send", header, parts)     send one frame. The parts together are the body
    ("start", slot, attempts)   assign these Attempt objects to the slot, in order. If the slot is unknown, start a slot process
    ("recall", slot)            recall the attempts that this slot has not started. Answer with slot_returned, also if there are none
    ("terminate", slot)         send TERM to the whole process tree of the attempt. slot_finished or slot_died can follow
    ("kill", slot)              kill the whole process tree of the attempt. slot_finished or slot_died must follow. Kill and terminate are
                                used only if the slot has a single attempt
    ("warn", slot, number)      send the signal ``number``, chosen by the user, to the attempt, because the walltime ends soon
    ("fetch", content)          bring this content into the cache: [digest, size, path, mtime_ns, inode]. Answer: fetched or not_fetched
    ("cancel_fetch", digest)    stop fetching this content, because it is no longer needed
    ("upload", number, payload)   ``payload`` is a large result of a call, or it lists output files and streams. Store a large result in
                                the cache. Send streams and files to the master, except the files that stay with this worker: store
                                these files in the cache. Answer with uploaded
    ("cancel_upload", number)   stop the upload ``number``, because its files are no longer needed
    ("discard", payload)        delete the files that this payload names
    ("release", header, body)   from now on, the cache is allowed to evict the contents that ``header`` lists
    ("introduce", header, body), ("delegate", header, body), ("drop_delegated", items, back), ("report_free", amounts)
                                call the method of the peer network that has the name of the effect
    ("peek", query, slot, stream, offset)   read output of the running attempt, and send it in the message Peeked
    ("exit", reason, code)      send pending frames, kill all processes of slots, and exit. Later inputs are ignored

``deadline`` is the time of the next turn if no input comes earlier.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ...portable.failures import Failure
from .assignment_reader import read_assignment
from .attempts import NEVER, Attempt, AttemptQueue, check_slots
from .input_staging import InputStaging, is_disk_full
from .pending_results import Item, PendingResults

Effect = Tuple[Any, ...]

DOWN, DIALLING, LINKED, WELCOMED = range(4)
_FORWARDED = {"introduce": "introduce", "lend": "delegate", "let_go": "release"}
"""The messages of the master that the host handles: kind of the message -> kind of the effect."""
_UNREADABLE = (IndexError, KeyError, TypeError, ValueError)

DIAL_TIMEOUT_S = 20.0
REDIAL_FIRST_S = 0.1
MAX_REDIAL_S = 5.0
REDIAL_APART_S = 1.0
"""If the last dial was at least this many seconds ago, the first dial after a lost connection comes at once."""
MAX_REFUSALS = 3
"""Number of refusals in a row after which the agent exits. An agent that no master has welcomed yet exits after its first refusal."""
SILENT_HEARTBEATS = 3
"""If the master is silent for this many heartbeat intervals, the agent disconnects."""
STALL_S = 1.0
"""If a turn comes more than this many seconds too late, the agent itself was suspended."""
LINGER_S = 0.05
"""Seconds of silence after which a polling agent disconnects."""
RESULTS_APART_S = 0.02
"""Minimum seconds between two frames of results while attempts are queued."""
WARN_S = 60.0
"""When this many seconds of the walltime are left, the agent drains and sends the signals that users requested. An agent that begins with
less than ``WARN_S / WARN_SHARE`` seconds of walltime drains later: when the fraction ``WARN_SHARE`` of its walltime is left."""
WARN_SHARE = 0.2
TRANSFER_HEARTBEAT_S = 1.0
"""Seconds between heartbeats during transfers. Heartbeats report the progress."""
MAX_UNREADABLE = 5
"""Number of unreadable messages after which the agent exits. Each readable Assign restarts the count."""


class WorkerOffer:
    """The values that an agent reports when it joins. ``ends_at``: the monotonic time at which its walltime ends, or None."""

    def __init__(self, worker: str, pilot: str, capacity: Dict[str, float]) -> None:
        self.worker = worker
        self.pilot = pilot
        self.capacity = capacity
        self.tags: Dict[str, str] = {}
        self.info: Dict[str, Any] = {}
        self.ends_at: Optional[float] = None
        self.poll_s = 0.0


class Reconnect:
    """Decides when to dial the master again.

    After the loss of a connection, the first dial comes at once, except if the last dial was less than ``REDIAL_APART_S`` seconds ago.
    After each further failure, the wait is longer. A part of the wait is random, so that not all agents dial at the same time.
    """

    def __init__(self, seed: int, now: float) -> None:
        self.at = now
        """Time of the next dial."""
        self.last = -NEVER
        self.failures = 0
        self._random = random.Random(seed)

    def plan(self, now: float) -> None:
        """Plans the next dial after a lost connection or a failed dial."""
        self.failures += 1
        if self.failures == 1 and now - self.last >= REDIAL_APART_S:
            self.at = now
            return
        wait = min(MAX_REDIAL_S, REDIAL_FIRST_S * 2.0 ** min(self.failures, 10))
        self.at = now + wait * (0.5 + 0.5 * self._random.random())


class AgentMachine:
    """The decisions of an agent. The module docstring lists inputs and effects."""

    def __init__(self, offer: WorkerOffer, seed: int, now: float, heartbeat_s: float = 5.0, orphan_s: float = 120.0) -> None:
        self.offer = offer
        self.attempts = AttemptQueue(offer.capacity)
        self.deadline = now
        self.epoch = 0
        self.heartbeat_s = heartbeat_s
        self.orphan_s = orphan_s
        self.link = DOWN
        self.draining = ""
        self.exited = False
        self.ending = False
        """Whether the walltime is nearly over. If so, the agent drains, and each running attempt gets the signal that its user
        requested."""
        self.warn_at = NEVER if offer.ends_at is None else offer.ends_at - min(WARN_S, WARN_SHARE * max(0.0, offer.ends_at - now))
        self.results = PendingResults()
        self.staging = InputStaging()
        self.attempts.released = self.staging.release
        self.transfers: Callable[[], List[List[Any]]] = list
        """A function that returns [digest, bytes so far, total bytes] of each running transfer."""
        self._unreadable = 0
        self.delegated = False
        self._busy_since = NEVER
        self._reported_free: Any = None
        self.fetch_totals: Callable[[], List[int]] = list
        """A function that returns the number and bytes of fetched contents for each source. A heartbeat reports these numbers."""
        self._reconnect = Reconnect(seed, now)
        self._effects: List[Effect] = []
        self._returned: List[List[int]] = []
        self._started: List[List[int]] = []
        self._ever_welcomed = False
        self._last_contact = now
        self._last_received = now
        self._last_heartbeat = now
        self._last_results = -NEVER
        self._last_poll = -NEVER
        self._refusals = 0
        self._heartbeat_answered = False

    # --- connection ---------------------------------------------------------------------------------------------------------------

    def linked(self, epoch: int, now: float) -> None:
        if self.exited or self.link != DIALLING:
            return
        if epoch < self.epoch:
            self._disconnect("this master has an older epoch", now)
            return
        self.link = LINKED
        self.epoch = epoch
        self._last_received = now
        self._refusals = 0
        self._returned = []
        self._started = []
        offer = self.offer
        ends_in_s = None if offer.ends_at is None else max(0.0, offer.ends_at - now)
        holding = self.attempts.holding() + self.staging.holding() + self.results.holding()
        offer.info["empty"] = not self.staging.holds
        hello = ["hello", offer.worker, offer.pilot, offer.capacity, offer.tags, offer.info, ends_in_s, offer.poll_s]
        self._effects.append(("send", [*hello, holding], []))

    def unlinked(self, now: float) -> None:
        if self.exited or self.link == DOWN:
            return
        self.link = DOWN
        self._reconnect.plan(now)

    def refused(self, reason: str, now: float) -> None:
        if self.exited or self.link != DIALLING:
            return
        self.link = DOWN
        self._refusals += 1
        if not self._ever_welcomed or self._refusals >= MAX_REFUSALS:
            self._exit("the master refused this agent: " + reason, 3)
        else:
            self._reconnect.plan(now)

    def link_active(self, now: float) -> None:
        self._last_received = now
        if self.link == WELCOMED:
            self._last_contact = now

    def _disconnect(self, reason: str, now: float) -> None:
        self._effects.append(("disconnect", reason))
        self.link = DOWN
        self._reconnect.plan(now)

    # --- messages of the master ---------------------------------------------------------------------------------------------------

    def received(self, header: Sequence[Any], body: Any, now: float) -> None:
        if self.exited or self.link < LINKED:
            return
        self.link_active(now)
        try:
            handler = self._HANDLERS.get(header[0])
            if handler is not None:
                handler(self, header, body, now)
            elif header[0] in _FORWARDED:
                self._effects.append((_FORWARDED[header[0]], header, body))
                if header[0] == "introduce":
                    self._reported_free = None  # report free resources again, because new peers do not know them
        except _UNREADABLE as error:
            self._unreadable += 1
            self._disconnect("the master sent an unreadable message: %r" % (error,), now)
            if self._unreadable >= MAX_UNREADABLE:
                self._exit("the master uses another protocol: use the same version on both sides", 3)

    def _on_welcome(self, header: Sequence[Any], body: Any, now: float) -> None:
        _, epoch, heartbeat_s, orphan_s = header[:4]
        if epoch < self.epoch:
            self._disconnect("this master has an older epoch", now)
            return
        self.epoch, self.heartbeat_s, self.orphan_s = epoch, float(heartbeat_s), float(orphan_s)
        self.link = WELCOMED
        self._ever_welcomed = True
        self._reconnect.failures = 0
        self._last_contact = now
        self._heartbeat_answered = False
        self.delegated = False  # if this master knows a site master, the master sends "quiet" next
        self.results.resend_all()
        self.staging.reported = False
        if self.draining:
            self._effects.append(("send", ["draining", self.draining], []))
        # A polling agent sends a heartbeat after its first results. The answer to the heartbeat shows that the master has received these
        # results.
        self._last_heartbeat = -NEVER if self.offer.poll_s > 0 else now

    def _on_assign(self, header: Sequence[Any], body: Any, now: float) -> None:
        for attempt, reason in read_assignment(header, body, self.attempts):
            if reason:
                self.attempts.drop(attempt.task)
                attempt.contents = ()
                self._keep_result(attempt, (["spawn", "worker", "this worker cannot run it: " + reason], 0, 0, 0, b""), now)
                continue
            if attempt.contents:
                self.staging.require(attempt, now)
            self.attempts.enqueue(attempt)
        self._unreadable = 0
        if self.draining:
            self._returned.extend(self.attempts.return_all_queued())

    def _on_acked(self, header: Sequence[Any], body: Any, now: float) -> None:
        for digest in self.results.acknowledge(header[1], header[2]):
            self.staging.unpin(digest)

    def _on_kill(self, header: Sequence[Any], body: Any, now: float) -> None:
        for task, number in header[1]:
            self.attempts.drop(task, number)
            self.staging.drop(task)
        self._effects.append(("drop_delegated", header[1], False))

    def _on_recall(self, header: Sequence[Any], body: Any, now: float) -> None:
        self._returned.extend([task, number] for task, number in header[1] if self.attempts.return_queued(task, number))
        self._effects.append(("drop_delegated", header[1], True))

    def _on_heartbeat_answered(self, header: Sequence[Any], body: Any, now: float) -> None:
        self._heartbeat_answered = True

    def _on_drain(self, header: Sequence[Any], body: Any, now: float) -> None:
        self.draining = str(header[1]) or "drained"
        self._returned.extend(self.attempts.return_all_queued())

    def _on_retire(self, header: Sequence[Any], body: Any, now: float) -> None:
        self._exit("retired: " + str(header[1]), 0)

    def _on_set_heartbeats(self, header: Sequence[Any], body: Any, now: float) -> None:
        """Records whether a site master serves this worker. If so, this worker sends few heartbeats to the master."""
        self.delegated = bool(header[1])
        self._reported_free = None

    def _on_peek(self, header: Sequence[Any], body: Any, now: float) -> None:
        _, query, task, number, stream, offset = header[:6]
        slot = self.attempts.running(task, number)
        if slot is None:
            self._effects.append(("send", ["peeked", query, False, offset], []))
        else:
            self._effects.append(("peek", query, slot.number, stream, offset))

    _HANDLERS = {
        "welcome": _on_welcome,
        "assign": _on_assign,
        "acked": _on_acked,
        "kill": _on_kill,
        "recall": _on_recall,
        "pulse": _on_heartbeat_answered,
        "drain": _on_drain,
        "retire": _on_retire,
        "quiet": _on_set_heartbeats,
        "peek": _on_peek,
    }

    # --- slots --------------------------------------------------------------------------------------------------------------------

    def slot_finished(self, slot: int, items: Sequence[Item], now: float) -> None:
        view = self.attempts.slots.get(slot)
        if self.exited or view is None:
            return
        for item in items:
            if not view.attempts:
                return
            stop_failure = view.stop_failure if item[0] is not None or view.stop_stage > 1 else None
            reported = view.reported or self.delegated
            attempt = self.attempts.finished(view, now)
            attempt.spec.measured(item[1] * 1e-6)
            if stop_failure is not None:
                item = (stop_failure, *item[1:])
            if len(item) > 5:
                self.staging.begin_upload(attempt, item)
                if not attempt.forgotten and not reported:
                    self._started.append([attempt.task, attempt.attempt])
            else:
                self._keep_result(attempt, item, now)

    def slot_died(self, slot: int, started: int, failure: Failure, usage: Tuple[Any, ...], now: float) -> None:
        view = self.attempts.slots.get(slot)
        if self.exited or view is None:
            return
        last = view.stop_failure or failure
        ended = self.attempts.slot_lost(view, started)
        for attempt in ended[:-1]:
            self._keep_result(attempt, (["slot-lost", "worker", "its slot died before it reported the result"], 0, 0, 0, b""), now)
        for attempt in ended[-1:]:
            self._keep_result(attempt, (last, *usage[:3], usage[3] if len(usage) > 3 else b""), now)
        if self.draining:
            self._returned.extend(self.attempts.return_all_queued())

    def slot_returned(self, slot: int, count: int, now: float) -> None:
        view = self.attempts.slots.get(slot)
        if self.exited or view is None or not view.recalling:
            return
        self.attempts.recalled(view, count)
        if view.stop_stage or self.ending:
            self.attempts.next_check = 0.0
        if self.draining:
            self._returned.extend(self.attempts.return_all_queued())

    def not_started(self, slot: int, now: float) -> None:
        view = self.attempts.busy.get(slot)
        if view is not None:
            view.begin_next(now)
            self.attempts.next_check = 0.0

    def over_limit(self, slot: int, failure: Failure, now: float) -> None:
        view = self.attempts.busy.get(slot)
        if view is not None:
            view.request_stop(failure)
            self.attempts.next_check = 0.0

    def _keep_result(self, attempt: Attempt, item: Item, now: float) -> None:
        """Keeps a result until it is acknowledged. If a full or broken disk made the attempt fail, the agent drains."""
        if item[0] is not None and is_disk_full(item[0]):
            self._drain(item[0][2])
        if not attempt.forgotten:
            self.results.keep(attempt, item, now)

    # --- contents -----------------------------------------------------------------------------------------------------------------

    def fetched(self, digest: str, now: float) -> None:
        self.staging.changed([digest], [])
        for attempt in self.staging.arrived(digest, now):
            self.attempts.unstage(attempt)

    def not_fetched(self, digest: str, failure: Failure, now: float) -> None:
        for attempt in self.staging.waiting_for(digest):
            self.attempts.end_attempt(attempt)
            self._keep_result(attempt, (failure, 0, 0, 0, b""), now)

    def assigned_by_peer(self, header: Sequence[Any], body: Any, now: float) -> None:
        """Adds the attempts that the site master assigned. Ignores an unreadable message, because a faulty peer must not end this agent."""
        self._reported_free = None  # report free resources again: the site master has reserved some, even for attempts that are not new
        try:
            if not self.exited:
                self._on_assign(header, body, now)
        except _UNREADABLE:
            pass

    def send_to_master(self, header: Sequence[Any], now: float) -> None:
        """Sends a message of the network of the peers to the master, if the master is connected."""
        if self.link == WELCOMED and not self.exited:
            self._effects.append(("send", header, []))

    def left_out(self, number: int, size: int, now: float) -> None:
        self.staging.left_out[number] = size

    def uploaded(self, number: int, failure: Optional[Failure], payload: Any, produced: List[Any], now: float) -> None:
        attempt, item = self.staging.finish_upload(number, failure, payload, produced)
        self._keep_result(attempt, item, now)

    # --- turn ---------------------------------------------------------------------------------------------------------------------

    def stop(self, reason: str, now: float) -> None:
        if self.exited:
            return
        if self.link >= LINKED:
            self._returned.extend(self.attempts.return_all_queued())
            self.results.drop_ambiguous(now)
            self._send_pending(now)
            self._effects.append(("send", ["leave", reason, self.attempts.cut_off(now) if self.ending else []], []))
        self._exit(reason, 0)

    def turn(self, now: float) -> List[Effect]:
        """Returns the effects that are due."""
        if not self.exited:
            self._forgive_stall(now)
            self._check_time(now)
        if not self.exited:
            if now >= self.attempts.next_check:
                self._effects.extend(check_slots(self.attempts, now, self.ending, self._started))
            if self.attempts.queue:
                self.attempts.fill(now)
            if self.attempts.to_start:
                self._effects.extend(("start", slot, attempts) for slot, attempts in self.attempts.to_start.items())
                self.attempts.to_start = {}
            self._update_link(now)
            if self.delegated and not self.draining and self._reported_free != (free := self.attempts.free_after_queue()):
                self._reported_free = free
                self._effects.append(("report_free", free))
            if self.staging.effects:
                self._effects.extend(self.staging.effects)
                self.staging.effects = []
        self.deadline = NEVER if self.exited else self._next_deadline()
        effects, self._effects = self._effects, []
        return effects

    def _forgive_stall(self, now: float) -> None:
        """Corrects the times of the last contact if this process was suspended, so that the suspension does not count as silence of the
        master. The process was suspended if this turn comes more than ``STALL_S`` seconds too late."""
        late = now - self.deadline
        if late > STALL_S:
            self._last_received += late
            self._last_contact += late

    def _check_time(self, now: float) -> None:
        ends_at = self.offer.ends_at
        if ends_at is not None and now >= ends_at:
            self.stop("the walltime of this pilot is over", now)
            return
        if now >= self.warn_at and not self.ending:
            self.ending = True
            self.attempts.next_check = 0.0
            self._drain("the walltime of this pilot is nearly over")
        if now >= self._last_contact + self.orphan_s:
            self._exit("no contact with the master for %g s" % self.orphan_s, 4)
        elif self.link == DIALLING and now >= self._reconnect.last + DIAL_TIMEOUT_S:
            self._disconnect("the dial timed out", now)
        elif self.link >= LINKED and not self.delegated and now >= self._last_received + SILENT_HEARTBEATS * self.heartbeat_s:
            self._disconnect("the master is silent", now)

    def _drain(self, reason: str) -> None:
        """Returns queued attempts to the master and asks the master to assign no more attempts."""
        self.draining = self.draining or reason
        self._returned.extend(self.attempts.return_all_queued())
        if self.link == WELCOMED:
            self._effects.append(("send", ["draining", self.draining], []))

    def _update_link(self, now: float) -> None:
        if self.link == WELCOMED:
            self._send_pending(now)
            if self.draining and not (self.attempts.live or self.attempts.busy or self.staging.uploads or self.results.kept):
                self._effects.append(("send", ["leave", self.draining], []))
                self._exit(self.draining, 0)
            elif self.offer.poll_s > 0 and now >= self._poll_over_at():
                self._effects.append(("disconnect", "nothing left to send"))
                self.link = DOWN
                self._last_poll = now
                self._reconnect.at = self._next_poll()
        if self.link == DOWN and not self.exited:
            if self.offer.poll_s > 0 and self._reconnect.failures == 0:
                self._reconnect.at = self._next_poll()
            if now >= self._reconnect.at:
                self.link = DIALLING
                self._reconnect.last = now
                self._effects.append(("dial",))

    def _send_pending(self, now: float) -> None:
        if self._returned:
            self._effects.append(("send", ["returned", self._returned], []))
            self._returned = []
        if not self.delegated:
            self._effects.extend(("send", header, []) for header in self.staging.report())
        # While attempts are queued, the agent waits a moment between two frames, so that one frame has many results. No slot waits for
        # these frames.
        if self.results.unsent and (not self.attempts.queue or now >= self._last_results + RESULTS_APART_S):
            self._last_results = now
            for header, parts in self.results.frames(now):
                if self.delegated:
                    header.extend(self.staging.changes())
                self._effects.append(("send", header, parts))
        if self.delegated:
            self._started = []
            self._busy_since = min(self._busy_since, now) if self.staging.is_busy else NEVER
        if self._started or now >= self._next_heartbeat():
            self._effects.append(("send", ["beat", self._started, self.transfers(), self.staging.add_cache_hits(self.fetch_totals())], []))
            self._started = []
            self._last_heartbeat = now

    def _next_heartbeat(self) -> float:
        if self.delegated:
            # The site master reports that the master is alive. If no report comes, the agent asks the master with a heartbeat. During
            # transfers, heartbeats report the progress.
            return min(self._last_contact + self.orphan_s / 2, max(self._last_heartbeat, self._busy_since) + self.heartbeat_s)
        return self._last_heartbeat + (min(TRANSFER_HEARTBEAT_S, self.heartbeat_s) if self.staging.is_busy else self.heartbeat_s)

    def _poll_over_at(self) -> float:
        """Returns the time at which an agent with the option ``--poll`` disconnects until its next poll.

        The time is ``LINGER_S`` seconds after the last message of the master. Until the master has acknowledged all results and one
        heartbeat, the time is NEVER.
        """
        if self.results.kept or not self._heartbeat_answered:
            return NEVER
        return self._last_received + LINGER_S

    def _next_poll(self) -> float:
        urgent = bool(self.results.kept) or self.attempts.has_idle_core()
        poll_s = self.offer.poll_s
        return self._last_poll + (min(poll_s, max(poll_s / 10, 0.2)) if urgent else poll_s)

    def _next_deadline(self) -> float:
        due = min(self._last_contact + self.orphan_s, self.attempts.next_check)
        if self.offer.ends_at is not None:
            due = min(due, self.offer.ends_at if self.ending else self.warn_at)
        if self.link == DOWN:
            return min(due, self._reconnect.at)
        if self.link == DIALLING:
            return min(due, self._reconnect.last + DIAL_TIMEOUT_S)
        if not self.delegated:
            due = min(due, self._last_received + SILENT_HEARTBEATS * self.heartbeat_s)
        if self.link == WELCOMED:
            due = min(due, self._next_heartbeat())
            if self.results.unsent:
                due = min(due, self._last_results + RESULTS_APART_S)
            if self.offer.poll_s > 0:
                due = min(due, self._poll_over_at())
        return due

    def _exit(self, reason: str, code: int) -> None:
        self._effects.append(("exit", reason, code))
        self.exited = True
