"""Holds everything that a master knows. Only ``core/apply.py`` changes the state."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from pilotfish.core.learning.forecasts import Forecasts
from pilotfish.core.learning.speedups import Speedup
from pilotfish.core.pilots.pilot_records import Pilot, SiteRecord
from pilotfish.core.tasks.fair_share import ShareAccount
from pilotfish.model import ids
from pilotfish.model.backend_traits import BackendTraits, no_traits
from pilotfish.model.contents import Content, ExpectedFile, IntermediateFile
from pilotfish.model.states import ACTIVE, DRAINING, JOINED, READY, TASK_STATES
from pilotfish.model.task import CORES, MEMORY, UNIT, UNNAMED, Failure, Payload, RunOptions, TaskSpec
from pilotfish.portable.expressions.evaluation import parse
from pilotfish.portable.expressions.worker_properties import worker_properties

CLIENT_DISCONNECTED = "its client is gone"
"""Reason for closing a run whose client disconnected and did not close it."""

CUT_OFF_GROWTH, FRESH_FRACTION = 1.5, 0.9
"""If the end of a pilot cut off a task, the next worker must have enough walltime left. CUT_OFF_GROWTH times the seconds that the task ran
is enough. FRESH_FRACTION of the worker's whole walltime is also enough.
"""

MAX_NAME = 80

Needs = tuple[tuple[str, int], ...]


class TaskShape:
    """Tasks of one run that are equal for a policy: same priority, needs, time limit and tags."""

    def __init__(self, run: Run, number: int, memory: int, least_s: float) -> None:
        spec = run.specs[number]
        needs = {name: round(amount * UNIT) for name, amount in spec.request.amounts()}
        if memory:
            needs[MEMORY] = memory * UNIT
        self.run = run
        self.made_from = number, memory, least_s
        self.priority = run.priority_of(number)
        self.needs: Needs = tuple(needs.items())
        self.cores_max = round(spec.request.cores_max * UNIT)
        self.nodes = spec.request.nodes
        self.time_s = spec.time_s
        self.least_s = least_s
        """Seconds that such a task ran before it was cut off. The task needs more seconds than this."""
        self.no_directory_sites: dict[str, None] = {}
        """Sites without the directory in which the tasks run."""
        self.succeeded_sites: dict[str, None] = {}
        """Sites where such a task succeeded."""
        self.tags = tuple(sorted(spec.tags.items()))
        self.queue: OrderedDict[Task, None] = OrderedDict()
        self.queue_by_content: dict[ContentRecord, OrderedDict[Task, None]] = {}
        """Queued tasks by the content that they need."""
        self.requirement = parse(spec.requirement) if spec.requirement else None
        self.rank = parse(spec.rank) if spec.rank else None
        self.mean_us = 0.0
        self.samples = 0

    @property
    def min_walltime_s(self) -> float:
        """Returns the minimum seconds of walltime that a worker must have left for such a task, as far as known."""
        return max(self.time_s, self.least_s)

    def learn(self, wall_us: int) -> None:
        """Updates the running mean of the task time. At most 50 samples count, so that the mean follows a change."""
        self.samples += 1
        self.mean_us += (wall_us - self.mean_us) / min(self.samples, 50)


@dataclass(slots=True)
class FailureCounts:
    """Counts of failed attempts of one task. Most tasks have no failed attempts. Snapshots contain the fields in this order."""

    avoid: str = ""
    crashes: int = 0
    deaths: int = 0
    failures: int = 0
    least_s: float = 0.0
    losses: int = 0
    memory: int = 0
    ooms: int = 0
    second_opinions: int = 0
    suspect: bool = False


@dataclass(slots=True, eq=False)
class ContentRecord:
    """One content. ``holders``: workers that have it. ``at_master``: whether the master has it in its own store."""

    digest: str
    size: int
    path: str = ""
    """Path of the user's file. ``mtime_ns`` and ``inode`` are the values of the file when it was read."""
    mtime_ns: int = 0
    inode: int = 0
    at_master: bool = False
    maker: int = 0
    """Id of the task that made the content; 0 for a user's file."""
    holders: dict[str, None] = field(default_factory=dict)
    runs: int = 0
    """Number of runs that need or made the content."""

    @property
    def is_nowhere(self) -> bool:
        """Returns whether the content was kept only at workers and no present worker has it."""
        return not (self.at_master or self.path or self.holders)

    @property
    def content(self) -> Content:
        return Content(self.digest, self.size, self.path, self.mtime_ns, self.inode)


@dataclass(slots=True, eq=False)
class Task:
    id: int
    spec: int
    shape: TaskShape
    payload: Payload
    state: int = READY
    attempt: int = 0
    worker: Worker | None = None
    output: Payload = b""
    failure: Failure | None = None
    failure_counts: FailureCounts | None = None
    waits_for: int = 0
    children: list[int] | None = None
    contents: tuple[ContentRecord, ...] = ()
    """Inputs of this task, besides the contents of its spec."""

    @property
    def suspect(self) -> bool:
        return self.failure_counts is not None and self.failure_counts.suspect

    def __repr__(self) -> str:
        return f"task {ids.show_task(self.id)} ({TASK_STATES[self.state]})"


class Run:
    """One execution of some tasks. Holds the tasks in the order of submission and in the order of their ends."""

    def __init__(self, id: int, uid: str, options: RunOptions, at: float) -> None:
        self.id = id
        self.uid = uid
        self.options = options
        self.opened_at = at
        self.first_started_at = 0.0
        self.ended_at = 0.0
        self.closed = ""
        self.paused = False
        self.advanced = 0
        self.outputs_taken = 0
        """The owning client has the outputs of this many tasks, in the order of their ends. The master does not keep these outputs."""
        self.specs: list[TaskSpec] = []
        self.spec_contents: dict[int, tuple[ContentRecord, ...]] = {}
        self.contents: dict[str, None] = {}
        """Digests of the contents that the tasks of the run need or made."""
        self.spec_shapes: list[TaskShape] = []
        self.shapes: dict[tuple[object, ...], TaskShape] = {}
        self.tasks: list[Task] = []
        self.counts = [0] * len(TASK_STATES)
        self.ended = array("I")
        self.wall_us = array("q")
        self.cpu_us = array("q")
        self.rss_kib = array("q")
        self.costs = array("f")
        """Relative costs by index. A task with an index beyond the end has cost 1."""
        self.expected_files: dict[int, tuple[ExpectedFile, ...]] = {}
        """By index of a task: files that other tasks of the run will leave for it."""
        self.left_files: dict[int, dict[str, IntermediateFile]] = {}
        """By index of a task: files that it left as contents, by name."""
        self.earlier_files: dict[int, tuple[IntermediateFile, ...]] = {}
        """By index of a task: files that tasks of another run left for it."""
        self.attempts = 0
        self._classes: list[str] = []
        self.account = ShareAccount("")
        """Account of the share of the run."""
        self.occupied = 0
        """Cores that the tasks of the run occupy now, in units of 1/10000."""

    def priority_of(self, spec: int) -> int:
        return self.specs[spec].priority if self.options.priority is None else self.options.priority

    @property
    def unfinished(self) -> int:
        return len(self.tasks) - len(self.ended)

    @property
    def finished(self) -> bool:
        return bool(self.closed) and not self.unfinished

    @property
    def incomplete(self) -> bool:
        """Returns whether the client disconnected for good before it had sent all tasks."""
        return self.closed == CLIENT_DISCONNECTED

    def cost(self, index: int) -> float:
        return self.costs[index] if index < len(self.costs) else 1.0

    def class_of(self, spec: int) -> str:
        """Returns the name of the task class of a spec."""
        if spec < len(self._classes):
            return self._classes[spec]
        for number in range(len(self._classes), spec + 1):
            one = self.specs[number]
            whole = self.options.name or self.options.command.removeprefix("-- ")
            name = whole[:MAX_NAME] if one.name in ("", UNNAMED) and whole else one.name
            self._classes.append(f"{one.kind} {name}")
        return self._classes[spec]

    def shape_for(self, number: int, memory: int = 0, least_s: float = 0.0) -> TaskShape:
        """Returns the shape for a spec. ``memory``: if it is not 0, it is granted instead of the requested memory."""
        spec = self.specs[number]
        request = spec.request
        needs = (
            spec.priority,
            request.amounts(),
            request.cores_max,
            request.nodes,
            spec.time_s,
            tuple(sorted(spec.tags.items())),
            spec.requirement,
            spec.rank,
        )
        directory = "" if spec.launch.get("sandbox") else spec.launch.get("cwd")
        key = (*needs, directory, memory, least_s)
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = TaskShape(self, number, memory, least_s)
        return shape


class Worker:
    """An agent that joined. ``active``: tasks that have room at the worker. ``ahead``: tasks that wait there for room."""

    def __init__(self, id: str, pilot: str, capacity: dict[str, int], at: float) -> None:
        self.id = id
        self.pilot = pilot
        self.site = ""
        """Site of the worker's pilot; empty for an agent that was started by hand."""
        self.state = JOINED
        self.capacity = capacity
        self.free = dict(capacity)
        self.roomy: dict[Worker, None] = {}
        """The pool's set of workers with free cores (``State.roomy``). The worker adds itself to the set and removes itself."""
        self.tags: dict[str, str] = {}
        self.info: dict[str, Any] = {}
        self.ends_at: float | None = None
        self.poll_s = 0.0
        self.joined_at = at
        self.active: dict[Task, Needs] = {}
        self.ahead: OrderedDict[Task, Needs] = OrderedDict()
        self.recalled: dict[Task, None] = {}
        self.started: dict[Task, float] = {}
        """For each task: time of the first report that it runs. A task that ends before the next heartbeat is never listed."""
        self.delegated: dict[Task, None] = {}
        """If the worker is a site master: delegated tasks that no worker of the site has yet."""
        self.holds: dict[ContentRecord, None] = {}
        self.progress_at = at
        self.done = 0
        self.failed = 0
        self.streak: dict[int, None] = {}
        """Tasks that failed at the worker since its last success."""
        self.quarantined_until = 0.0
        self.reason = ""
        self.history: list[tuple[float, str]] = [(at, "joined")]

    @cached_property
    def properties(self) -> dict[str, Any]:
        """Returns the properties for requirement and rank expressions. They do not change after the worker joined."""
        capacity = {name: amount / UNIT for name, amount in self.capacity.items()}
        return worker_properties(self.id, self.site, capacity, self.tags, self.info)

    @cached_property
    def slots(self) -> int:
        """Returns the number of one-core tasks that the worker can run at the same time."""
        return max(1, self.capacity.get(CORES, 0) // UNIT)

    @property
    def alive(self) -> bool:
        return self.state in (JOINED, DRAINING)

    @property
    def held(self) -> int:
        return len(self.active) + len(self.ahead)

    @property
    def tasks(self) -> Iterator[Task]:
        """Returns all tasks that would be lost with the worker."""
        return chain(self.active, self.ahead, self.delegated)

    def count_room(self) -> None:
        if self.free.get(CORES, 0) > 0:
            self.roomy[self] = None
        else:
            self.roomy.pop(self, None)

    def has(self, task: Task) -> bool:
        return task in self.active or task in self.ahead

    def fits(self, needs: Needs) -> bool:
        free = self.free
        for name, amount in needs:  # noqa: SIM110 - a generator would cost more than the loop
            if free.get(name, 0) < amount:
                return False
        return True

    def could_fit(self, needs: Needs) -> bool:
        capacity = self.capacity
        for name, amount in needs:  # noqa: SIM110 - as above
            if capacity.get(name, 0) < amount:
                return False
        return True

    def qualifies(self, shape: TaskShape) -> bool:
        """Returns whether the worker's tags, properties and site match what tasks of this shape ask for."""
        sites = shape.run.options.sites
        if self.site in shape.no_directory_sites or (shape.requirement is not None and not shape.requirement.holds(self.properties)):
            return False
        if sites and self.site not in sites:
            return False
        return not shape.tags or all(self.tags.get(name) == value for name, value in shape.tags)

    def suits(self, shape: TaskShape, now: float) -> bool:
        """Returns whether a task of this shape may run here: checks total resources, tags and remaining walltime."""
        return self.has_time(shape, now) and self.could_fit(shape.needs) and self.qualifies(shape)

    def has_time(self, shape: TaskShape, now: float) -> bool:
        """Returns whether enough walltime is left for the time limit and, after a cut-off, for a new attempt (see CUT_OFF_GROWTH)."""
        if self.ends_at is None:
            return True
        left = self.ends_at - now
        enough = min(CUT_OFF_GROWTH * shape.least_s, FRESH_FRACTION * (self.ends_at - self.joined_at))
        return left >= shape.min_walltime_s and left >= enough

    @property
    def runs_suspect(self) -> bool:
        return len(self.active) == 1 and next(iter(self.active)).suspect

    def __repr__(self) -> str:
        return f"worker {self.id}"


@dataclass(slots=True)
class SpeculativeCopy:
    """A second attempt of a task at another worker. After one of the attempts ended, ``worker`` is None. The task has the other."""

    worker: Worker | None
    attempt: int


@dataclass
class State:
    epoch: int = 0
    at: float = 0.0
    runs: dict[int, Run] = field(default_factory=dict)
    run_uids: dict[str, int] = field(default_factory=dict)
    next_run: int = 1
    workers: dict[str, Worker] = field(default_factory=dict)
    ended_workers: OrderedDict[str, Worker] = field(default_factory=OrderedDict)
    contents: dict[str, ContentRecord] = field(default_factory=dict)
    pilots: dict[str, Pilot] = field(default_factory=dict)
    next_pilot: int = 1
    sites: dict[str, SiteRecord] = field(default_factory=dict)
    local_cores: float = 0.0
    sized: bool = False
    """Whether a user set the number of local cores. The user can also set it to zero."""
    roomy: dict[Worker, None] = field(default_factory=dict)
    """Workers with free cores, including those that get no tasks now. This set saves a search through thousands of busy workers."""
    prefetching_workers: dict[Worker, None] = field(default_factory=dict)
    """Workers at which tasks may wait for room."""
    pilot_replicas: dict[str, None] = field(default_factory=dict)
    """Pilots that were requested because another pilot waits too long."""
    ready: dict[TaskShape, None] = field(default_factory=dict)
    """Shapes that have ready tasks."""
    suspects: OrderedDict[Task, None] = field(default_factory=OrderedDict)
    """Ready tasks that must run alone."""
    copies: dict[Task, SpeculativeCopy] = field(default_factory=dict)
    """Speculative copies of running tasks. Most tasks never have one."""
    multi_node_workers: dict[Task, list[Worker]] = field(default_factory=dict)
    """Workers of each multi-node task. The first worker received the task."""
    speedups: dict[str, Speedup] = field(default_factory=dict)
    """By task class: how long moldable tasks took with each number of cores."""
    unfinished: int = 0
    forecasts: Forecasts = field(default_factory=Forecasts)
    shares: dict[str, ShareAccount] = field(default_factory=dict)
    settled_at: float = 0.0
    """Shares have been charged up to this time for the cores that they occupied."""
    revoked: dict[str, None] = field(default_factory=dict)
    traits: Callable[[str], BackendTraits] = field(default=no_traits, compare=False)
    """Returns the traits of a backend by its name. The host sets this function. It is not part of snapshots."""
    answers: dict[str, Any] = field(default_factory=dict)
    """Latest answers by request. If a command is sent again, it gets its first answer and is not carried out again."""

    def admit(self, worker: Worker) -> None:
        self.workers[worker.id] = worker
        worker.roomy = self.roomy
        worker.count_room()
        if worker.ahead:
            self.prefetching_workers[worker] = None

    def pilots_at(self, site: str) -> list[Pilot]:
        """Returns the pilots of a site that are requested, submitted or active."""
        return [pilot for pilot in self.pilots.values() if pilot.site == site and pilot.state <= ACTIVE]

    def find_task(self, task: int) -> Task | None:
        run = self.runs.get(task >> ids.INDEX_BITS)
        index = task & ids.INDEX_MASK
        if run is None or index >= len(run.tasks):
            return None
        return run.tasks[index]

    def task(self, task: int) -> Task:
        return self.runs[task >> ids.INDEX_BITS].tasks[task & ids.INDEX_MASK]

    def spec_of(self, task: Task) -> TaskSpec:
        return self.runs[task.id >> ids.INDEX_BITS].specs[task.spec]


MAX_ANSWERS = 1000
"""Maximum answers that are kept for clients that ask again. Clients ask again within a minute."""
MAX_ENDED_WORKERS = 1000
"""Maximum ended workers that are kept: users can look at them, and the master refuses them if they reconnect."""
