"""The agent's machine: what the world tells it goes in, what is to be done comes out. No I/O, no clock, no threads, no unseeded dice.

Two hosts drive it: ``host.py`` with sockets and processes, and the simulator. A host tells news with the methods below, any number of
them, and then calls ``turn(now)``, which returns the effects, in order; it must also call ``turn`` when ``deadline`` is reached.
``now`` is any clock that never goes back, in seconds. Header lists and bodies are those of the wire contract (``model/messages.py``), as
``json.loads`` gives them; a body is any bytes-like object.

Inputs (they return nothing)
    linked(epoch, now)          a dialled connection was proved by both sides; ``epoch`` is that of the master's Proved
    unlinked(now)               the connection is gone, or a dial led to nothing
    refused(reason, now)        the master answered the dial with Refused
    heard(header, body, now)    one frame of the master
    link_active(now)            bytes of an unfinished frame came: the master lives
    slot_finished(slot, items, now)
                                attempts of this slot ended, in the order they were given:
                                items = [(failure or None, wall_us, cpu_us, rss_kib, payload), ...], failure = [cause, blame, message]
    slot_died(slot, begun, failure, usage, now)
                                the slot process is gone, and all under it. The first ``begun`` attempts it still held had been started:
                                the last of them ends with ``failure`` and usage = (wall_us, cpu_us, rss_kib[, payload]), earlier ones
                                as slot-lost; the others go back to the head of the queue. Slot numbers are never used again.
    slot_returned(slot, count, now)
                                the answer to take_back: the last ``count`` attempts given to this slot were not started, and it
                                never will start them
    not_begun(slot, now)        an answer to terminate: the attempt has not started yet, its time begins now
    over_limit(slot, failure, now)
                                what runs in this slot broke a limit that the host watches (memory): it is killed and ends with this failure
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
    ("peek", query, slot, stream, offset)   send Peeked with output of what runs in the slot
    ("exit", reason, code)      send what is still to be sent, kill everything, end. Nothing follows; later inputs are ignored.

``deadline`` is the time of the next turn if nothing happens before (infinity: none).
``results.kept`` maps numbers to unacknowledged results.
An Attempt has task, attempt, spec (number, kind, time_s, needs, launch, code), payload, needs; see ``work.py``.
"""

from __future__ import annotations

import random
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .failure import Failure
from .results import Item, Results
from .work import HELD_UP_S, NEVER, REPORT_START_S, TERMINATE_GRACE_S, Attempt, Slot, Spec, Work

Effect = Tuple[Any, ...]

DOWN, DIALLING, LINKED, WELCOMED = range(4)

DIAL_TIMEOUT_S = 20.0
REDIAL_FIRST_S = 0.1
REDIAL_MOST_S = 5.0
REDIAL_APART_S = 1.0
REFUSALS = 3
SILENT_BEATS = 3
STALL_S = 1.0
LINGER_S = 0.05
RESULTS_APART_S = 0.02
WARN_S = 60.0
"""So long before its end an agent takes no more work, and warns what runs; but not before the last part of its time."""
WARN_SHARE = 0.2


class Offer:
    """What this agent tells of itself. ``ends_at`` (on the machine's clock) is when its node is taken away; None: never."""

    def __init__(self, worker: str, pilot: str, capacity: Dict[str, float]) -> None:
        self.worker = worker
        self.pilot = pilot
        self.capacity = capacity
        self.tags: Dict[str, str] = {}
        self.info: Dict[str, Any] = {}
        self.ends_at: Optional[float] = None
        self.poll_s = 0.0


class AgentMachine:
    """See the head of this file."""

    def __init__(self, offer: Offer, seed: int, now: float, beat_s: float = 5.0, orphan_s: float = 120.0) -> None:
        self.offer = offer
        self.work = Work(offer.capacity)
        self.deadline = now
        self.epoch = 0
        self.beat_s = beat_s
        self.orphan_s = orphan_s
        self.link = DOWN
        self.draining = ""
        self.exited = False
        self.ending = False
        """Its end is near: nothing is begun any more, and what runs is warned."""
        self.warn_at = NEVER if offer.ends_at is None else offer.ends_at - min(WARN_S, WARN_SHARE * max(0.0, offer.ends_at - now))
        self.results = Results()
        self._random = random.Random(seed)
        self._effects: List[Effect] = []
        self._returned: List[List[int]] = []
        self._started: List[List[int]] = []
        self._ever_welcomed = False
        self._last_contact = now
        self._last_heard = now
        self._last_beat = now
        self._last_results = -NEVER
        self._last_dial = -NEVER
        self._last_call = -NEVER
        self._dial_at = now
        self._dial_failures = 0
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
        holding = self.work.holding() + self.results.holding()
        hello = ["hello", offer.worker, offer.pilot, offer.capacity, offer.tags, offer.info, ends_in_s, offer.poll_s]
        self._effects.append(("send", [*hello, holding], []))

    def unlinked(self, now: float) -> None:
        if self.exited or self.link == DOWN:
            return
        self.link = DOWN
        self._plan_dial(now)

    def refused(self, reason: str, now: float) -> None:
        if self.exited or self.link != DIALLING:
            return
        self.link = DOWN
        self._refusals += 1
        if not self._ever_welcomed or self._refusals >= REFUSALS:
            self._exit("the master refused this agent: " + reason, 3)
        else:
            self._plan_dial(now)

    def link_active(self, now: float) -> None:
        self._last_heard = now
        if self.link == WELCOMED:
            self._last_contact = now

    def _plan_dial(self, now: float) -> None:
        """At once after a connection that held for a while; later and later, and never in step with others, after failures."""
        self._dial_failures += 1
        if self._dial_failures == 1 and now - self._last_dial >= REDIAL_APART_S:
            self._dial_at = now
            return
        wait = min(REDIAL_MOST_S, REDIAL_FIRST_S * 2.0 ** min(self._dial_failures, 10))
        self._dial_at = now + wait * (0.5 + 0.5 * self._random.random())

    def _hang_up(self, reason: str, now: float) -> None:
        self._effects.append(("hangup", reason))
        self.link = DOWN
        self._plan_dial(now)

    # --- what the master says -----------------------------------------------------------------------------------------------------

    def heard(self, header: Sequence[Any], body: Any, now: float) -> None:
        if self.exited or self.link < LINKED:
            return
        self.link_active(now)
        try:
            handler = self._HANDLERS.get(header[0])
            if handler is not None:
                handler(self, header, body, now)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            self._hang_up("the master sent something that cannot be read: %r" % (error,), now)

    def _on_welcome(self, header: Sequence[Any], body: Any, now: float) -> None:
        _, epoch, beat_s, orphan_s = header[:4]
        if epoch < self.epoch:
            self._hang_up("the master there is an old one", now)
            return
        self.epoch, self.beat_s, self.orphan_s = epoch, float(beat_s), float(orphan_s)
        self.link = WELCOMED
        self._ever_welcomed = True
        self._dial_failures = 0
        self._last_contact = now
        self._pulsed = False
        self.results.send_all_again()
        if self.ending:
            self._effects.append(("send", ["draining", self.draining], []))
        # A beat after the first results asks for a pulse, which tells a calling agent that all was received.
        self._last_beat = -NEVER if self.offer.poll_s > 0 else now

    def _on_assign(self, header: Sequence[Any], body: Any, now: float) -> None:
        view = memoryview(body)
        offset = 0
        work = self.work
        for number, kind, time_s, needs, launch, length in header[1]:
            work.keep_spec(Spec(number, kind, time_s, needs, launch, bytes(view[offset : offset + length])))
            offset += length
        for task, number, spec_number, length, cores, memory in header[2]:
            payload = view[offset : offset + length]
            offset += length
            if not work.is_news(task, number):
                continue
            spec = work.specs.get(spec_number)
            if spec is None:
                self._refuse(task, number, payload, "its spec never came")
                continue
            attempt = Attempt(task, number, spec, payload, work.needs_of(spec, cores, memory))
            reason = work.too_big(attempt.needs)
            if reason:
                self._refuse(task, number, payload, reason)
                continue
            work.enqueue(attempt)
        if offset != len(view):
            raise ValueError("the body does not have the announced length")
        if self.draining:
            self._returned.extend(work.hand_back_all())

    def _refuse(self, task: int, number: int, payload: Any, reason: str) -> None:
        self.work.drop(task)
        attempt = Attempt(task, number, Spec(-1, "", 0.0, {}, {}, b""), payload, ())
        self._keep(attempt, (["spawn", "worker", "this worker cannot run it: " + reason], 0, 0, 0, b""), self._last_heard)

    def _on_acked(self, header: Sequence[Any], body: Any, now: float) -> None:
        self.results.acknowledge(header[1], header[2])

    def _on_kill(self, header: Sequence[Any], body: Any, now: float) -> None:
        for task, number in header[1]:
            self.work.drop(task, number)

    def _on_recall(self, header: Sequence[Any], body: Any, now: float) -> None:
        self._returned.extend([task, number] for task, number in header[1] if self.work.hand_back(task, number))

    def _on_pulse(self, header: Sequence[Any], body: Any, now: float) -> None:
        self._pulsed = True

    def _on_drain(self, header: Sequence[Any], body: Any, now: float) -> None:
        self.draining = str(header[1]) or "drained"
        self._returned.extend(self.work.hand_back_all())

    def _on_retire(self, header: Sequence[Any], body: Any, now: float) -> None:
        self._exit("retired: " + str(header[1]), 0)

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
            attempt = self.work.finished(held, now)
            attempt.spec.measured(item[1] * 1e-6)
            if verdict is not None:
                item = (verdict, *item[1:])
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
        """Number a result and keep it until it is acknowledged."""
        if not attempt.forgotten:
            self.results.keep(attempt, item, now)

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
                self._look_at_slots(now)
            if self.work.queue:
                self.work.fill(now)
            if self.work.begun:
                self._effects.extend(("start", slot, attempts) for slot, attempts in self.work.begun.items())
                self.work.begun = {}
            self._mind_link(now)
        self.deadline = NEVER if self.exited else self._next_deadline()
        effects, self._effects = self._effects, []
        return effects

    def _forgive_stall(self, now: float) -> None:
        """A turn that comes much too late means that we slept, not that the master was silent."""
        late = now - self.deadline
        if late > STALL_S:
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
        elif self.link == DIALLING and now >= self._last_dial + DIAL_TIMEOUT_S:
            self._hang_up("the dial led to nothing", now)
        elif self.link >= LINKED and now >= self._last_heard + SILENT_BEATS * self.beat_s:
            self._hang_up("the master is silent", now)

    def _approach_end(self) -> None:
        """What has not begun goes back to the master, who shall send nothing more."""
        self.ending = True
        self.draining = self.draining or "the time of this pilot is nearly over"
        self._returned.extend(self.work.hand_back_all())
        self.work.next_look = 0.0
        if self.link == WELCOMED:
            self._effects.append(("send", ["draining", self.draining], []))

    def _look_at_slots(self, now: float) -> None:
        """Long runners: tell of them, free those behind them, stop those over their time, press on with those condemned."""
        due = NEVER
        for slot in self.work.busy.values():
            begun = slot.begun
            head = slot.attempts[0]
            limit = head.spec.time_s
            if limit > 0 and now >= begun + limit and not slot.condemned:
                slot.condemn(["time", "task", "it ran longer than its time limit of %g s" % limit], gently=True)
            if slot.condemned:
                self._press(slot, now)
            elif now >= begun + REPORT_START_S and not slot.reported:
                slot.reported = True
                self._started.append([head.task, head.attempt])
            warning = slot.take_warning() if self.ending else 0
            if warning:
                self._effects.append(("warn", slot.number, warning))
            if not slot.condemned and len(slot.attempts) > 1 and not slot.slow and now >= begun + HELD_UP_S:
                slot.slow = True
                self._ask_back(slot)
            due = min(due, slot.next_look())
        self.work.next_look = due

    def _ask_back(self, slot: Slot) -> None:
        if not slot.asked_back:
            slot.asked_back = True
            self._effects.append(("take_back", slot.number))

    def _press(self, slot: Slot, now: float) -> None:
        """Stop what runs in this slot, by steps; those sent ahead are brought to safety first."""
        if slot.condemned == 1 and (len(slot.attempts) > 1 or slot.asked_back):
            self._ask_back(slot)
        elif slot.condemned == 1 and slot.gently:
            slot.condemned = 2
            slot.kill_at = now + TERMINATE_GRACE_S
            self._effects.append(("terminate", slot.number))
        elif slot.condemned == 1 or (slot.condemned == 2 and now >= slot.kill_at):
            slot.condemned = 3
            self._effects.append(("kill", slot.number))

    def _mind_link(self, now: float) -> None:
        if self.link == WELCOMED:
            self._send_news(now)
            if self.draining and not self.work.live and not self.work.busy and not self.results.kept:
                self._effects.append(("send", ["leave", self.draining], []))
                self._exit(self.draining, 0)
            elif self.offer.poll_s > 0 and now >= self._call_over_at():
                self._effects.append(("hangup", "all was said"))
                self.link = DOWN
                self._last_call = now
                self._dial_at = self._next_call()
        if self.link == DOWN and not self.exited:
            if self.offer.poll_s > 0 and self._dial_failures == 0:
                self._dial_at = self._next_call()
            if now >= self._dial_at:
                self.link = DIALLING
                self._last_dial = now
                self._effects.append(("dial",))

    def _send_news(self, now: float) -> None:
        if self._returned:
            self._effects.append(("send", ["returned", self._returned], []))
            self._returned = []
        # While more is queued, frames are kept a moment apart: then one carries many results, and nobody waits for a slot in the meantime.
        if self.results.unsent and (not self.work.queue or now >= self._last_results + RESULTS_APART_S):
            self._last_results = now
            self._effects.extend(("send", header, parts) for header, parts in self.results.frames(now))
        if self._started or now >= self._last_beat + self.beat_s:
            self._effects.append(("send", ["beat", self._started], []))
            self._started = []
            self._last_beat = now

    def _call_over_at(self) -> float:
        """A calling agent hangs up when all it said is acknowledged and nothing more has come for a moment."""
        if self.results.kept or not self._pulsed:
            return NEVER
        return self._last_heard + LINGER_S

    def _next_call(self) -> float:
        wants = bool(self.results.kept) or self.work.has_idle_room()
        poll_s = self.offer.poll_s
        return self._last_call + (min(poll_s, max(poll_s / 10, 0.2)) if wants else poll_s)

    def _next_deadline(self) -> float:
        due = min(self._last_contact + self.orphan_s, self.work.next_look)
        if self.offer.ends_at is not None:
            due = min(due, self.offer.ends_at if self.ending else self.warn_at)
        if self.link == DOWN:
            return min(due, self._dial_at)
        if self.link == DIALLING:
            return min(due, self._last_dial + DIAL_TIMEOUT_S)
        due = min(due, self._last_heard + SILENT_BEATS * self.beat_s)
        if self.link == WELCOMED:
            due = min(due, self._last_beat + self.beat_s)
            if self.results.unsent:
                due = min(due, self._last_results + RESULTS_APART_S)
            if self.offer.poll_s > 0:
                due = min(due, self._call_over_at())
        return due

    def _exit(self, reason: str, code: int) -> None:
        self._effects.append(("exit", reason, code))
        self.exited = True
