"""Holds everything that a master knows. Facts change the state through ``core/apply.py``."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from pilotfish.core.learning.forecasts import Forecasts
from pilotfish.core.learning.speedups import Speedup
from pilotfish.core.pilots.pilot_records import Pilot, SiteRecord
from pilotfish.core.tasks.fair_share import ShareAccount
from pilotfish.model import ids
from pilotfish.model.backend_traits import BackendTraits, no_traits
from pilotfish.model.contents import Content, ExpectedFile, IntermediateFile
from pilotfish.model.states import ACTIVE, DONE, DRAINING, JOINED, READY, TASK_STATES
from pilotfish.model.task import CORES, DEPENDENCY, MEMORY, UNIT, UNNAMED, Failure, Payload, RunOptions, StoredPayload, TaskSpec
from pilotfish.portable.expressions.evaluation import parse
from pilotfish.portable.expressions.worker_properties import worker_properties

CLIENT_DISCONNECTED = "its client is gone"
"""Reason for closing a run: its client disconnected and did not close the run."""

CUT_OFF_GROWTH, FRESH_FRACTION = 1.5, 0.9
"""If the end of a pilot cut off a task, the next worker must have at least ``TaskShape.least_s`` seconds of walltime left. The worker must
also have at least the smaller of two amounts left: CUT_OFF_GROWTH times ``TaskShape.least_s``, and FRESH_FRACTION of its walltime at the
time of joining."""

MAX_NAME = 80

SUPERSEDED = 0xFFFFFFFF
"""Replaces the entry of a task in ``Run.ended`` when the task runs again. Clients use the positions of the other entries as cursors, so
these positions must not change."""

Needs = tuple[tuple[str, int], ...]


class TaskShape:
    """A group of tasks of one run that are equal for a policy: they have equal needs, priority, limits, tags and expressions."""

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
        """Minimum seconds of walltime for a task that was cut off by the end of its pilot (see ``retry_rules.walltime_to_request``); 0 if
        the tasks of this shape were not cut off."""
        self.no_directory_sites: dict[str, None] = {}
        """Sites without the directory in which the tasks run."""
        self.succeeded_sites: dict[str, None] = {}
        """Sites where a task of this shape succeeded."""
        self.tags = tuple(sorted(spec.tags.items()))
        self.queue: OrderedDict[Task, int] = OrderedDict()
        """Ready tasks in their order. The value of each task is the number of its entry into the queue: later entries have larger
        numbers."""
        self.enqueued = 0
        """Number of times that a task entered the queue."""
        self.queue_by_content: dict[ContentRecord, OrderedDict[Task, None]] = {}
        """Queued tasks by the content that they need."""
        self.python = spec.python
        """Minor version of Python that a worker must have; empty if any version is good enough."""
        self.requirement = parse(spec.requirement) if spec.requirement else None
        self.rank = parse(spec.rank) if spec.rank else None
        self.mean_us = 0.0
        self.samples = 0

    @property
    def min_walltime_s(self) -> float:
        """Returns the seconds of walltime that a worker must have left to start a task of this shape; 0 if no minimum is known."""
        return max(self.time_s, self.least_s)

    def learn(self, wall_us: int) -> None:
        """Updates the running mean of the task time. At most 50 samples count, so that the mean follows a change."""
        self.samples += 1
        self.mean_us += (wall_us - self.mean_us) / min(self.samples, 50)


@dataclass(slots=True)
class FailureCounts:
    """Counts the failed attempts of one task, by kind. Also holds what the next attempt needs because of these failures. Most tasks have no
    such object.

    ``least_s``: seconds that the next worker must have left, because an earlier attempt was cut off by the end of its pilot. Snapshots
    contain the fields in this order.
    """

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
    """One content. ``holders``: workers that have the content. ``at_master``: whether the content is in the store of the master."""

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
        """Returns whether the content is lost: it is neither at the master nor in a file of the user, and no present worker has it."""
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
    """Contents that this task needs in addition to the contents of its spec."""

    @property
    def suspect(self) -> bool:
        return self.failure_counts is not None and self.failure_counts.suspect

    def __repr__(self) -> str:
        return f"task {ids.show_task(self.id)} ({TASK_STATES[self.state]})"


class Place(NamedTuple):
    """A worker, its node and its site. The run keeps these names, because a user can ask after the worker has ended."""

    worker: str = ""
    node: str = ""
    site: str = ""


@dataclass(slots=True)
class ConcurrencyLimit:
    """The state of one concurrency limit of a run. ``admitted``: number of admitted tasks that have not ended. ``waiting``: heap of tasks
    that wait for nothing except this limit, as (negative priority, index)."""

    admitted: int = 0
    waiting: list[tuple[int, int]] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Run:
    """One execution of some tasks. Holds the tasks in the order of submission and in the order of their ends."""

    id: int
    uid: str
    options: RunOptions
    opened_at: float
    first_started_at: float = 0.0
    ended_at: float = 0.0
    idle_s: float = 0.0
    """Total seconds in which the run had ended and its next rerun had not started."""
    reopened_at: float = 0.0
    """Time of the last rerun that began after the run had ended; 0 if there was none."""
    uncounted_failures: int = 0
    """Failed tasks that do not count for the maximum number of failures: tasks that failed before the last rerun, and tasks that never ran
    because a task that they need failed."""
    closed: str = ""
    paused: bool = False
    advanced: int = 0
    outputs_taken: int = 0
    """The client that owns the run has the outputs of the first ``outputs_taken`` entries of ``ended``. The master keeps only those of
    these outputs that unfinished calls need."""
    specs: list[TaskSpec] = field(default_factory=list)
    spec_contents: dict[int, tuple[ContentRecord, ...]] = field(default_factory=dict)
    contents: dict[str, None] = field(default_factory=dict)
    """Digests of the contents that the tasks of the run need or made."""
    spec_shapes: list[TaskShape] = field(default_factory=list)
    shapes: dict[tuple[object, ...], TaskShape] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    counts: list[int] = field(default_factory=lambda: [0] * len(TASK_STATES))
    ended: array[int] = field(default_factory=lambda: array("I"))
    """Indices of the ended tasks, in the order of their ends. If a task was rerun, SUPERSEDED replaces its earlier entry."""
    superseded: int = 0
    """Number of superseded ends in ``ended``."""
    wall_us: array[int] = field(default_factory=lambda: array("q"))
    cpu_us: array[int] = field(default_factory=lambda: array("q"))
    rss_kib: array[int] = field(default_factory=lambda: array("q"))
    end_times: array[float] = field(default_factory=lambda: array("d"))
    """For each task, by its index: time of its end; 0 if it has not ended."""
    last_places: array[int] = field(default_factory=lambda: array("I"))
    """For each task, by its index: the number in ``places`` of the worker of its last ended attempt; 0 if no attempt has ended."""
    places: list[Place] = field(default_factory=lambda: [Place()])
    _place_numbers: dict[str, int] = field(default_factory=lambda: {"": 0})
    costs: array[float] = field(default_factory=lambda: array("f"))
    """Relative cost of each task, by its index. A task that is not in the list has cost 1."""
    expected_files: dict[int, tuple[ExpectedFile, ...]] = field(default_factory=dict)
    """For each task, by its index: files that other tasks of the run will leave for it."""
    left_out: dict[int, int] = field(default_factory=dict)
    """For each task whose output is not complete, by its index: the number of bytes that are stored nowhere."""
    left_files: dict[int, dict[str, IntermediateFile]] = field(default_factory=dict)
    """For each task, by its index: files and long outputs that it left as contents, by name."""
    earlier_files: dict[int, tuple[IntermediateFile, ...]] = field(default_factory=dict)
    """For each task, by its index: files that tasks of another run left for it."""
    after_any: dict[int, list[int]] = field(default_factory=dict)
    """For each task, by its index: the tasks that must have ended before it, with any result."""
    followers: dict[int, list[int]] = field(default_factory=dict)
    """For each unfinished task, by its index: the tasks that wait for its end because of ``after_any``."""
    awaited_results: dict[int, int] = field(default_factory=dict)
    """For each call whose result is an argument of other calls, by its index: the number of these calls that are unfinished."""
    kept_results: set[int] = field(default_factory=set)
    """Calls in ``awaited_results`` whose outputs the client that owns the run has already. The master keeps these outputs for the calls
    that need them."""
    keys: bytearray = field(default_factory=bytearray)
    """The records of all tasks, joined in the order of the tasks. All records have the same length. A task without a record has only zero
    bytes. See ``core/data/stored_results.py``."""
    reused: dict[int, int] = field(default_factory=dict)
    """For each task that has the result of an earlier task, by its index: the id of the earlier task."""
    has_limits: bool = False
    limits: dict[str, ConcurrencyLimit] = field(default_factory=dict)
    attempts: int = 0
    _classes: list[str] = field(default_factory=list)
    account: ShareAccount = field(default_factory=lambda: ShareAccount(""))
    """Account of the share of the run."""
    occupied: int = 0
    """Cores that the tasks of the run occupy now, in units of 1/10000."""

    def priority_of(self, spec: int) -> int:
        return self.specs[spec].priority if self.options.priority is None else self.options.priority

    @property
    def unfinished(self) -> int:
        return len(self.tasks) - len(self.ended) + self.superseded

    @property
    def finished(self) -> bool:
        return bool(self.closed) and not self.unfinished

    @property
    def incomplete(self) -> bool:
        """Returns whether the master closed the run because its client was disconnected. Possibly the client wanted to send more tasks."""
        return self.closed == CLIENT_DISCONNECTED

    def place_number(self, worker: Worker) -> int:
        """Returns the number of a worker in ``places``. Adds the worker if it is new."""
        number = self._place_numbers.get(worker.id)
        if number is None:
            number = self._place_numbers[worker.id] = len(self.places)
            self.places.append(Place(worker.id, worker.node, worker.site))
        return number

    def restore_places(self, rows: list[list[str]]) -> None:
        self.places = [Place(*row) for row in rows]
        self._place_numbers = {place.worker: number for number, place in enumerate(self.places)}

    def failed_dependencies(self, index: int) -> int:
        """A task can wait for the end of other tasks (``after_any``). Returns how many of these other tasks failed or were cancelled.
        Skipped tasks do not count."""
        ended = (self.tasks[other] for other in self.after_any[index])
        return sum(task.state > DONE and not (task.failure is not None and task.failure.cause == DEPENDENCY) for task in ended)

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
        """Returns the shape for spec ``number``. ``memory``: replaces the requested memory if it is not 0. ``least_s``: see TaskShape."""
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
            spec.python,
        )
        directory = "" if spec.launch.get("sandbox") else spec.launch.get("cwd")
        key = (*needs, directory, memory, least_s)
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = TaskShape(self, number, memory, least_s)
        return shape


class Worker:
    """An agent that joined. ``active``: tasks that occupy cores of the worker. ``ahead``: prefetched tasks, which wait at the worker for
    free cores."""

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
        """For each running task: time of the first report that the task runs. A task that ends before the next heartbeat is never in this
        dict."""
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
        """Returns the worker's properties for requirement and rank expressions. These properties do not change after the worker has
        joined."""
        capacity = {name: amount / UNIT for name, amount in self.capacity.items()}
        return worker_properties(self.id, self.site, capacity, self.tags, self.info)

    @cached_property
    def python(self) -> str:
        """Returns the minor version of the worker's Python, such as "3.12"; empty if the version is unknown. For a worker on the machine of
        the master, the result is also empty: calls there run with the Python of the program that submitted them."""
        if self.info.get("shares"):
            return ""
        return ".".join(str(self.info.get("python", "")).split(".")[:2])

    @property
    def node(self) -> str:
        """Returns the name of the node in the batch system or, if there is none, the host name."""
        return str(self.info.get("node") or self.info.get("hostname") or "")

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
        """Returns all tasks that the worker has. If the worker dies, these tasks run elsewhere."""
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
        """Returns whether the worker's tags, properties, site and Python version match what tasks of this shape ask for."""
        sites = shape.run.options.sites
        if shape.python and self.python and shape.python != self.python:
            return False
        if self.site in shape.no_directory_sites or (shape.requirement is not None and not shape.requirement.holds(self.properties)):
            return False
        if sites and self.site not in sites:
            return False
        return not shape.tags or all(self.tags.get(name) == value for name, value in shape.tags)

    def suits(self, shape: TaskShape, now: float) -> bool:
        """Returns whether a task of this shape may run at this worker: checks ``has_time``, ``could_fit`` and ``qualifies``."""
        return self.has_time(shape, now) and self.could_fit(shape.needs) and self.qualifies(shape)

    def has_time(self, shape: TaskShape, now: float) -> bool:
        """Returns whether enough walltime is left for a task of this shape. A task that was cut off needs more walltime (see
        CUT_OFF_GROWTH)."""
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
    """A second attempt of a task at another worker. If one of the two attempts ends without a result, the task takes the worker and the
    attempt number of the remaining attempt. ``worker`` of this object is then None."""

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
    """Whether the number of local cores was set. The number can also be zero."""
    roomy: dict[Worker, None] = field(default_factory=dict)
    """Workers with free cores, including workers that get no tasks now. This set saves a search through thousands of busy workers."""
    prefetching_workers: dict[Worker, None] = field(default_factory=dict)
    """Workers with prefetched tasks. A worker stays here for some time after its last prefetched task started."""
    quarantined: dict[Worker, None] = field(default_factory=dict)
    """Workers in quarantine."""
    pilot_replicas: dict[str, None] = field(default_factory=dict)
    """Pilots that were requested because another pilot waits too long."""
    ready: dict[TaskShape, None] = field(default_factory=dict)
    """Shapes that have ready tasks."""
    suspects: OrderedDict[Task, None] = field(default_factory=OrderedDict)
    """Ready tasks that must run alone."""
    copies: dict[Task, SpeculativeCopy] = field(default_factory=dict)
    """Speculative copies of running tasks. Most tasks never have a copy."""
    multi_node_workers: dict[Task, list[Worker]] = field(default_factory=dict)
    """Workers of each multi-node task. The first worker received the task."""
    speedups: dict[str, Speedup] = field(default_factory=dict)
    """For each task class: how long moldable tasks took with each number of cores."""
    unfinished: int = 0
    forecasts: Forecasts = field(default_factory=Forecasts)
    shares: dict[str, ShareAccount] = field(default_factory=dict)
    settled_at: float = 0.0
    """Shares have been charged for their occupied cores up to this time."""
    revoked: dict[str, None] = field(default_factory=dict)
    unneeded_outputs: list[StoredPayload] = field(default_factory=list)
    """Outputs that facts of this turn have removed from their tasks. The machine releases these outputs. Snapshots do not contain them."""
    traits: Callable[[str], BackendTraits] = field(default=no_traits, compare=False)
    """Returns the traits of a backend by its name. The host sets this function, and snapshots do not contain it."""
    answers: dict[str, Any] = field(default_factory=dict)
    """Latest answers by request. If a client sends a command again, it gets the first answer, and the command is not carried out again."""

    def admit(self, worker: Worker) -> None:
        self.workers[worker.id] = worker
        worker.roomy = self.roomy
        worker.count_room()
        if worker.ahead:
            self.prefetching_workers[worker] = None
        if worker.quarantined_until:
            self.quarantined[worker] = None

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
"""Maximum answers that are kept. A client that did not get its answer asks again within a minute."""
MAX_ENDED_WORKERS = 1000
"""Maximum ended workers that are kept. Users can inspect ended workers, and the master refuses ended workers that reconnect."""
