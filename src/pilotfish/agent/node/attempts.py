"""The work an agent holds: queued attempts, the slots they run in, and the room that is left. Pure: no I/O, no clock.

``machine.py`` is the only user. Attempts start in the order received; one that does not fit holds back those behind it. A slot runs one
attempt at a time, but short ones are sent to it ahead (about 20 ms of measured work at most), because a message per attempt costs more
than such an attempt itself. What was sent ahead and is held up by a neighbour that turned out long is taken back.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Sequence, Tuple

from ...portable.failures import Failure

Needs = Tuple[Tuple[str, float], ...]

QUEUED, STARTED, FINISHED = range(3)

AHEAD_S = 0.020
AHEAD_ATTEMPTS = 128
AHEAD_EXECUTABLE_S = 0.005
HELD_UP_S = 0.025
REPORT_START_S = 0.050
TERMINATE_GRACE_S = 2.0
REMEMBERED_TASKS = 1 << 16
NEVER = float("inf")
_ROUNDING = 1e-6


class AttemptSpec:
    """What the attempts of one spec share, with the run time measured so far (negative: none yet)."""

    __slots__ = ("number", "kind", "time_s", "needs", "launch", "code", "contents", "estimate_s")

    def __init__(self, number: int, kind: str, time_s: float, needs: Dict[str, float], launch: Dict[str, Any], code: bytes) -> None:
        self.contents: Sequence[Any] = ()
        self.number = number
        self.kind = kind
        self.time_s = float(time_s)
        self.needs = {str(name): float(amount) for name, amount in needs.items()}
        self.launch = launch
        self.code = code
        self.estimate_s = -1.0

    def same(self, other: AttemptSpec) -> bool:
        return (
            self.kind == other.kind
            and self.time_s == other.time_s
            and self.needs == other.needs
            and self.launch == other.launch
            and self.code == other.code
            and self.contents == other.contents
        )

    def measured(self, wall_s: float) -> None:
        """A running mean; it falls fast, because the first attempt in a slot pays for imports that the later ones do not."""
        old = self.estimate_s
        if old < 0:
            self.estimate_s = wall_s
        elif wall_s < old / 4:
            self.estimate_s = old / 4
        else:
            self.estimate_s = old + 0.2 * (wall_s - old)

    def ahead_s(self) -> float:
        """How much of a slot's time ahead one attempt takes; negative when it must not be sent ahead."""
        limit = AHEAD_EXECUTABLE_S if self.kind == "exec" else AHEAD_S
        return self.estimate_s + 1e-5 if 0 <= self.estimate_s < limit else -1.0


class Attempt:
    """One try of a task. ``forgotten``: the master does not want to hear of it any more. ``missing``: so many contents are yet to come."""

    __slots__ = ("task", "attempt", "spec", "payload", "needs", "contents", "missing", "queued", "forgotten", "ahead_s")

    def __init__(self, task: int, attempt: int, spec: AttemptSpec, payload: Any, needs: Needs) -> None:
        self.task = task
        self.attempt = attempt
        self.spec = spec
        self.payload = payload
        self.needs = needs
        self.contents: Sequence[Any] = ()
        self.missing = 0
        self.queued = True
        self.forgotten = False
        self.ahead_s = 0.0

    def amount(self, name: str) -> float:
        for need, amount in self.needs:
            if need == name:
                return amount
        return 0.0


class SlotView:
    """One slot process as the machine sees it: what it was given, in order; the first of them is the one that runs.

    ``slow``: its running attempt takes longer than measured before, so nothing is sent ahead. ``asked_back``: the host was asked to take
    back what was sent ahead. ``condemned``: when the running attempt is to be stopped: 0 not, 1 wanted, 2 terminated, 3 killed.
    """

    __slots__ = (
        "number",
        "attempts",
        "needs",
        "begun",
        "ahead_s",
        "reported",
        "slow",
        "asked_back",
        "condemned",
        "verdict",
        "gently",
        "kill_at",
        "warned",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.attempts: Deque[Attempt] = deque()
        self.needs: Needs = ()
        self.ahead_s = 0.0
        self.asked_back = False
        self.turn_page(0.0)

    def turn_page(self, now: float) -> None:
        """A new attempt is first."""
        self.begun = now
        self.reported = False
        self.slow = False
        self.condemned = 0
        self.verdict: Optional[Failure] = None
        self.gently = False
        self.kill_at = NEVER
        self.warned = False

    def condemn(self, verdict: Optional[Failure], gently: bool = False) -> None:
        """``gently``: it is asked to end, and has a while to do so."""
        if not self.condemned:
            self.condemned = 1
            self.verdict = verdict
            self.gently = gently

    def take_warning(self) -> int:
        """The signal of which the running attempt is to hear before its pilot ends, given once; 0: it did not ask for one."""
        if self.warned or self.condemned or len(self.attempts) > 1:
            return 0
        self.warned = True
        return int(self.attempts[0].spec.launch.get("warn_signal") or 0)

    def next_look(self) -> float:
        """When there will be something to do about the running attempt."""
        if self.condemned:
            return self.kill_at if self.condemned == 2 else NEVER
        due = NEVER if self.reported else self.begun + REPORT_START_S
        if len(self.attempts) > 1 and not self.slow:
            due = min(due, self.begun + HELD_UP_S)
        limit = self.attempts[0].spec.time_s
        return min(due, self.begun + limit) if limit > 0 else due


class AttemptQueue:
    """Everything this agent has to do, and does."""

    def __init__(self, capacity: Dict[str, float]) -> None:
        self.capacity = {name: float(amount) for name, amount in capacity.items()}
        self.free = dict(self.capacity)
        self.wanted_slots = max(16, 4 * int(self.capacity.get("cores", 1)))
        self.max_slots = self.wanted_slots
        """Fewer than wanted where the machine does not let so many processes live."""
        self.specs: Dict[int, AttemptSpec] = {}
        self.live: Dict[int, Attempt] = {}
        self.queue: Deque[Attempt] = deque()
        self.staged: Dict[int, Attempt] = {}
        """What waits for contents before it can be queued."""
        self.released: Callable[[Attempt], None] = _nobody
        """Told of every attempt that no longer needs its contents."""
        self.slots: Dict[int, SlotView] = {}
        self.busy: Dict[int, SlotView] = {}
        self.idle: List[SlotView] = []
        self.begun: Dict[int, List[Attempt]] = {}
        self.next_look = NEVER
        self._next_slot = 0
        self._highest: OrderedDict[int, int] = OrderedDict()
        self._needs: Dict[Needs, Needs] = {}
        self._granted: Dict[Tuple[int, float, int], Needs] = {}

    # --- taking work in -------------------------------------------------------------------------------------------------------

    def keep_spec(self, spec: AttemptSpec) -> None:
        """A spec sent again replaces the old one, unless it is the same: warm slots know that one."""
        old = self.specs.get(spec.number)
        if old is None or not old.same(spec):
            self.specs[spec.number] = spec
        if old is not None and self.specs[spec.number] is spec:
            self._granted = {key: needs for key, needs in self._granted.items() if key[0] != spec.number}

    def needs_of(self, spec: AttemptSpec, cores: float, memory: int) -> Needs:
        """The needs of an attempt, as one shared tuple, so that equal shapes are the same object."""
        key = (spec.number, cores, memory)
        needs = self._granted.get(key)
        if needs is None:
            amounts = dict(spec.needs)
            if cores > 0:
                amounts["cores"] = float(cores)
            if memory > 0:
                amounts["memory"] = float(memory)
            made = tuple((name, amount) for name, amount in sorted(amounts.items()) if amount > 0)
            needs = self._granted[key] = self._needs.setdefault(made, made)
        return needs

    def too_big(self, needs: Needs) -> str:
        """Why these needs can never be met here; empty if they can."""
        for name, amount in needs:
            if amount > self.capacity.get(name, 0.0) + _ROUNDING:
                return f"it needs {amount:g} {name}, this worker has {self.capacity.get(name, 0.0):g}"
        return ""

    def is_news(self, task: int, number: int) -> bool:
        """Whether this attempt was never taken before: an attempt runs at most once, whatever the wire repeats."""
        highest = self._highest.get(task, 0)
        if number <= highest:
            return False
        if not highest and len(self._highest) >= REMEMBERED_TASKS:
            self._highest.popitem(last=False)
        self._highest[task] = number
        return True

    def enqueue(self, attempt: Attempt) -> None:
        """Take it, after its older attempt, if there is one, was dropped."""
        self.drop(attempt.task)
        self.live[attempt.task] = attempt
        if attempt.missing:
            self.staged[attempt.task] = attempt
        else:
            self.queue.append(attempt)

    def unstage(self, attempt: Attempt) -> None:
        """All its contents are here."""
        if self.staged.get(attempt.task) is attempt:
            del self.staged[attempt.task]
            self.queue.append(attempt)

    # --- giving work away -----------------------------------------------------------------------------------------------------

    def fill(self, now: float) -> None:
        """Start what fits, then send ahead what is short. ``begun`` collects what each slot is to be given."""
        queue = self.queue
        while queue:
            head = queue[0]
            if head.forgotten:
                queue.popleft()
                continue
            slot = self._room(head.needs)
            if slot is None:
                self._send_ahead()
                return
            slot.needs = head.needs
            slot.turn_page(now)
            head.ahead_s = max(0.0, head.spec.ahead_s())
            self.busy[slot.number] = slot
            self._give(slot, head)
            self.next_look = min(self.next_look, slot.next_look())

    def _room(self, needs: Needs) -> Optional[SlotView]:
        """A slot for these needs, with its room taken; None if they do not fit now."""
        free = self.free
        for name, amount in needs:
            if free.get(name, 0.0) < amount - _ROUNDING:
                return None
        if self.idle:
            slot = self.idle.pop()
        elif len(self.slots) < self.max_slots:
            slot = self.slots[self._next_slot] = SlotView(self._next_slot)
            self._next_slot += 1
        else:
            return None
        for name, amount in needs:
            free[name] -= amount
        return slot

    def _give(self, slot: SlotView, attempt: Attempt) -> None:
        self.queue.popleft()
        attempt.queued = False
        slot.attempts.append(attempt)
        slot.ahead_s += attempt.ahead_s
        self.begun.setdefault(slot.number, []).append(attempt)

    def _send_ahead(self) -> None:
        """Fair shares of the queue's head for every busy slot of the same shape that is more than half through what it has."""
        queue = self.queue
        if queue[0].spec.ahead_s() < 0:
            return
        for slot in self.busy.values():
            if slot.ahead_s > AHEAD_S / 2 or len(slot.attempts) > AHEAD_ATTEMPTS // 2 or not self._takes_more(slot):
                continue
            share = len(queue) // len(self.busy) + 1
            while queue and share > 0 and len(slot.attempts) < AHEAD_ATTEMPTS:
                head = queue[0]
                if head.forgotten:
                    queue.popleft()
                    continue
                ahead_s = head.spec.ahead_s()
                if ahead_s < 0 or head.needs is not slot.needs or slot.ahead_s + ahead_s > AHEAD_S:
                    break
                head.ahead_s = ahead_s
                self._give(slot, head)
                share -= 1
            if len(slot.attempts) > 1:
                self.next_look = min(self.next_look, slot.begun + HELD_UP_S)
            if not queue:
                return

    @staticmethod
    def _takes_more(slot: SlotView) -> bool:
        return not (slot.slow or slot.asked_back or slot.condemned) and slot.attempts[0].spec.ahead_s() >= 0

    # --- what becomes of it -----------------------------------------------------------------------------------------------------

    def finished(self, slot: SlotView, now: float) -> Attempt:
        """The first attempt of this slot ended; the next one, if any, runs."""
        attempt = slot.attempts.popleft()
        self.settle(attempt)
        slot.turn_page(now)
        if slot.attempts:
            slot.ahead_s -= attempt.ahead_s
            if slot.attempts[0].forgotten:
                slot.condemn(None)
                self.next_look = 0.0
            else:
                self.next_look = min(self.next_look, slot.next_look())
        else:
            self._rest(slot)
        return attempt

    def _rest(self, slot: SlotView) -> None:
        slot.ahead_s = 0.0
        self._release(slot)
        self.idle.append(slot)

    def settle(self, attempt: Attempt) -> None:
        if self.live.get(attempt.task) is attempt:
            del self.live[attempt.task]
        self._release_contents(attempt)

    def _release_contents(self, attempt: Attempt) -> None:
        if self.staged.get(attempt.task) is attempt:
            del self.staged[attempt.task]
        if attempt.contents:
            self.released(attempt)

    def lost(self, slot: SlotView, begun: int) -> List[Attempt]:
        """The slot is gone: those it had begun, in order. The others are first in the queue again."""
        gone = [slot.attempts.popleft() for _ in range(min(begun, len(slot.attempts)))]
        for attempt in gone:
            self.settle(attempt)
        self._put_back(slot.attempts)
        slot.attempts.clear()
        if slot.number in self.busy:
            self._release(slot)
        else:
            self.idle.remove(slot)
        del self.slots[slot.number]
        return gone

    def taken_back(self, slot: SlotView, count: int) -> None:
        """The last ``count`` attempts given to this slot will not be run by it."""
        slot.asked_back = False
        back = [slot.attempts.pop() for _ in range(min(count, len(slot.attempts)))]
        back.reverse()
        for attempt in back:
            slot.ahead_s -= attempt.ahead_s
        self._put_back(back)
        if not slot.attempts and slot.number in self.busy:
            self._rest(slot)

    def _put_back(self, attempts: Iterable[Attempt]) -> None:
        """Those that somebody still wants are first in the queue again."""
        wanted = []
        for attempt in attempts:
            if attempt.forgotten:
                self._release_contents(attempt)
                continue
            attempt.queued = True
            attempt.ahead_s = 0.0
            wanted.append(attempt)
        self.queue.extendleft(reversed(wanted))

    def _release(self, slot: SlotView) -> None:
        del self.busy[slot.number]
        if not self.busy:
            self.free = dict(self.capacity)
            return
        for name, amount in slot.needs:
            self.free[name] += amount

    # --- changes of mind --------------------------------------------------------------------------------------------------------

    def drop(self, task: int, number: int = 0) -> None:
        """Forget the live attempt of this task (if it is that number) and have it stopped if it runs."""
        attempt = self.live.get(task)
        if attempt is None or (number and attempt.attempt != number):
            return
        del self.live[task]
        attempt.forgotten = True
        if attempt.queued:
            self._release_contents(attempt)
            return
        for slot in self.busy.values():
            if slot.attempts[0] is attempt:
                slot.condemn(None)
                self.next_look = 0.0
                return

    def hand_back(self, task: int, number: int) -> bool:
        """Give up a queued attempt; False if it is not queued here."""
        attempt = self.live.get(task)
        if attempt is None or attempt.attempt != number or not attempt.queued:
            return False
        del self.live[task]
        attempt.forgotten = True
        self._release_contents(attempt)
        if self._highest.get(task) == number:
            del self._highest[task]
        return True

    def hand_back_all(self) -> List[List[int]]:
        waiting = [[attempt.task, attempt.attempt] for attempt in (*self.queue, *self.staged.values()) if not attempt.forgotten]
        for task, number in waiting:
            self.hand_back(task, number)
        self.queue.clear()
        return waiting

    def running(self, task: int, number: int) -> Optional[SlotView]:
        """The slot in which this attempt is the one that runs."""
        for slot in self.busy.values():
            head = slot.attempts[0]
            if head.task == task and head.attempt == number and not head.forgotten:
                return slot
        return None

    def cut_off(self, now: float) -> List[List[Any]]:
        """What runs and must end now because the time is over, and for how long it ran. Who asked to be warned was prepared for it."""
        heads = [(slot.attempts[0], now - slot.begun) for slot in self.busy.values() if not slot.condemned]
        return [[head.task, head.attempt, ran_s] for head, ran_s in heads if not head.spec.launch.get("warn_signal")]

    def holding(self) -> List[List[int]]:
        """[task, attempt, QUEUED|STARTED] of everything not finished; what was sent ahead counts as started."""
        held = [[a.task, a.attempt, STARTED] for slot in self.busy.values() for a in slot.attempts if not a.forgotten]
        held.extend([a.task, a.attempt, QUEUED] for a in (*self.queue, *self.staged.values()) if not a.forgotten)
        return held

    def room(self) -> Dict[str, float]:
        """What would be free if all that waits here had begun."""
        free = dict(self.free)
        for attempt in (*self.queue, *self.staged.values()):
            if not attempt.forgotten:
                for name, amount in attempt.needs:
                    free[name] = free.get(name, 0.0) - amount
        return free

    def has_idle_room(self) -> bool:
        """Whether a task of one core would start at once."""
        return not self.queue and self.free.get("cores", 1.0) >= min(1.0, self.capacity.get("cores", 1.0)) - _ROUNDING


def _nobody(attempt: Attempt) -> None:
    """Nobody is told."""


# What is to be done about attempts that run for long. Pure; ``machine.py`` is the only user.

Effect = Tuple[Any, ...]


def look_at_slots(work: AttemptQueue, now: float, ending: bool, started: List[List[int]]) -> List[Effect]:
    """Tell of long runners (in ``started``), free those behind them, stop those over their time, press on with those condemned."""
    effects: List[Effect] = []
    due = NEVER
    for slot in work.busy.values():
        begun = slot.begun
        head = slot.attempts[0]
        limit = head.spec.time_s
        if limit > 0 and now >= begun + limit and not slot.condemned:
            slot.condemn(["time", "task", "it ran longer than its time limit of %g s" % limit], gently=True)
        if slot.condemned:
            _press(slot, now, effects)
        elif now >= begun + REPORT_START_S and not slot.reported:
            slot.reported = True
            started.append([head.task, head.attempt])
        warning = slot.take_warning() if ending else 0
        if warning:
            effects.append(("warn", slot.number, warning))
        if not slot.condemned and len(slot.attempts) > 1 and not slot.slow and now >= begun + HELD_UP_S:
            slot.slow = True
            _ask_back(slot, effects)
        due = min(due, slot.next_look())
    work.next_look = due
    return effects


def _ask_back(slot: SlotView, effects: List[Effect]) -> None:
    if not slot.asked_back:
        slot.asked_back = True
        effects.append(("take_back", slot.number))


def _press(slot: SlotView, now: float, effects: List[Effect]) -> None:
    """Stop what runs in this slot, by steps; those sent ahead are brought to safety first."""
    if slot.condemned == 1 and (len(slot.attempts) > 1 or slot.asked_back):
        _ask_back(slot, effects)
    elif slot.condemned == 1 and slot.gently:
        slot.condemned = 2
        slot.kill_at = now + TERMINATE_GRACE_S
        effects.append(("terminate", slot.number))
    elif slot.condemned == 1 or (slot.condemned == 2 and now >= slot.kill_at):
        slot.condemned = 3
        effects.append(("kill", slot.number))
