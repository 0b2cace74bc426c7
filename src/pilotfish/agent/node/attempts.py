"""Queues attempts, fills slots and accounts for free resources. There is no I/O and no clock here.

Attempts start in the order in which they were received. An attempt that does not fit blocks the attempts behind it.

A slot runs one attempt at a time. For very short attempts, one message per attempt would cost more than the attempt itself. Therefore a
slot gets several short attempts in advance, at most 20 ms in all. If the running attempt takes long, the attempts behind it are recalled.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Sequence, Tuple

from ...portable.failures import Failure

Needs = Tuple[Tuple[str, float], ...]
Effect = Tuple[Any, ...]
QUEUED, STARTED, FINISHED = range(3)

PREFETCH_S = 0.020
"""Maximum sum of the measured run times of the attempts in a slot."""
MAX_PREFETCHED = 128
PREFETCH_EXECUTABLE_S = 0.005
"""Maximum measured run time of an executable that is prefetched."""
RECALL_AFTER_S = 0.025
"""Run time of an attempt after which the attempts behind it are recalled."""
REPORT_START_S = 0.050
"""Run time of an attempt after which its start is reported. Most attempts end earlier."""
TERMINATE_GRACE_S = 2.0
"""Seconds from TERM to KILL."""
MAX_REMEMBERED_TASKS = 1 << 16
NEVER = float("inf")
_ROUNDING = 1e-6


class AttemptSpec:
    """The values that the attempts of one spec share. ``estimate_s``: measured run time, or -1 before the first measurement."""

    __slots__ = ("number", "kind", "time_s", "needs", "launch", "code", "contents", "estimate_s", "granted")

    def __init__(self, number: int, kind: str, time_s: float, needs: Dict[str, float], launch: Dict[str, Any], code: bytes) -> None:
        self.contents: Sequence[Any] = ()
        self.number = number
        self.kind = kind
        self.time_s = float(time_s)
        self.needs = {str(name): float(amount) for name, amount in needs.items()}
        self.launch = launch
        self.code = code
        self.estimate_s = -1.0
        self.granted: Dict[Tuple[float, int], Needs] = {}
        """(cores, memory) that the master granted -> needs of the attempt"""

    def same(self, other: AttemptSpec) -> bool:
        compared = ("kind", "time_s", "needs", "launch", "code", "contents")
        return all(getattr(self, name) == getattr(other, name) for name in compared)

    def measured(self, wall_s: float) -> None:
        """Updates the estimate with a run time. The estimate falls fast, because only the first attempt in a slot imports modules."""
        old = self.estimate_s
        if old < 0:
            self.estimate_s = wall_s
        elif wall_s < old / 4:
            self.estimate_s = old / 4
        else:
            self.estimate_s = old + 0.2 * (wall_s - old)

    def prefetch_s(self) -> float:
        """Returns the expected run time of a prefetched attempt, or -1 if attempts of this spec must not be prefetched."""
        limit = PREFETCH_EXECUTABLE_S if self.kind == "exec" else PREFETCH_S
        return self.estimate_s + 1e-5 if 0 <= self.estimate_s < limit else -1.0


class Attempt:
    """One attempt of a task. ``forgotten``: the master no longer wants its result. ``missing``: how many of its contents are not here."""

    __slots__ = ("task", "attempt", "spec", "payload", "needs", "contents", "missing", "queued", "forgotten", "prefetch_s")

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
        self.prefetch_s = 0.0

    def amount(self, name: str) -> float:
        for need, amount in self.needs:
            if need == name:
                return amount
        return 0.0


class SlotView:
    """What the machine knows about one slot process: its attempts in order. The first attempt runs.

    ``slow``: the running attempt takes long, so the slot gets no more attempts in advance. ``recalling``: the host was asked to recall the
    attempts behind the running attempt. ``stop_stage`` of the running attempt: 0 runs, 1 must stop, 2 terminated, 3 killed.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.attempts: Deque[Attempt] = deque()
        self.needs: Needs = ()
        self.prefetch_s = 0.0
        self.recalling = False
        self.begin_next(0.0)

    def begin_next(self, now: float) -> None:
        """Resets the values of the running attempt, because another attempt runs now."""
        self.started_at = now
        self.reported = False
        self.slow = False
        self.stop_stage = 0
        self.stop_failure: Optional[Failure] = None
        self.graceful = False
        self.kill_at = NEVER
        self.signalled = False

    def request_stop(self, stop_failure: Optional[Failure], graceful: bool = False) -> None:
        """Requests that the running attempt is stopped and ends with this failure. ``graceful``: terminate it before it is killed."""
        if not self.stop_stage:
            self.stop_stage = 1
            self.stop_failure = stop_failure
            self.graceful = graceful

    def take_signal(self) -> int:
        """Returns the signal that the running attempt wants before the walltime ends, or 0. Returns each signal once."""
        if self.signalled or self.stop_stage or len(self.attempts) > 1:
            return 0
        self.signalled = True
        return int(self.attempts[0].spec.launch.get("warn_signal") or 0)

    def next_check(self) -> float:
        """Returns the time at which the running attempt must be checked next."""
        if self.stop_stage:
            return self.kill_at if self.stop_stage == 2 else NEVER
        due = NEVER if self.reported else self.started_at + REPORT_START_S
        if len(self.attempts) > 1 and not self.slow:
            due = min(due, self.started_at + RECALL_AFTER_S)
        limit = self.attempts[0].spec.time_s
        return min(due, self.started_at + limit) if limit > 0 else due


class AttemptQueue:
    """All unfinished attempts of this agent, and the resources that are free."""

    def __init__(self, capacity: Dict[str, float]) -> None:
        self.capacity = {name: float(amount) for name, amount in capacity.items()}
        self.free = dict(self.capacity)
        self.usual_max_slots = max(16, 4 * int(self.capacity.get("cores", 1)))
        self.max_slots = self.usual_max_slots
        """Maximum number of slots now. After a limit of this node was reached, it is less than ``usual_max_slots``."""
        self.specs: Dict[int, AttemptSpec] = {}
        self.live: Dict[int, Attempt] = {}
        self.queue: Deque[Attempt] = deque()
        self.staged: Dict[int, Attempt] = {}
        """Attempts that wait for contents."""
        self.released: Callable[[Attempt], None] = lambda attempt: None
        """This is called with each attempt that no longer needs its contents."""
        self.slots: Dict[int, SlotView] = {}
        self.busy: Dict[int, SlotView] = {}
        self.idle: List[SlotView] = []
        self.to_start: Dict[int, List[Attempt]] = {}
        self.next_check = NEVER
        self._next_slot = 0
        self._highest: OrderedDict[int, int] = OrderedDict()
        self._needs: Dict[Needs, Needs] = {}

    # --- adding attempts ------------------------------------------------------------------------------------------------------

    def keep_spec(self, spec: AttemptSpec) -> None:
        """Keeps a spec. If an equal spec was kept before, the earlier object stays, because slots know it."""
        old = self.specs.get(spec.number)
        if old is None or not old.same(spec):
            self.specs[spec.number] = spec

    def needs_of(self, spec: AttemptSpec, cores: float, memory: int) -> Needs:
        """Returns the needs of an attempt. Equal needs are the same object."""
        needs = spec.granted.get((cores, memory))
        if needs is None:
            amounts = dict(spec.needs)
            if cores > 0:
                amounts["cores"] = float(cores)
            if memory > 0:
                amounts["memory"] = float(memory)
            shape = tuple((name, amount) for name, amount in sorted(amounts.items()) if amount > 0)
            needs = spec.granted[cores, memory] = self._needs.setdefault(shape, shape)
        return needs

    def why_too_big(self, needs: Needs) -> str:
        """Returns the reason why this worker can never meet these needs, or ""."""
        for name, amount in needs:
            if amount > self.capacity.get(name, 0.0) + _ROUNDING:
                return f"it needs {amount:g} {name}, this worker has {self.capacity.get(name, 0.0):g}"
        return ""

    def is_new(self, task: int, number: int) -> bool:
        """Returns whether this attempt was never received before. An attempt runs at most once, even if messages are repeated."""
        highest = self._highest.get(task, 0)
        if number <= highest:
            return False
        if not highest and len(self._highest) >= MAX_REMEMBERED_TASKS:
            self._highest.popitem(last=False)
        self._highest[task] = number
        return True

    def enqueue(self, attempt: Attempt) -> None:
        """Adds an attempt, and drops an older attempt of the same task."""
        self.drop(attempt.task)
        self.live[attempt.task] = attempt
        if attempt.missing:
            self.staged[attempt.task] = attempt
        else:
            self.queue.append(attempt)

    def unstage(self, attempt: Attempt) -> None:
        """Queues an attempt whose contents are now all in the cache."""
        if self.staged.get(attempt.task) is attempt:
            del self.staged[attempt.task]
            self.queue.append(attempt)

    # --- filling slots --------------------------------------------------------------------------------------------------------

    def fill(self, now: float) -> None:
        """Starts attempts that fit, then prefetches short attempts. ``to_start`` collects the new attempts of each slot."""
        queue = self.queue
        while queue:
            head = queue[0]
            if head.forgotten:
                queue.popleft()
                continue
            slot = self._reserve_slot(head.needs)
            if slot is None:
                self._prefetch()
                return
            slot.needs = head.needs
            slot.begin_next(now)
            head.prefetch_s = max(0.0, head.spec.prefetch_s())
            self.busy[slot.number] = slot
            self._assign(slot, head)
            self.next_check = min(self.next_check, slot.next_check())

    def _reserve_slot(self, needs: Needs) -> Optional[SlotView]:
        """Reserves these needs and returns a slot, or None if the needs do not fit now."""
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

    def _assign(self, slot: SlotView, attempt: Attempt) -> None:
        self.queue.popleft()
        attempt.queued = False
        slot.attempts.append(attempt)
        slot.prefetch_s += attempt.prefetch_s
        self.to_start.setdefault(slot.number, []).append(attempt)

    def _prefetch(self) -> None:
        """Gives the first queued attempts to busy slots whose attempts take at most ``PREFETCH_S`` / 2 in all. They share the queue."""
        queue = self.queue
        if queue[0].spec.prefetch_s() < 0:
            return
        for slot in self.busy.values():
            if slot.prefetch_s > PREFETCH_S / 2 or len(slot.attempts) > MAX_PREFETCHED // 2 or not self._can_prefetch(slot):
                continue
            share = len(queue) // len(self.busy) + 1
            while queue and share > 0 and len(slot.attempts) < MAX_PREFETCHED:
                head = queue[0]
                if head.forgotten:
                    queue.popleft()
                    continue
                prefetch_s = head.spec.prefetch_s()
                if prefetch_s < 0 or head.needs is not slot.needs or slot.prefetch_s + prefetch_s > PREFETCH_S:
                    break
                head.prefetch_s = prefetch_s
                self._assign(slot, head)
                share -= 1
            if len(slot.attempts) > 1:
                self.next_check = min(self.next_check, slot.started_at + RECALL_AFTER_S)
            if not queue:
                return

    @staticmethod
    def _can_prefetch(slot: SlotView) -> bool:
        return not (slot.slow or slot.recalling or slot.stop_stage) and slot.attempts[0].spec.prefetch_s() >= 0

    # --- attempts end ---------------------------------------------------------------------------------------------------------

    def finished(self, slot: SlotView, now: float) -> Attempt:
        """Ends the first attempt of this slot and returns it. The next attempt runs now."""
        attempt = slot.attempts.popleft()
        self.end_attempt(attempt)
        slot.begin_next(now)
        if slot.attempts:
            slot.prefetch_s -= attempt.prefetch_s
            if slot.attempts[0].forgotten:
                slot.request_stop(None)
                self.next_check = 0.0
            else:
                self.next_check = min(self.next_check, slot.next_check())
        else:
            self._make_idle(slot)
        return attempt

    def _make_idle(self, slot: SlotView) -> None:
        slot.prefetch_s = 0.0
        self._release(slot)
        self.idle.append(slot)

    def end_attempt(self, attempt: Attempt) -> None:
        if self.live.get(attempt.task) is attempt:
            del self.live[attempt.task]
        self._release_contents(attempt)

    def _release_contents(self, attempt: Attempt) -> None:
        if self.staged.get(attempt.task) is attempt:
            del self.staged[attempt.task]
        if attempt.contents:
            self.released(attempt)

    def slot_lost(self, slot: SlotView, started: int) -> List[Attempt]:
        """Removes a dead slot. Returns the attempts that it had started, in order. Its other attempts return to the head of the queue."""
        ended = [slot.attempts.popleft() for _ in range(min(started, len(slot.attempts)))]
        for attempt in ended:
            self.end_attempt(attempt)
        self._requeue(slot.attempts)
        slot.attempts.clear()
        if slot.number in self.busy:
            self._release(slot)
        else:
            self.idle.remove(slot)
        del self.slots[slot.number]
        return ended

    def recalled(self, slot: SlotView, count: int) -> None:
        """Returns the last ``count`` attempts of a slot to the queue, because the slot will not run them."""
        slot.recalling = False
        back = [slot.attempts.pop() for _ in range(min(count, len(slot.attempts)))]
        back.reverse()
        for attempt in back:
            slot.prefetch_s -= attempt.prefetch_s
        self._requeue(back)
        if not slot.attempts and slot.number in self.busy:
            self._make_idle(slot)

    def _requeue(self, attempts: Iterable[Attempt]) -> None:
        """Puts attempts at the head of the queue, except dropped attempts."""
        kept = []
        for attempt in attempts:
            if attempt.forgotten:
                self._release_contents(attempt)
                continue
            attempt.queued = True
            attempt.prefetch_s = 0.0
            kept.append(attempt)
        self.queue.extendleft(reversed(kept))

    def _release(self, slot: SlotView) -> None:
        del self.busy[slot.number]
        if not self.busy:
            self.free = dict(self.capacity)
            return
        for name, amount in slot.needs:
            self.free[name] += amount

    # --- dropping and queries -------------------------------------------------------------------------------------------------

    def drop(self, task: int, number: int = 0) -> None:
        """Drops the unfinished attempt of this task, and stops it if it runs. ``number``: drops only the attempt with this number."""
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
                slot.request_stop(None)
                self.next_check = 0.0
                return

    def return_queued(self, task: int, number: int) -> bool:
        """Removes a queued attempt, which returns to the master. Returns False if it is not queued here."""
        attempt = self.live.get(task)
        if attempt is None or attempt.attempt != number or not attempt.queued:
            return False
        del self.live[task]
        attempt.forgotten = True
        self._release_contents(attempt)
        if self._highest.get(task) == number:
            del self._highest[task]
        return True

    def return_all_queued(self) -> List[List[int]]:
        """Removes all attempts that have not started; returns [task, attempt] of each."""
        waiting = [[attempt.task, attempt.attempt] for attempt in (*self.queue, *self.staged.values()) if not attempt.forgotten]
        for task, number in waiting:
            self.return_queued(task, number)
        self.queue.clear()
        return waiting

    def running(self, task: int, number: int) -> Optional[SlotView]:
        """Returns the slot that runs this attempt."""
        for slot in self.busy.values():
            head = slot.attempts[0]
            if head.task == task and head.attempt == number and not head.forgotten:
                return slot
        return None

    def cut_off(self, now: float) -> List[List[Any]]:
        """Returns [task, attempt, run time] of running attempts that the end of the walltime will stop without a signal to the task."""
        heads = [(slot.attempts[0], now - slot.started_at) for slot in self.busy.values() if not slot.stop_stage]
        return [[head.task, head.attempt, ran_s] for head, ran_s in heads if not head.spec.launch.get("warn_signal")]

    def holding(self) -> List[List[int]]:
        """Returns [task, attempt, QUEUED or STARTED] of all unfinished attempts. Prefetched attempts count as started."""
        held = [[a.task, a.attempt, STARTED] for slot in self.busy.values() for a in slot.attempts if not a.forgotten]
        held.extend([a.task, a.attempt, QUEUED] for a in (*self.queue, *self.staged.values()) if not a.forgotten)
        return held

    def free_after_queue(self) -> Dict[str, float]:
        """Returns the resources that stay free when all queued and staged attempts run."""
        free = dict(self.free)
        for attempt in (*self.queue, *self.staged.values()):
            if not attempt.forgotten:
                for name, amount in attempt.needs:
                    free[name] = free.get(name, 0.0) - amount
        return free

    def has_idle_core(self) -> bool:
        """Returns whether a task with one core would start at once."""
        return not self.queue and self.free.get("cores", 1.0) >= min(1.0, self.capacity.get("cores", 1.0)) - _ROUNDING


def check_slots(attempts: AttemptQueue, now: float, ending: bool, started: List[List[int]]) -> List[Effect]:
    """Adds attempts that have run for a while to ``started``, recalls attempts behind them, and stops attempts beyond their time limit."""
    effects: List[Effect] = []
    due = NEVER
    for slot in attempts.busy.values():
        started_at = slot.started_at
        head = slot.attempts[0]
        limit = head.spec.time_s
        if limit > 0 and now >= started_at + limit and not slot.stop_stage:
            slot.request_stop(["time", "task", "it ran longer than its time limit of %g s" % limit], graceful=True)
        if slot.stop_stage:
            _stop_in_steps(slot, now, effects)
        elif now >= started_at + REPORT_START_S and not slot.reported:
            slot.reported = True
            started.append([head.task, head.attempt])
        warning = slot.take_signal() if ending else 0
        if warning:
            effects.append(("warn", slot.number, warning))
        if not slot.stop_stage and len(slot.attempts) > 1 and not slot.slow and now >= started_at + RECALL_AFTER_S:
            slot.slow = True
            _ask_recall(slot, effects)
        due = min(due, slot.next_check())
    attempts.next_check = due
    return effects


def _ask_recall(slot: SlotView, effects: List[Effect]) -> None:
    if not slot.recalling:
        slot.recalling = True
        effects.append(("recall", slot.number))


def _stop_in_steps(slot: SlotView, now: float, effects: List[Effect]) -> None:
    """Stops the running attempt step by step. The attempts behind it are recalled first."""
    if slot.stop_stage == 1 and (len(slot.attempts) > 1 or slot.recalling):
        _ask_recall(slot, effects)
    elif slot.stop_stage == 1 and slot.graceful:
        slot.stop_stage = 2
        slot.kill_at = now + TERMINATE_GRACE_S
        effects.append(("terminate", slot.number))
    elif slot.stop_stage == 1 or (slot.stop_stage == 2 and now >= slot.kill_at):
        slot.stop_stage = 3
        effects.append(("kill", slot.number))
