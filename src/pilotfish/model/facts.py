"""Lists what is recorded in the journal. Only facts change the state.

A fact about many tasks has one list per field, because one fact per task would cost too much time. Tags are part of the journal format.
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


class LinkMeasured(Fact, frozen=True, tag="link"):
    """The master sent bytes to a site. The fact has their number, and the seconds during which a transfer was active."""

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
    """The owning client has the outputs of the first ``count`` ended tasks. The master no longer keeps these outputs."""

    run: int
    count: int


class RunForgotten(Fact, frozen=True, tag="forgotten"):
    run: int


class TasksAssigned(Fact, frozen=True, tag="assigned"):
    """Tasks were assigned to a worker. The last ``ahead`` tasks wait at the worker for room.

    ``cores``: cores granted to moldable tasks, by task id. ``other_workers``: the other workers of a multi-node task.
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


class TasksRecalled(Fact, frozen=True, tag="recalled"):
    """The worker was asked to return tasks that it has not started."""

    worker: str
    tasks: list[int]


class TasksReturned(Fact, frozen=True, tag="returned"):
    """Tasks are ready again, and no budget is charged. Either they had not started, or they were not at fault.

    If a task has two attempts, the other attempt continues.
    """

    worker: str
    tasks: list[int]
    reason: str
    least_s: dict[int, float] = {}
    """For each task that was cut off by the end of its worker's walltime: the walltime that another worker must have left, in seconds."""


class AttemptFailed(Fact, frozen=True, tag="failed"):
    """One attempt failed. The other fields say what follows (see ``core/tasks/retry_rules.py``).

    ``budget``: the budget that is charged. It is empty if another attempt continues and no budget is charged.
    """

    worker: str
    task: int
    failure: Failure
    budget: str
    final: bool
    memory: int
    """If the memory limit was too small: the memory to request from now on. Otherwise 0."""
    avoid: bool
    """Whether the next attempt should be at another worker."""
    suspect: bool
    """Whether the task must run alone from now on."""
    usage: tuple[int, int, int]
    output: Payload


class TasksSkipped(Fact, frozen=True, tag="skipped"):
    """Tasks can never run, because a task on which they depend failed."""

    tasks: list[int]
    failure: Failure


class TasksCancelled(Fact, frozen=True, tag="cancelled"):
    tasks: list[int]
    reason: str


class RunCancelled(Fact, frozen=True, tag="run-cancelled"):
    run: int
    reason: str


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
    """A worker gets no tasks until this time; 0 ends the quarantine."""

    worker: str
    until: float
    reason: str


class WorkerEnded(Fact, frozen=True, tag="worker-ended"):
    """A worker left or was lost. The facts before this one requeued its tasks."""

    worker: str
    lost: bool
    reason: str


class ReplicasChanged(Fact, frozen=True, tag="replicas"):
    """A worker holds the contents ``gained`` from now on, and no longer holds the contents ``lost``."""

    worker: str
    gained: list[str]
    lost: list[str]


class PilotRequested(Fact, frozen=True, tag="pilot"):
    """A pilot was requested. ``replica_of``: the queued pilot whose replica it is. When one of the two joins, the other is cancelled."""

    pilot: str
    site: str
    size: PilotSize
    reason: str
    replica_of: str = ""
    by_user: bool = False
    """Whether a user requested this pilot. It is kept even if there is no work for it."""


class PilotSubmitted(Fact, frozen=True, tag="pilot-submitted"):
    """The site accepted a pilot after ``took_s`` seconds, as batch job ``job``."""

    pilot: str
    job: str
    took_s: float = 0.0


class PilotEnding(Fact, frozen=True, tag="pilot-ending"):
    """A pilot is about to end. ``cause``: one word for why a factory withdrew it."""

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
    """The hold of a site begins or ends. ``reason``: why the site gets no more pilots. An empty reason ends the hold."""

    site: str
    reason: str


class SiteDescribed(Fact, frozen=True, tag="site"):
    """A site was configured or removed (``site`` is None). ``leaving``: the user removed the site, and its last pilots are still ending."""

    name: str
    site: Site | None
    leaving: bool = False


class SiteUseChanged(Fact, frozen=True, tag="site-wanted"):
    """How many pilots this pool keeps at a site while there is work. -1: as many as are worthwhile. None: the site is not used."""

    site: str
    pilots: int | None


class KeyRevoked(Fact, frozen=True, tag="revoked"):
    key_id: str


class RequestAnswered(Fact, frozen=True, tag="answered"):
    """A client's command was carried out by the facts before this one in the same record.

    A client that lost the answer asks again with the same ``request`` and gets this answer.
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
