"""Decides what follows from a failed attempt: which budget is charged, and whether the task runs again.

Each kind of failure has its own budget, which is a maximum number of retries. So a lost worker never uses up the retries that a user gave a
task:

* failures: The task failed (exit status, exception, time limit). Limit: ``retries`` of the spec.
* losses: The worker or site is to blame, for example because the worker fell silent. Limit: ``losses`` of the spec, for losses and deaths
  together.
* deaths: The worker died, and the task was possibly running. Limit: ``losses`` of the spec, for losses and deaths together.
* crashes: The task or its slot crashed or was killed. Limit: CRASH_BUDGET after a crash, KILLED_BUDGET after a kill, or ``retries`` if that
  is more.
* ooms: The task reached its memory limit. It runs again with twice the memory, at most OOM_BUDGET times.
* second_opinions: Another worker must confirm the failure, because the last tasks at this worker failed too, or because its site lacks the
  directory of the task.

If a task has two attempts and one of them fails, the task goes on with the other attempt. In this case, only losses and deaths are charged,
as long as their budget is not used up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from pilotfish.core.data.replicas import needs
from pilotfish.core.pilots.unmet_demand import fits_site, usable_sites
from pilotfish.core.state import FRESH_FRACTION, FailureCounts, State, Task, TaskShape, Worker
from pilotfish.core.tasks.speculative_copies import has_copy
from pilotfish.model import facts as f
from pilotfish.model.ids import show_task
from pilotfish.model.site import LOCAL
from pilotfish.model.states import JOINED
from pilotfish.model.task import MEMORY, MISSING_INPUT, NO_DIRECTORY, UNIT, Failure, Payload

CRASH_BUDGET = 2
KILLED_BUDGET = 5
KILLED_CAUSES = ("killed", "slot-lost")
OOM_BUDGET = 2
SUSPECT_AFTER = 2
"""If this many workers died with a task, the task has to run alone. Only the death of a worker that runs no other task proves that the task
is at fault."""
DOUBTED_CAUSES = ("exit", "signal", "spawn", "missing-input")
DOUBT_AFTER = 2
MIN_CUT_OFF_S = 1.0
WALLTIME_GROWTH = 1.05


def judge(
    state: State, worker: Worker, task: Task, failure: Failure, usage: tuple[int, int, int] = (0, 0, 0), output: Payload = b""
) -> f.AttemptFailed:
    """Returns the fact to record for an attempt that the agent reported as failed."""
    failure_counts = task.failure_counts or FailureCounts()
    spec = state.spec_of(task)
    memory, avoid, final = 0, False, False
    if failure.blame == "user":
        budget, final = "failures", True
    elif failure.cause == "oom":
        budget = "ooms"
        memory = _more_memory(state, task)
        final = not memory or failure_counts.ooms >= OOM_BUDGET
        if failure_counts.ooms:
            asked = spec.request.memory / 2**20
            failure = msgspec.structs.replace(
                failure, message=f"{failure.message} ({asked:.4g} MiB at first, twice as much after each try)"
            )
    elif failure.cause in ("crash", *KILLED_CAUSES):
        # Possibly something else killed the task. But if the task is killed each time, the task is probably the cause.
        budget, avoid = "crashes", failure.cause in KILLED_CAUSES
        final = failure_counts.crashes >= max(KILLED_BUDGET if avoid else CRASH_BUDGET, spec.retries)
    elif failure.cause == NO_DIRECTORY and worker.site not in task.shape.succeeded_sites:
        # All workers of a site have the same directories, so the task tries a different site, if there is one.
        budget, final = "second_opinions", not _may_go_elsewhere(state, worker.site, task.shape)
    elif failure.cause == MISSING_INPUT and failure.blame == "site" and any(record.is_nowhere for record in needs(task)):
        budget, final = "failures", True
    elif failure.blame in ("worker", "site"):
        budget, avoid = "losses", True
        final = failure_counts.losses + failure_counts.deaths >= spec.losses
    elif _is_doubtful(state, worker, task, failure):
        budget, avoid = "second_opinions", True
    else:
        budget = "failures"
        final = failure_counts.failures >= spec.retries
    fact = f.AttemptFailed(worker.id, task.id, failure, budget, final, 0 if final else memory, avoid, failure_counts.suspect, usage, output)
    return _reduced_charge(fact) if has_copy(state, task) else fact


def judge_death(state: State, worker: Worker, task: Task, reason: str, died: bool) -> f.AttemptFailed:
    """Returns the fact to record for an attempt that was running when its worker died or fell silent."""
    failure_counts = task.failure_counts or FailureCounts()
    failure = Failure("worker-lost", "worker", f"worker {worker.id} {reason}")
    final = failure_counts.losses + failure_counts.deaths >= state.spec_of(task).losses
    suspect = failure_counts.suspect
    # A multi-node task never has to run alone: it needs several workers, and nobody knows which of them it killed.
    is_death = died and task.shape.nodes == 1
    if is_death:
        deaths = failure_counts.deaths + 1
        if suspect:
            final = True
            text = f"{deaths} workers died while they ran task {show_task(task.id)}, the last time with no other task on it"
            failure = Failure("poison", "task", text)
        suspect = suspect or deaths >= SUSPECT_AFTER
    budget = "deaths" if is_death else "losses"
    fact = f.AttemptFailed(worker.id, task.id, failure, budget, final, 0, False, suspect and not final, (0, 0, 0), b"")
    return _reduced_charge(fact) if has_copy(state, task) else fact


def _reduced_charge(fact: f.AttemptFailed) -> f.AttemptFailed:
    """Reduces the charge of a failed attempt while the other attempt of the task continues: no retry is used up, and the task does not end.

    But a loss or a death is charged as long as its budget is not used up. So a task that kills workers is found as early as without copies.
    """
    budget = fact.budget if fact.budget in ("losses", "deaths") and not fact.final else ""
    return msgspec.structs.replace(fact, budget=budget, final=False, memory=0, suspect=False, output=b"")


def walltime_to_request(worker: Worker, pilot_s: float, ran_s: float) -> float:
    """Returns how many seconds of walltime the next worker of a task must have left. ``ran_s``: how long the task had run when the walltime
    of ``worker`` ended. ``pilot_s``: walltime of the pilot of ``worker``; 0 if the worker has no pilot.

    If the worker has no walltime, or if the task ran for less than MIN_CUT_OFF_S, the result is 0. If the task ran for nearly the whole
    life of the worker, the result is ``pilot_s`` or, without a pilot, a little more than the life of the worker. Otherwise the result is
    ``ran_s``, rounded down to one of a few values, because each value makes a new task shape.
    """
    if worker.ends_at is None or ran_s < MIN_CUT_OFF_S:
        return 0.0
    life_s = worker.ends_at - worker.joined_at
    return (pilot_s or WALLTIME_GROWTH * life_s) if ran_s >= FRESH_FRACTION * life_s else 2.0 ** (math.floor(4 * math.log2(ran_s)) / 4)


def _more_memory(state: State, task: Task) -> int:
    """Returns the memory for the next attempt: twice the memory of the last attempt, but at most the memory of the largest present worker.
    Returns 0 if this would not be more memory than before, or if the last attempt had no memory limit."""
    current = dict(task.shape.needs).get(MEMORY, 0)
    largest = max((worker.capacity.get(MEMORY, 0) for worker in state.workers.values()), default=0)
    wanted = min(2 * current, largest)
    return wanted // UNIT if wanted > current > 0 else 0


def _may_go_elsewhere(state: State, site: str, shape: TaskShape) -> bool:
    """Returns whether a different site has a worker that can take tasks of this shape, or can get such a worker."""
    tried, wanted = {*shape.no_directory_sites, site}, shape.run.options.sites
    others = (worker for worker in state.workers.values() if worker.alive and worker.site not in tried)
    if any(other.could_fit(shape.needs) and other.qualifies(shape) for other in others):
        return True
    starts_here = state.local_cores > 0 and not any(worker.site == LOCAL for worker in state.workers.values())
    if starts_here and LOCAL not in tried and (not wanted or LOCAL in wanted):
        return True
    return any(view.name not in tried and fits_site(shape, view) for view in usable_sites(state))


def _is_doubtful(state: State, worker: Worker, task: Task, failure: Failure) -> bool:
    """Returns whether the worker is possibly at fault instead of the task. Three conditions must be true. The cause of the failure is one
    of DOUBTED_CAUSES. The last DOUBT_AFTER tasks at this worker failed. Another worker is large enough for the task, and the last
    DOUBT_AFTER tasks at this other worker did not all fail. The failure of a task is doubted only once."""
    has_opinion = task.failure_counts is not None and task.failure_counts.second_opinions
    if failure.cause not in DOUBTED_CAUSES or len(worker.streak) < DOUBT_AFTER or has_opinion:
        return False
    return any(
        other is not worker and other.alive and len(other.streak) < DOUBT_AFTER and other.could_fit(task.shape.needs)
        for other in state.workers.values()
    )


def should_quarantine(state: State, worker: Worker, after: int) -> bool:
    """Returns whether the last ``after`` tasks at a worker all failed because of the worker, while other workers do not fail.

    A failure shows a fault of the worker if its cause blames the worker or the site, or if an equal task of the run has succeeded
    somewhere. Without either, the program is possibly at fault. The result is False if the worker is in quarantine already, or if it is
    the only worker that fits a waiting task.
    """
    if len(worker.streak) < after or worker.quarantined_until:
        return False
    if not all(_shows_fault(state, number) for number in islice(reversed(worker.streak), after)):
        return False
    others = [other for other in _usable_workers(state) if other is not worker and len(other.streak) < after]
    return bool(others) and not _is_needed(state, worker, others)


def _shows_fault(state: State, number: int) -> bool:
    task = state.find_task(number)
    if task is None:
        return False
    return bool(task.shape.succeeded_sites) or (task.failure is not None and task.failure.blame in ("worker", "site"))


def needed_workers(state: State) -> list[Worker]:
    """Returns the workers in quarantine that are needed: a waiting task fits such a worker, and fits no worker outside quarantine."""
    if not state.quarantined or not state.ready:
        return []
    others = list(_usable_workers(state))
    return [worker for worker in state.quarantined if _is_needed(state, worker, others)]


def _usable_workers(state: State) -> Iterator[Worker]:
    return (worker for worker in state.workers.values() if worker.state == JOINED and not worker.quarantined_until)


def _is_needed(state: State, worker: Worker, others: Sequence[Worker]) -> bool:
    return any(worker.suits(shape, state.at) and not any(other.suits(shape, state.at) for other in others) for shape in state.ready)
