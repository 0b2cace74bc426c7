"""The agent's machine: what the world tells it goes in, what is to be done comes out. No I/O, no clock, no threads, no unseeded dice.

Two hosts drive it: ``host.py`` with sockets and processes, and the simulator. A host tells news with the methods below, any number of
them, and then calls ``turn(now)``, which returns the effects, in order; it must also call ``turn`` when ``deadline`` is reached.
``now`` is any clock that never goes back, in seconds. Header lists and bodies are those of the wire contract (``model/messages.py``), as
``json.loads`` gives them; a body is any bytes-like object.

Inputs (they return nothing)
    linked(epoch, now)          a dialled connection was proved by both sides; ``epoch`` is that of the master's Proved
    unlinked(now)               the connection is gone, or a dial led to nothing; refused(reason, now): the master answered it with Refused
    heard(header, body, now)    one frame of the master; given(header, body, now): an Assign that another agent of our site made
    link_active(now)            bytes of an unfinished frame came: the master lives
    slot_finished(slot, items, now)
                                attempts of this slot ended, in the order they were given:
                                items = [(failure or None, wall_us, cpu_us, rss_kib, payload), ...], failure = [cause, blame, message]
    slot_died(slot, begun, failure, usage, now)
                                the slot process is gone, and all under it. The first ``begun`` attempts it still held had been started:
                                the last of them ends with ``failure`` and usage = (wall_us, cpu_us, rss_kib[, payload]), earlier ones
                                as slot-lost; the others go back to the head of the queue. Slot numbers are never used again.
    slot_returned(slot, count, now)
                                the answer to take_back: the last ``count`` attempts given to this slot are not started and never will be
    not_begun(slot, now)        an answer to terminate: the attempt has not started yet, its time begins now
    fetched(digest, now)        a content is in the cache; not_fetched(digest, failure, now): it cannot be got, and that is this failure
    staging.changed(gained, lost)   contents came to the cache, or went from it
    stowed(number, failure, payload, made, now)   the answer to stow: what is to be sent, and rows of what was made
    over_limit(slot, failure, now)   what runs there broke a limit that the host watches (memory): it is killed and ends with this failure
    stop(reason, now)           a signal, or the supervisor is gone: leave at once

Effects (tuples)
    ("dial",)                   connect and shake hands; the answer is linked, unlinked or refused
    ("hangup", reason)          drop the connection or the dial; say nothing more about it (no unlinked for it)
    ("send", header, parts)     one frame; parts are bytes-like, together the body
    ("start", slot, attempts)   give these Attempt objects to the slot, in order; a number not seen before asks for a new slot process
    ("take_back", slot)         take back what this slot was given and has not started; answer with slot_returned (0 is a fine answer)
    ("terminate", slot)         ask the one attempt in this slot to end (TERM to its whole tree); slot_finished or slot_died may follow
    ("kill", slot)              stop it with force, whole tree; slot_finished or slot_died must follow. This one and terminate come only
                                when the slot holds a single attempt.
    ("warn", slot, number)      send this signal to the one attempt in this slot, which asked to be warned before the end of the pilot
    ("fetch", content)          have this content ([digest, size, path, mtime_ns, inode]) in the cache; answer with fetched or not_fetched
    ("stow", number, payload)   put the files that this payload names into the cache and, but for those to be kept here, bring them to the
                                master; the answer is stowed
    ("discard", payload)        the files that this payload names are not wanted; ("unfetch", digest): nor is this content any more
    ("unstow", number)          nor are the files of that stow
    ("let_go" | "introduce" | "lend", header, body), ("unlend", items, back), ("room", free)   for the cache and the overlay
    ("peek", query, slot, stream, offset)   send Peeked with output of what runs in the slot
    ("exit", reason, code)      send what is still to be sent, kill everything, end. Nothing follows; later inputs are ignored.

``deadline`` is the time of the next turn if nothing happens before. Attempts are those of ``work.py``.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ...portable.failures import Failure
from . import reconnect
from .assignment_reader import read_assignment
from .attempts import NEVER, Attempt, AttemptQueue, look_at_slots
from .input_staging import InputStaging, no_room
from .pending_results import Item, PendingResults
from .reconnect import Reconnect

Effect = Tuple[Any, ...]

DOWN, DIALLING, LINKED, WELCOMED = range(4)
_UNREADABLE = (IndexError, KeyError, TypeError, ValueError)


class AgentMachine:
    """See the head of this file."""

    def __init__(self, offer: WorkerOffer, seed: int, now: float, beat_s: float = 5.0, orphan_s: float = 120.0) -> None:
        self.offer = offer
        self.work = AttemptQueue(offer.capacity)
        self.deadline = now
        self.epoch = 0
        self.beat_s = beat_s
        self.orphan_s = orphan_s
        self.link = DOWN
        self.draining = ""
        self.exited = False
        self.ending = False
        """Its end is near: nothing is begun any more, and what runs is warned."""
        self.warn_at = (
            NEVER if offer.ends_at is None else offer.ends_at - min(reconnect.WARN_S, reconnect.WARN_SHARE * max(0.0, offer.ends_at - now))
        )
        self.results = PendingResults()
        self.staging = InputStaging()
        self.work.released = self.staging.release
        self.moving: Callable[[], List[List[Any]]] = list
        """What the host has under way: [digest, bytes so far, bytes in all]; ``got``: how much from where, see ``Beat``."""
        self._unreadable = 0
        self.quiet = False
        self._busy_since = NEVER
        self._room_told: Any = None
        self.got: Callable[[], List[int]] = list
        self._redial = Reconnect(seed, now)
        self._effects: List[Effect] = []
        self._returned: List[List[int]] = []
        self._started: List[List[int]] = []
        self._ever_welcomed = False
        self._last_contact = now
        self._last_heard = now
        self._last_beat = now
        self._last_results = -NEVER
        self._last_call = -NEVER
        self._refusals = 0
        self._pulsed = False

    # --- the link ---------------------------------------------------------------------------------------------------------------

    def linked(self, epoch: int, now: float) -> None:
        if self.exited or self.link != DIALLING:
            return
        if epoch < self.epoch:
            self._hang_up("the master there is an old one", now)
            return
        self.link = LINKED
        self.epoch = epoch
        self._last_heard = now
        self._refusals = 0
        self._returned = []
        self._started = []
        offer = self.offer
        ends_in_s = None if offer.ends_at is None else max(0.0, offer.ends_at - now)
        holding = self.work.holding() + self.staging.holding() + self.results.holding()
        offer.info["empty"] = not self.staging.holds
        hello = ["hello", offer.worker, offer.pilot, offer.capacity, offer.tags, offer.info, ends_in_s, offer.poll_s]
        self._effects.append(("send", [*hello, holding], []))

    def unlinked(self, now: float) -> None:
        if self.exited or self.link == DOWN:
            return
        self.link = DOWN
        self._redial.plan(now)

    def refused(self, reason: str, now: float) -> None:
        if self.exited or self.link != DIALLING:
            return
        self.link = DOWN
        self._refusals += 1
        if not self._ever_welcomed or self._refusals >= reconnect.REFUSALS:
            self._exit("the master refused this agent: " + reason, 3)
        else:
            self._redial.plan(now)

    def link_active(self, now: float) -> None:
        self._last_heard = now
        if self.link == WELCOMED:
            self._last_contact = now

    def _hang_up(self, reason: str, now: float) -> None:
        self._effects.append(("hangup", reason))
        self.link = DOWN
        self._redial.plan(now)

    # --- what the master says -----------------------------------------------------------------------------------------------------

    def heard(self, header: Sequence[Any], body: Any, now: float) -> None:
        if self.exited or self.link < LINKED:
            return
        self.link_active(now)
        try:
            handler = self._HANDLERS.get(header[0])
            if handler is not None:
                handler(self, header, body, now)
            elif header[0] in ("introduce", "lend", "let_go"):
                self._effects.append((header[0], header, body))
                if header[0] == "introduce":
                    self._room_told = None  # our peers may not have heard it: before this we may have had none
        except _UNREADABLE as error:
            self._unreadable += 1
            self._hang_up("the master sent something that cannot be read: %r" % (error,), now)
            if self._unreadable >= reconnect.UNREADABLE:
                self._exit("the master does not speak as we do: use the same version on both sides", 3)

    def _on_welcome(self, header: Sequence[Any], body: Any, now: float) -> None:
        _, epoch, beat_s, orphan_s = header[:4]
        if epoch < self.epoch:
            self._hang_up("the master there is an old one", now)
            return
        self.epoch, self.beat_s, self.orphan_s = epoch, float(beat_s), float(orphan_s)
        self.link = WELCOMED
        self._ever_welcomed = True
        self._redial.failures = 0
        self._last_contact = now
        self._pulsed = False
        self.quiet = False  # this master may know of nobody who vouches for us; if somebody does, it says so next
        self.results.send_all_again()
        self.staging.told = False
        if self.draining:
            self._effects.append(("send", ["draining", self.draining], []))
        # A beat after the first results asks for a pulse, which tells a calling agent that all was received.
        self._last_beat = -NEVER if self.offer.poll_s > 0 else now

    def _on_assign(self, header: Sequence[Any], body: Any, now: float) -> None:
        for attempt, reason in read_assignment(header, body, self.work):
            if reason:
                self.work.drop(attempt.task)
                attempt.contents = ()
                self._keep(attempt, (["spawn", "worker", "this worker cannot run it: " + reason], 0, 0, 0, b""), now)
                continue
            if attempt.contents:
                self.staging.need(attempt, now)
            self.work.enqueue(attempt)
        self._unreadable = 0
        if self.draining:
            self._returned.extend(self.work.hand_back_all())

    def _on_acked(self, header: Sequence[Any], body: Any, now: float) -> None:
        for digest in self.results.acknowledge(header[1], header[2]):
            self.staging.unpin(digest)

    def _on_kill(self, header: Sequence[Any], body: Any, now: float) -> None:
        for task, number in header[1]:
            self.work.drop(task, number)
            self.staging.drop(task)
        self._effects.append(("unlend", header[1], False))

    def _on_recall(self, header: Sequence[Any], body: Any, now: float) -> None:
        self._returned.extend([task, number] for task, number in header[1] if self.work.hand_back(task, number))
        self._effects.append(("unlend", header[1], True))

    def _on_pulse(self, header: Sequence[Any], body: Any, now: float) -> None:
        self._pulsed = True

    def _on_drain(self, header: Sequence[Any], body: Any, now: float) -> None:
        self.draining = str(header[1]) or "drained"
        self._returned.extend(self.work.hand_back_all())

    def _on_retire(self, header: Sequence[Any], body: Any, now: float) -> None:
        self._exit("retired: " + str(header[1]), 0)

    def _on_quiet(self, header: Sequence[Any], body: Any, now: float) -> None:
        """Another agent of our site vouches for us, and gives us work."""
        self.quiet = bool(header[1])
        self._room_told = None

    def _on_peek(self, header: Sequence[Any], body: Any, now: float) -> None:
        _, query, task, number, stream, offset = header[:6]
        slot = self.work.running(task, number)
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
        "pulse": _on_pulse,
        "drain": _on_drain,
        "retire": _on_retire,
        "quiet": _on_quiet,
        "peek": _on_peek,
    }

    # --- what the slots say -------------------------------------------------------------------------------------------------------

    def slot_finished(self, slot: int, items: Sequence[Item], now: float) -> None:
        held = self.work.slots.get(slot)
        if self.exited or held is None:
            return
        for item in items:
            if not held.attempts:
                return
            verdict = held.verdict if item[0] is not None or held.condemned > 1 else None
            reported = held.reported or self.quiet
            attempt = self.work.finished(held, now)
            attempt.spec.measured(item[1] * 1e-6)
            if verdict is not None:
                item = (verdict, *item[1:])
            if len(item) > 5:
                self.staging.stow(attempt, item)
                if not attempt.forgotten and not reported:
                    self._started.append([attempt.task, attempt.attempt])
            else:
                self._keep(attempt, item, now)

    def slot_died(self, slot: int, begun: int, failure: Failure, usage: Tuple[Any, ...], now: float) -> None:
        held = self.work.slots.get(slot)
        if self.exited or held is None:
            return
        last = held.verdict or failure
        gone = self.work.lost(held, begun)
        for attempt in gone[:-1]:
            self._keep(attempt, (["slot-lost", "worker", "its slot died before it had handed over the result"], 0, 0, 0, b""), now)
        for attempt in gone[-1:]:
            self._keep(attempt, (last, *usage[:3], usage[3] if len(usage) > 3 else b""), now)
        if self.draining:
            self._returned.extend(self.work.hand_back_all())

    def slot_returned(self, slot: int, count: int, now: float) -> None:
        held = self.work.slots.get(slot)
        if self.exited or held is None or not held.asked_back:
            return
        self.work.taken_back(held, count)
        if held.condemned or self.ending:
            self.work.next_look = 0.0
        if self.draining:
            self._returned.extend(self.work.hand_back_all())

    def not_begun(self, slot: int, now: float) -> None:
        held = self.work.busy.get(slot)
        if held is not None:
            held.turn_page(now)
            self.work.next_look = 0.0

    def over_limit(self, slot: int, failure: Failure, now: float) -> None:
        held = self.work.busy.get(slot)
        if held is not None:
            held.condemn(failure)
            self.work.next_look = 0.0

    def _keep(self, attempt: Attempt, item: Item, now: float) -> None:
        """Number a result and keep it until it is acknowledged. If the disk is full, no other task shall come."""
        if item[0] is not None and no_room(item[0]):
            self._drain(item[0][2])
        if not attempt.forgotten:
            self.results.keep(attempt, item, now)

    # --- contents -------------------------------------------------------------------------------------------------------------------

    def fetched(self, digest: str, now: float) -> None:
        self.staging.changed([digest], [])
        for attempt in self.staging.arrived(digest, now):
            self.work.unstage(attempt)

    def not_fetched(self, digest: str, failure: Failure, now: float) -> None:
        for attempt in self.staging.missed(digest):
            self.work.settle(attempt)
            self._keep(attempt, (failure, 0, 0, 0, b""), now)

    def given(self, header: Sequence[Any], body: Any, now: float) -> None:
        """Work that another agent of our site gives us. What cannot be read is dropped: no peer shall end us."""
        self._room_told = None  # whoever gave it counts it as room that is taken, even if it is no news to us
        try:
            if not self.exited:
                self._on_assign(header, body, now)
        except _UNREADABLE:
            pass

    def say(self, header: Sequence[Any], now: float) -> None:
        """Something for the master, from the overlay."""
        if self.link == WELCOMED and not self.exited:
            self._effects.append(("send", header, []))

    def stowed(self, number: int, failure: Optional[Failure], payload: Any, made: List[Any], now: float) -> None:
        attempt, item = self.staging.stowed(number, failure, payload, made)
        self._keep(attempt, item, now)

    # --- the turn -----------------------------------------------------------------------------------------------------------------

    def stop(self, reason: str, now: float) -> None:
        if self.exited:
            return
        if self.link >= LINKED:
            self._returned.extend(self.work.hand_back_all())
            self.results.forget_doubtful(now)
            self._send_news(now)
            self._effects.append(("send", ["leave", reason, self.work.cut_off(now) if self.ending else []], []))
        self._exit(reason, 0)

    def turn(self, now: float) -> List[Effect]:
        """What is to be done now."""
        if not self.exited:
            self._forgive_stall(now)
            self._mind_time(now)
        if not self.exited:
            if now >= self.work.next_look:
                self._effects.extend(look_at_slots(self.work, now, self.ending, self._started))
            if self.work.queue:
                self.work.fill(now)
            if self.work.begun:
                self._effects.extend(("start", slot, attempts) for slot, attempts in self.work.begun.items())
                self.work.begun = {}
            self._mind_link(now)
            if self.quiet and not self.draining and self._room_told != (room := self.work.room()):
                self._room_told = room
                self._effects.append(("room", room))
            if self.staging.effects:
                self._effects.extend(self.staging.effects)
                self.staging.effects = []
        self.deadline = NEVER if self.exited else self._next_deadline()
        effects, self._effects = self._effects, []
        return effects

    def _forgive_stall(self, now: float) -> None:
        """A turn that comes much too late means that we slept, not that the master was silent."""
        late = now - self.deadline
        if late > reconnect.STALL_S:
            self._last_heard += late
            self._last_contact += late

    def _mind_time(self, now: float) -> None:
        ends_at = self.offer.ends_at
        if ends_at is not None and now >= ends_at:
            self.stop("the time of this pilot is over", now)
            return
        if now >= self.warn_at and not self.ending:
            self._approach_end()
        if now >= self._last_contact + self.orphan_s:
            self._exit("no contact with the master for %g s" % self.orphan_s, 4)
        elif self.link == DIALLING and now >= self._redial.last + reconnect.DIAL_TIMEOUT_S:
            self._hang_up("the dial led to nothing", now)
        elif self.link >= LINKED and not self.quiet and now >= self._last_heard + reconnect.SILENT_BEATS * self.beat_s:
            self._hang_up("the master is silent", now)

    def _approach_end(self) -> None:
        self.ending = True
        self.work.next_look = 0.0
        self._drain("the time of this pilot is nearly over")

    def _drain(self, reason: str) -> None:
        """What has not begun goes back to the master, who shall send nothing more."""
        self.draining = self.draining or reason
        self._returned.extend(self.work.hand_back_all())
        if self.link == WELCOMED:
            self._effects.append(("send", ["draining", self.draining], []))

    def _mind_link(self, now: float) -> None:
        if self.link == WELCOMED:
            self._send_news(now)
            if self.draining and not (self.work.live or self.work.busy or self.staging.stowing or self.results.kept):
                self._effects.append(("send", ["leave", self.draining], []))
                self._exit(self.draining, 0)
            elif self.offer.poll_s > 0 and now >= self._call_over_at():
                self._effects.append(("hangup", "all was said"))
                self.link = DOWN
                self._last_call = now
                self._redial.at = self._next_call()
        if self.link == DOWN and not self.exited:
            if self.offer.poll_s > 0 and self._redial.failures == 0:
                self._redial.at = self._next_call()
            if now >= self._redial.at:
                self.link = DIALLING
                self._redial.last = now
                self._effects.append(("dial",))

    def _send_news(self, now: float) -> None:
        if self._returned:
            self._effects.append(("send", ["returned", self._returned], []))
            self._returned = []
        if not self.quiet:
            self._effects.extend(("send", header, []) for header in self.staging.news())
        # While more is queued, frames are kept a moment apart: then one carries many results, and nobody waits for a slot in the meantime.
        if self.results.unsent and (not self.work.queue or now >= self._last_results + reconnect.RESULTS_APART_S):
            self._last_results = now
            for header, parts in self.results.frames(now):
                if self.quiet:
                    header.extend(self.staging.changes())
                self._effects.append(("send", header, parts))
        if self.quiet:
            self._started = []
            self._busy_since = min(self._busy_since, now) if self.staging.is_busy else NEVER
        if self._started or now >= self._next_beat():
            self._effects.append(("send", ["beat", self._started, self.moving(), self.staging.add_seen(self.got())], []))
            self._started = []
            self._last_beat = now

    def _next_beat(self) -> float:
        if self.quiet:
            # Others tell us that the master lives; if they do not, we ask. And of what takes long, people want to know how far it is.
            return min(self._last_contact + self.orphan_s / 2, max(self._last_beat, self._busy_since) + self.beat_s)
        return self._last_beat + (min(reconnect.MOVING_BEAT_S, self.beat_s) if self.staging.is_busy else self.beat_s)

    def _call_over_at(self) -> float:
        """A calling agent hangs up when all it said is acknowledged and nothing more has come for a moment."""
        if self.results.kept or not self._pulsed:
            return NEVER
        return self._last_heard + reconnect.LINGER_S

    def _next_call(self) -> float:
        wants = bool(self.results.kept) or self.work.has_idle_room()
        poll_s = self.offer.poll_s
        return self._last_call + (min(poll_s, max(poll_s / 10, 0.2)) if wants else poll_s)

    def _next_deadline(self) -> float:
        due = min(self._last_contact + self.orphan_s, self.work.next_look)
        if self.offer.ends_at is not None:
            due = min(due, self.offer.ends_at if self.ending else self.warn_at)
        if self.link == DOWN:
            return min(due, self._redial.at)
        if self.link == DIALLING:
            return min(due, self._redial.last + reconnect.DIAL_TIMEOUT_S)
        if not self.quiet:
            due = min(due, self._last_heard + reconnect.SILENT_BEATS * self.beat_s)
        if self.link == WELCOMED:
            due = min(due, self._next_beat())
            if self.results.unsent:
                due = min(due, self._last_results + reconnect.RESULTS_APART_S)
            if self.offer.poll_s > 0:
                due = min(due, self._call_over_at())
        return due

    def _exit(self, reason: str, code: int) -> None:
        self._effects.append(("exit", reason, code))
        self.exited = True


# What an agent tells of itself when it joins.


class WorkerOffer:
    """``ends_at`` (on the machine's clock) is when its node is taken away; None: never."""

    def __init__(self, worker: str, pilot: str, capacity: Dict[str, float]) -> None:
        self.worker = worker
        self.pilot = pilot
        self.capacity = capacity
        self.tags: Dict[str, str] = {}
        self.info: Dict[str, Any] = {}
        self.ends_at: Optional[float] = None
        self.poll_s = 0.0
