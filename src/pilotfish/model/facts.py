"""What was recorded: the journal's content, and the only thing that changes state.

Facts about many tasks are one fact with columns, because a fact per task would cost more than the task.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from pilotfish.model.contents import AwaitedFile, Content, IntermediateFile, ProducedContent
from pilotfish.model.site import PilotSize, Site
from pilotfish.model.task import Failure, Payload, RunOptions, TaskSpec


class Fact(Struct, frozen=True, array_like=True):
    """Base of all facts."""


class MasterStarted(Fact, frozen=True, tag="master"):
    epoch: int


class PoolSized(Fact, frozen=True, tag="sized"):
    """How many local cores the pool shall have."""

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
    """Index in the run -> indices of the tasks that it needs."""
    contents: dict[int, tuple[Content, ...]] = {}
    """Index in the run -> contents that it needs."""
    costs: list[float] = []
    """Relative costs, one for each of the tasks; empty: all alike."""
    awaited: dict[int, tuple[AwaitedFile, ...]] = {}
    """Index in the run -> files that others will leave for it."""
    handed: dict[int, tuple[IntermediateFile, ...]] = {}
    """Index in the run -> files that tasks of another run left for it."""


class LinkMeasured(Fact, frozen=True, tag="link"):
    """So much went from us to a site, in so many seconds in which something was under way."""

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
    """A person changed what they had asked for about the run."""

    run: int
    options: RunOptions


class OutputsTaken(Fact, frozen=True, tag="taken"):
    """The client that owns the run has what the first ``count`` tasks that ended gave; it is no longer kept here."""

    run: int
    count: int


class RunForgotten(Fact, frozen=True, tag="forgotten"):
    run: int


class TasksAssigned(Fact, frozen=True, tag="assigned"):
    """``ahead``: how many of them, from the end of the list, wait at the worker until others end. ``cores``: grants to moldable tasks.
    ``beside``: other workers that a task of several nodes has as well."""

    worker: str
    tasks: list[int]
    ahead: int
    cores: dict[int, float]
    beside: dict[int, list[str]] = {}


class TasksDelegated(Fact, frozen=True, tag="lent"):
    """Given to a site's master, for workers of its site."""

    worker: str
    tasks: list[int]


class TasksClaimed(Fact, frozen=True, tag="claimed"):
    """A site's master gave tasks that were lent to it to this worker."""

    worker: str
    tasks: list[int]


class TasksDuplicated(Fact, frozen=True, tag="duplicated"):
    """This worker tries them as well, while another one runs them. The first result counts."""

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
    """The worker was asked to hand these back."""

    worker: str
    tasks: list[int]


class TasksReturned(Fact, frozen=True, tag="returned"):
    """Back in the queue, charged to nobody: not started, or ended by something that is not their fault. Of two attempts of a task the other
    goes on."""

    worker: str
    tasks: list[int]
    reason: str
    least_s: dict[int, float] = {}
    """Of those that were cut off by the end of their worker's time: how long another one must have for them."""


class AttemptFailed(Fact, frozen=True, tag="failed"):
    """One attempt ended badly, and what follows from it (see core/tasks/retry_rules.py). ``charge`` names the budget that pays; empty:
    none, as another attempt goes on."""

    worker: str
    task: int
    failure: Failure
    charge: str
    final: bool
    memory: int
    """Memory to ask for from now on, if it was found too small; else 0."""
    avoid: bool
    """Try elsewhere."""
    suspect: bool
    """Run alone from now on."""
    usage: tuple[int, int, int]
    output: Payload


class TasksSkipped(Fact, frozen=True, tag="skipped"):
    """They can never run, because a task that they need did not end well."""

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
    """No more tasks for this worker until then; 0 ends the quarantine."""

    worker: str
    until: float
    reason: str


class WorkerEnded(Fact, frozen=True, tag="worker-ended"):
    """Left or lost. Its tasks were dealt with by the facts before this one."""

    worker: str
    lost: bool
    reason: str


class ReplicasChanged(Fact, frozen=True, tag="replicas"):
    """Contents that this worker holds from now on, and no longer."""

    worker: str
    gained: list[str]
    lost: list[str]


class PilotRequested(Fact, frozen=True, tag="pilot"):
    """``instead_of``: a pilot that waits for too long elsewhere; whichever of the two joins first has the other cancelled."""

    pilot: str
    site: str
    size: PilotSize
    reason: str
    instead_of: str = ""
    by_hand: bool = False
    """A person asked for this very one: it is kept, whether there is work for it or not."""


class PilotSubmitted(Fact, frozen=True, tag="pilot-submitted"):
    """Its site took it, after so many seconds, and calls it ``job``."""

    pilot: str
    job: str
    took_s: float = 0.0


class PilotEnding(Fact, frozen=True, tag="pilot-ending"):
    """``cause``: one word for why it was withdrawn, if a strategy did that."""

    pilot: str
    reason: str
    cause: str = ""


class PilotEnded(Fact, frozen=True, tag="pilot-ended"):
    """``cause``: one word for how it ended, to be counted: see ``model/site.py``."""

    pilot: str
    well: bool
    reason: str
    cause: str = ""


class SiteHeld(Fact, frozen=True, tag="held"):
    """No more pilots for this site until somebody releases it; an empty reason releases it."""

    site: str
    reason: str


class SiteDescribed(Fact, frozen=True, tag="site"):
    """What a person wrote about a site; None: it is no longer there. ``leaving``: they took it out, and its last pilots are on their way
    home."""

    name: str
    site: Site | None
    leaving: bool = False


class SiteWanted(Fact, frozen=True, tag="site-wanted"):
    """This pool uses a site: with so many pilots while there is work, or, -1, with as many as pay. None: no longer."""

    site: str
    pilots: int | None


class KeyRevoked(Fact, frozen=True, tag="revoked"):
    key_id: str


class RequestAnswered(Fact, frozen=True, tag="answered"):
    """A command of a client was carried out, by the facts before this one in the same record. If its answer is lost, the client asks again
    under the same ``request``, and gets this one."""

    request: str
    answer: Any


class Restored(Fact, frozen=True, tag="restored"):
    """One piece of a snapshot (see core/state_snapshot.py)."""

    kind: str
    row: Any


AnyFact = (
    MasterStarted
    | PoolSized
    | RunOpened
    | SpecsAdded
    | TasksAdded
    | LinkMeasured
    | ApplicationAdvanced
    | RunClosed
    | RunPaused
    | RunOptionsChanged
    | OutputsTaken
    | RunForgotten
    | TasksAssigned
    | TasksDelegated
    | TasksClaimed
    | TasksDuplicated
    | TasksStarted
    | TasksDone
    | TasksRecalled
    | TasksReturned
    | AttemptFailed
    | TasksSkipped
    | TasksCancelled
    | RunCancelled
    | WorkerJoined
    | WorkerDraining
    | WorkerQuarantined
    | WorkerEnded
    | ReplicasChanged
    | PilotRequested
    | PilotSubmitted
    | PilotEnding
    | PilotEnded
    | SiteHeld
    | SiteDescribed
    | SiteWanted
    | KeyRevoked
    | RequestAnswered
    | Restored
)


class TurnRecord(Struct, frozen=True, array_like=True):
    """One turn of the machine in the journal: when, and what was recorded."""

    at: float
    facts: list[AnyFact]


encode_record = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(TurnRecord).decode
