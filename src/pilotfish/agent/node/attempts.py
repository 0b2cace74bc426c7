"""Queues attempts, fills slots and accounts for free resources. There is no I/O and no clock here.

Attempts start in the order in which they were received. An attempt that does not fit into the free resources blocks all later attempts.

A slot runs one attempt at a time. For very short attempts, one message per attempt would cost more than the attempt itself. Therefore a
slot gets several short attempts in advance, which take at most 20 ms together. If the running attempt takes longer than expected, the
attempts that were assigned in advance are recalled.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Sequence, Tuple

from ...portable.failures import Failure

Needs = Tuple[Tuple[str, float], ...]
Effect = Tuple[Any, ...]
QUEUED, STARTED, FINISHED = range(3)

PREFETCH_S = 0.020
"""Maximum sum of the expected run times of the attempts in a slot, if the slot gets attempts in advance."""
MAX_PREFETCHED = 128
PREFETCH_EXECUTABLE_S = 0.005
"""Maximum expected run time of an executable that is prefetched."""
RECALL_AFTER_S = 0.025
"""Run time of an attempt after which the later attempts in its slot are recalled."""
REPORT_START_S = 0.050
"""Run time of an attempt after which its start is reported. Most attempts end earlier."""
TERMINATE_GRACE_S = 2.0
"""Seconds from TERM to KILL."""
MAX_REMEMBERED_TASKS = 1 << 16
NEVER = float("inf")
_ROUNDING = 1e-6


class AttemptSpec:
    """The values that all attempts of one spec have in common. ``estimate_s``: estimated run time, or -1 before the first measurement.

    ``process_key``: for calls, a text that identifies the program that submitted them, its interpreter, its environment and the user's own
    modules. All executables have the same key. A slot process runs only attempts with equal keys, because a call can change the modules,
    the limits and the signals of its process.
    """

    __slots__ = ("number", "kind", "time_s", "needs", "launch", "code", "contents", "process_key", "estimate_s", "granted")

    def __init__(self, number: int, kind: str, time_s: float, needs: Dict[str, float], launch: Dict[str, Any], code: bytes) -> None:
        self.contents: Sequence[Any] = ()
        self.number = number
        self.kind = kind
        self.time_s = float(time_s)
        self.needs = {str(name): float(amount) for name, amount in needs.items()}
        self.launch = launch
        self.code = code
        self.process_key = kind if kind == "exec" else "call %s %s" % (launch.get("surroundings", ""), launch.get("modules", ""))
        self.estimate_s = -1.0
        self.granted: Dict[Tuple[float, int], Needs] = {}
        """(cores, memory) that the master granted -> needs of the attempt"""

    def same(self, other: AttemptSpec) -> bool:
        compared = ("kind", "time_s", "needs", "launch", "code", "contents")
        return all(getattr(self, name) == getattr(other, name) for name in compared)

    def measured(self, wall_s: float) -> None:
        """Updates the estimate with a measured run time. The estimate falls faster than it rises, because the first attempt in each slot
        takes longer: it also imports modules."""
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
    """One attempt of a task. ``forgotten``: the master no longer wants its result. ``missing``: number of contents for which the attempt
    waits.

    ``needs_fresh_process``: whether the call must run in a new process. This is so if the call has exceeded its memory limit because
    earlier calls had kept memory in the same process.
    """

    __slots__ = (
        "task",
        "attempt",
        "spec",
        "payload",
        "needs",
        "contents",
        "missing",
        "queued",
        "forgotten",
        "prefetch_s",
        "needs_fresh_process",
    )

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
        self.needs_fresh_process = False

    def amount(self, name: str) -> float:
        for need, amount in self.needs:
            if need == name:
                return amount
        return 0.0


class SlotView:
    """What the machine knows about one slot process. The slot has a list of attempts and runs the first of them.

    ``slow``: whether the running attempt takes long, so that the slot gets no more attempts in advance. ``recalling``: whether the host has
    not yet answered a request to recall the later attempts of the slot. ``stop_stage`` of the running attempt: 0 if it can continue, 1 if
    it must stop, 2 if it got TERM, 3 if it was killed.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.attempts: Deque[Attempt] = deque()
        self.needs: Needs = ()
        self.process_key: Optional[str] = None
        """Key of the attempts that the slot process has run. None if the process has run no attempt."""
        self.prefetch_s = 0.0
        self.recalling = False
        self.begin_next(0.0)

    def begin_next(self, now: float) -> None:
        """Resets the values that describe the running attempt. Called when the next attempt begins to run."""
        self.started_at = now
        self.reported = False
        self.slow = False
        self.stop_stage = 0
        self.stop_failure: Optional[Failure] = None
        self.graceful = False
        self.kill_at = NEVER
        self.signalled = False

    def request_stop(self, stop_failure: Optional[Failure], graceful: bool = False) -> None:
        """Requests that the running attempt is stopped and ends with this failure. ``graceful``: send TERM before KILL."""
        if not self.stop_stage:
            self.stop_stage = 1
            self.stop_failure = stop_failure
            self.graceful = graceful

    def take_signal(self) -> int:
        """Returns the signal that the user requested for the end of the walltime; 0 if there is none. Returns the signal of an attempt only
        once. Also returns 0 if the attempt is being stopped, or if its slot has further attempts."""
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
        self.max_idle = 2 * max(1, int(self.capacity.get("cores", 1)))
        """If this many slots are idle, no slot is added. The number is two per core, so that two programs, or calls and executables, can
        take turns without new processes."""
        self.max_slots = self.usual_max_slots
        """Maximum number of slots now. After a limit of this node was reached, this number is less than ``usual_max_slots``."""
        self.specs: Dict[int, AttemptSpec] = {}
        self.live: Dict[int, Attempt] = {}
        self.queue: Deque[Attempt] = deque()
        self.staged: Dict[int, Attempt] = {}
        """Attempts that wait for contents."""
        self.released: Callable[[Attempt], None] = lambda attempt: None
        """The queue calls this function with each attempt that no longer needs its contents."""
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
        """Stores a spec. If an equal spec with the same number is stored already, keeps the old object, because slots recognise a spec by
        its object."""
        old = self.specs.get(spec.number)
        if old is None or not old.same(spec):
            self.specs[spec.number] = spec

    def needs_of(self, spec: AttemptSpec, cores: float, memory: int) -> Needs:
        """Returns the needs of an attempt to which the master grants these cores and this memory. For equal needs, returns the same
        object."""
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
        """Records that this attempt was received. Returns False if it, or a later attempt of the task, was received before."""
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
        """Assigns queued attempts to free slots. If the next attempt gets no slot, assigns short attempts in advance to busy slots. Adds
        the assigned attempts to ``self.to_start``."""
        queue = self.queue
        while queue:
            head = queue[0]
            if head.forgotten:
                queue.popleft()
                continue
            slot = self._reserve_slot(head.needs, head.spec.process_key)
            if slot is None:
                self._prefetch()
                return
            slot.needs = head.needs
            slot.process_key = head.spec.process_key
            slot.begin_next(now)
            head.prefetch_s = max(0.0, head.spec.prefetch_s())
            self.busy[slot.number] = slot
            self._assign(slot, head)
            self.next_check = min(self.next_check, slot.next_check())

    def _reserve_slot(self, needs: Needs, process_key: str) -> Optional[SlotView]:
        """Reserves these needs and returns a slot, or None if the needs do not fit now."""
        free = self.free
        for name, amount in needs:
            if free.get(name, 0.0) < amount - _ROUNDING:
                return None
        slot = self._find_slot(process_key)
        if slot is not None:
            for name, amount in needs:
                free[name] -= amount
        return slot

    def _find_slot(self, process_key: str) -> Optional[SlotView]:
        """Returns an idle slot with this key. If there is none, returns a new slot. If no slot can be added, returns the slot that has been
        idle longest, which gets a new process; None if no slot is idle."""
        idle = self.idle
        for place in range(len(idle) - 1, -1, -1):
            if idle[place].process_key == process_key:
                return idle.pop(place)
        if len(self.slots) < self.max_slots and len(idle) < self.max_idle:
            slot = self.slots[self._next_slot] = SlotView(self._next_slot)
            self._next_slot += 1
            return slot
        return idle.pop(0) if idle else None

    def _assign(self, slot: SlotView, attempt: Attempt) -> None:
        self.queue.popleft()
        attempt.queued = False
        slot.attempts.append(attempt)
        slot.prefetch_s += attempt.prefetch_s
        self.to_start.setdefault(slot.number, []).append(attempt)

    def _prefetch(self) -> None:
        """Assigns queued short attempts in advance to busy slots. Skips a slot if its attempts together take more than ``PREFETCH_S`` / 2.

        The queue is shared equally among the busy slots.
        """
        queue = self.queue
        if queue[0].spec.prefetch_s() < 0:
            return
        for slot in self.busy.values():
            if slot.slow or slot.recalling or slot.stop_stage or slot.attempts[0].spec.prefetch_s() < 0:
                continue
            if slot.prefetch_s > PREFETCH_S / 2 or len(slot.attempts) > MAX_PREFETCHED // 2:
                continue
            share = len(queue) // len(self.busy) + 1
            while queue and share > 0 and len(slot.attempts) < MAX_PREFETCHED:
                head = queue[0]
                if head.forgotten:
                    queue.popleft()
                    continue
                prefetch_s = head.spec.prefetch_s()
                if head.spec.process_key != slot.process_key or head.needs_fresh_process:
                    break
                if prefetch_s < 0 or head.needs is not slot.needs or slot.prefetch_s + prefetch_s > PREFETCH_S:
                    break
                head.prefetch_s = prefetch_s
                self._assign(slot, head)
                share -= 1
            if len(slot.attempts) > 1:
                self.next_check = min(self.next_check, slot.started_at + RECALL_AFTER_S)
            if not queue:
                return

    # --- attempts end ---------------------------------------------------------------------------------------------------------

    def finished(self, slot: SlotView, now: float) -> Attempt:
        """Removes and returns the first attempt of this slot, because it has finished. The next attempt of the slot runs from now on."""
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
        """Puts the last ``count`` attempts of a slot back into the queue, because the slot will not run them."""
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
        """Drops the unfinished attempt of this task, and stops the attempt if it runs. ``number``: the only attempt to drop; 0: any
        attempt."""
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
        """Removes a queued attempt, so that it can return to the master. Returns False if the attempt is not queued here."""
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
        """Removes all attempts that no slot has got yet, so that they can return to the master. Returns [task, attempt] of each."""
        waiting = [[attempt.task, attempt.attempt] for attempt in (*self.queue, *self.staged.values()) if not attempt.forgotten]
        for task, number in waiting:
            self.return_queued(task, number)
        self.queue.clear()
        return waiting

    def running(self, task: int, number: int) -> Optional[SlotView]:
        """Returns the slot that runs this attempt, or None if the attempt does not run here or was dropped."""
        for slot in self.busy.values():
            head = slot.attempts[0]
            if head.task == task and head.attempt == number and not head.forgotten:
                return slot
        return None

    def cut_off(self, now: float) -> List[List[Any]]:
        """Returns [task, attempt, run time in seconds] of running attempts. Leaves out attempts that are being stopped, and attempts with a
        signal that the user requested for the end of the walltime."""
        heads = [(slot.attempts[0], now - slot.started_at) for slot in self.busy.values() if not slot.stop_stage]
        return [[head.task, head.attempt, ran_s] for head, ran_s in heads if not head.spec.launch.get("warn_signal")]

    def holding(self) -> List[List[int]]:
        """Returns [task, attempt, QUEUED or STARTED] of all unfinished attempts. Prefetched attempts count as started."""
        held = [[a.task, a.attempt, STARTED] for slot in self.busy.values() for a in slot.attempts if not a.forgotten]
        held.extend([a.task, a.attempt, QUEUED] for a in (*self.queue, *self.staged.values()) if not a.forgotten)
        return held

    def free_after_queue(self) -> Dict[str, float]:
        """Returns the resources that would be free if all attempts ran now, including the attempts that wait for contents. Amounts can be
        negative."""
        free = dict(self.free)
        for attempt in (*self.queue, *self.staged.values()):
            if not attempt.forgotten:
                for name, amount in attempt.needs:
                    free[name] = free.get(name, 0.0) - amount
        return free

    def has_idle_core(self) -> bool:
        """Returns True if a task with one core would start at once."""
        return not self.queue and self.free.get("cores", 1.0) >= min(1.0, self.capacity.get("cores", 1.0)) - _ROUNDING


def check_slots(attempts: AttemptQueue, now: float, ending: bool, started: List[List[int]]) -> List[Effect]:
    """Checks all running attempts. Returns effects that recall, signal or stop attempts.

    - If an attempt has run for REPORT_START_S, adds it to ``started``.
    - If an attempt has run for RECALL_AFTER_S, recalls the later attempts in its slot.
    - If an attempt has exceeded its time limit, stops it.
    - If the walltime ends soon (``ending``), sends each attempt the signal that its user requested.
    """
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
    """Takes the next of three steps that stop the running attempt. First: recall the later attempts in the slot. Second, only if
    ``graceful``: terminate the running attempt. Third: kill the running attempt."""
    if slot.stop_stage == 1 and (len(slot.attempts) > 1 or slot.recalling):
        _ask_recall(slot, effects)
    elif slot.stop_stage == 1 and slot.graceful:
        slot.stop_stage = 2
        slot.kill_at = now + TERMINATE_GRACE_S
        effects.append(("terminate", slot.number))
    elif slot.stop_stage == 1 or (slot.stop_stage == 2 and now >= slot.kill_at):
        slot.stop_stage = 3
        effects.append(("kill", slot.number))
