"""Defines the facts. A fact is an event that is recorded in the journal. Only facts change the state.

A fact about many tasks has one list per field, because one fact per task would cost too much time. The tag of each class is part of the
journal format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

import msgspec
from msgspec import Struct

from pilotfish.model.contents import Content, ExpectedFile, IntermediateFile, ProducedContent
from pilotfish.model.site import PilotSize, Site
from pilotfish.model.task import Failure, Payload, RunOptions, TaskSpec


class Fact(Struct, frozen=True, array_like=True):
    """Base of all facts."""


class MasterStarted(Fact, frozen=True, tag="master"):
    epoch: int


class PoolSized(Fact, frozen=True, tag="sized"):
    """The number of local cores was set."""

    cores: float


class RunOpened(Fact, frozen=True, tag="opened"):
    run: int
    uid: str
    options: RunOptions


class SpecsAdded(Fact, frozen=True, tag="specs"):
    run: int
    first: int
    specs: list[TaskSpec]


class TasksAdded(Fact, frozen=True, tag="tasks"):
    run: int
    first: int
    specs: list[int]
    payloads: list[Payload]
    deps: dict[int, list[int]]
    """For each task, by its index in the run: the indices of the tasks on which it depends."""
    contents: dict[int, tuple[Content, ...]] = {}
    """For each task, by its index in the run: the contents that it needs."""
    costs: list[float] = []
    """Relative costs, one for each task; empty: all costs are equal."""
    expected_files: dict[int, tuple[ExpectedFile, ...]] = {}
    """For each task, by its index in the run: the files that other tasks will leave for it."""
    earlier_files: dict[int, tuple[IntermediateFile, ...]] = {}
    """For each task, by its index in the run: the files that tasks of another run left for it."""
    after_any: dict[int, list[int]] = {}
    """For each task, by its index in the run: the indices of the tasks that must have ended before it, with any result."""
    keys: bytes = b""
    """Records of all tasks, one after the other; empty: no task has a key. See ``core/data/stored_results.py``."""


class LinkMeasured(Fact, frozen=True, tag="link"):
    """The master sent ``size`` bytes to a site. ``seconds``: the time during which a transfer was active."""

    site: str
    size: int
    seconds: float


class ApplicationAdvanced(Fact, frozen=True, tag="advanced"):
    run: int
    cursor: int


class RunClosed(Fact, frozen=True, tag="closed"):
    run: int
    reason: str


class RunPaused(Fact, frozen=True, tag="paused"):
    run: int
    paused: bool


class RunOptionsChanged(Fact, frozen=True, tag="options"):
    """A user changed options of the run."""

    run: int
    options: RunOptions


class OutputsTaken(Fact, frozen=True, tag="taken"):
    """The client that owns the run has the outputs of the first ``count`` ended tasks. The master no longer keeps these outputs."""

    run: int
    count: int


class RunForgotten(Fact, frozen=True, tag="forgotten"):
    run: int


class TasksAssigned(Fact, frozen=True, tag="assigned"):
    """Tasks were assigned to a worker. The last ``ahead`` tasks are prefetched: they wait at the worker until cores are free.

    The keys of both dicts are task ids. ``cores``: the cores that each moldable task gets. ``other_workers``: the workers of each
    multi-node task, without ``worker``.
    """

    worker: str
    tasks: list[int]
    ahead: int
    cores: dict[int, float]
    other_workers: dict[int, list[str]] = {}


class TasksDelegated(Fact, frozen=True, tag="lent"):
    """Tasks were delegated to a site master, for workers of its site."""

    worker: str
    tasks: list[int]


class TasksClaimed(Fact, frozen=True, tag="claimed"):
    """A site master assigned delegated tasks to this worker."""

    worker: str
    tasks: list[int]


class TasksDuplicated(Fact, frozen=True, tag="duplicated"):
    """This worker got speculative copies of tasks that another worker runs. The first result counts."""

    worker: str
    tasks: list[int]


class TasksStarted(Fact, frozen=True, tag="started"):
    worker: str
    tasks: list[int]


class TasksDone(Fact, frozen=True, tag="done"):
    worker: str
    tasks: list[int]
    wall_us: list[int]
    cpu_us: list[int]
    rss_kib: list[int]
    outputs: list[Payload]
    made: dict[int, list[ProducedContent]] = {}
    left_out: dict[int, int] = {}
    """For each task whose output is not complete: the number of bytes that are stored nowhere."""


class TasksReused(Fact, frozen=True, tag="reused"):
    """New tasks are done without running, because each has the result of an equal earlier task. ``sources``: the earlier tasks, in the
    order of ``tasks``."""

    tasks: list[int]
    sources: list[int]


class ResultsForgotten(Fact, frozen=True, tag="results-forgotten"):
    """The stored results of these runs are no longer reused for new tasks. Results of equal tasks in other runs are no longer reused
    either. The results themselves are kept."""

    runs: list[int]


class TasksRecalled(Fact, frozen=True, tag="recalled"):
    """The worker was asked to return tasks that it has not started."""

    worker: str
    tasks: list[int]


class TasksReturned(Fact, frozen=True, tag="returned"):
    """Tasks were taken back from a worker. No retry is used up, because the tasks had not started or were not at fault.

    The tasks are ready again, with one exception: a task that has a second attempt continues with the second attempt.
    """

    worker: str
    tasks: list[int]
    reason: str
    least_s: dict[int, float] = {}
    """For each task that was cut off by the end of its worker's walltime: the seconds of walltime that the next worker must have left."""


class AttemptFailed(Fact, frozen=True, tag="failed"):
    """One attempt failed. The other fields say what happens to the task next (see ``core/tasks/retry_rules.py``).

    ``budget``: the budget that is charged; empty if no budget is charged, because the task continues with its second attempt.
    """

    worker: str
    task: int
    failure: Failure
    budget: str
    final: bool
    memory: int
    """Memory to request from now on, if the memory limit was too small; otherwise 0."""
    avoid: bool
    """Whether the next attempt should run at a different worker."""
    suspect: bool
    """Whether the task must run alone from now on."""
    usage: tuple[int, int, int]
    output: Payload
    made: list[ProducedContent] = []
    """Contents to which ``output`` refers."""
    left_out: int = 0


class TasksSkipped(Fact, frozen=True, tag="skipped"):
    """Tasks can never run, because a task on which they depend failed."""

    tasks: list[int]
    failure: Failure


class TasksCancelled(Fact, frozen=True, tag="cancelled"):
    """Tasks were cancelled. ``keeps_payloads``: whether the master keeps the payloads, so that a user can run the tasks again."""

    tasks: list[int]
    reason: str
    keeps_payloads: bool = False


class RunCancelled(Fact, frozen=True, tag="run-cancelled"):
    """All unfinished tasks of a run were cancelled. ``keeps_payloads``: see TasksCancelled."""

    run: int
    reason: str
    keeps_payloads: bool = False


class TasksRerun(Fact, frozen=True, tag="rerun"):
    """Failed or cancelled tasks of a run are executed again. The four dicts contain new values of tasks, by task id. ``specs``: new spec
    numbers. ``payloads``: new payloads. ``contents``: the contents that a new payload names. ``keys``: new records of tasks. In the first
    three dicts, a task without an entry keeps its old value. A task without an entry in ``keys`` loses its key."""

    run: int
    tasks: list[int]
    specs: dict[int, int] = {}
    payloads: dict[int, Payload] = {}
    contents: dict[int, tuple[Content, ...]] = {}
    keys: dict[int, bytes] = {}


class WorkerJoined(Fact, frozen=True, tag="joined"):
    worker: str
    pilot: str
    capacity: dict[str, float]
    tags: dict[str, str]
    info: dict[str, Any]
    ends_at: float | None
    poll_s: float


class WorkerDraining(Fact, frozen=True, tag="draining"):
    worker: str
    reason: str


class WorkerQuarantined(Fact, frozen=True, tag="quarantined"):
    """A worker gets no tasks until the time ``until``. If ``until`` is 0, the quarantine ends now."""

    worker: str
    until: float
    reason: str


class WorkerEnded(Fact, frozen=True, tag="worker-ended"):
    """A worker left or was lost. Earlier facts have already requeued its tasks."""

    worker: str
    lost: bool
    reason: str


class ReplicasChanged(Fact, frozen=True, tag="replicas"):
    """A worker now has the contents ``gained``, and no longer has the contents ``lost``."""

    worker: str
    gained: list[str]
    lost: list[str]


class PilotRequested(Fact, frozen=True, tag="pilot"):
    """A pilot was requested. ``replica_of``: the queued pilot of which this pilot is a replica; empty if this pilot is no replica. When one
    of the two pilots joins, the other pilot is cancelled."""

    pilot: str
    site: str
    size: PilotSize
    reason: str
    replica_of: str = ""
    by_user: bool = False
    """Whether a user requested this pilot. Such a pilot is kept even if there is no work for it."""


class PilotSubmitted(Fact, frozen=True, tag="pilot-submitted"):
    """The site accepted a pilot after ``took_s`` seconds, as batch job ``job``."""

    pilot: str
    job: str
    took_s: float = 0.0


class PilotEnding(Fact, frozen=True, tag="pilot-ending"):
    """A pilot is about to end. ``cause``: why, in one word, if a factory withdrew the pilot or its last worker was lost; otherwise
    empty."""

    pilot: str
    reason: str
    cause: str = ""


class PilotEnded(Fact, frozen=True, tag="pilot-ended"):
    """A pilot ended. ``cause``: one word for how it ended, for statistics (see ``model/site.py``)."""

    pilot: str
    well: bool
    reason: str
    cause: str = ""


class SiteHeld(Fact, frozen=True, tag="held"):
    """A site is held, or is no longer held. ``reason``: why the site gets no more pilots; empty if the site is no longer held."""

    site: str
    reason: str


class SiteDescribed(Fact, frozen=True, tag="site"):
    """A site was configured or removed. ``site``: the new configuration. When a user removes a site, ``leaving`` is True and ``site`` is
    the old configuration until all pilots of the site have ended. After that, ``site`` is None."""

    name: str
    site: Site | None
    leaving: bool = False


class SiteUseChanged(Fact, frozen=True, tag="site-wanted"):
    """A user changed how many pilots this pool keeps at a site while there is work. ``pilots``: -1 means as many as are worthwhile, and
    None means that the pool does not use the site."""

    site: str
    pilots: int | None


class KeyRevoked(Fact, frozen=True, tag="revoked"):
    key_id: str


class RequestAnswered(Fact, frozen=True, tag="answered"):
    """A request of a client was carried out. The facts before this fact in the same record are the changes that the request made.

    A client that did not receive the answer sends the request again, under the same name ``request``. It then gets ``answer``.
    """

    request: str
    answer: Any


class Restored(Fact, frozen=True, tag="restored"):
    """One row of a snapshot (see ``core/state_snapshot.py``)."""

    kind: str
    row: Any


if TYPE_CHECKING:
    AnyFact = Fact
else:
    AnyFact = Union[tuple(Fact.__subclasses__())]  # noqa: UP007 - not known before it runs


class TurnRecord(Struct, frozen=True, array_like=True):
    """One turn of the machine in the journal: time and facts."""

    at: float
    facts: list[AnyFact]


encode_record = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(TurnRecord).decode
