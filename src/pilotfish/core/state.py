"""All that a master knows. Changed by ``core/apply.py`` alone; everybody else reads."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from pilotfish.agent.overlay.expressions import parse
from pilotfish.agent.overlay.properties import worker_properties
from pilotfish.model import ids
from pilotfish.model.data import Content
from pilotfish.model.site import PilotSize, Site, SiteEvent
from pilotfish.model.states import DRAINING, JOINED, READY, REQUESTED, TASK_STATES
from pilotfish.model.task import CORES, MEMORY, Failure, Payload, RunOptions, TaskSpec

UNIT = 10_000
"""Resources are counted in integer ten-thousandths, so that fractions add up exactly."""

CLIENT_GONE = "its client is gone"
"""Why a run was closed that its own client did not close."""

KEPT_EVENTS = 200
"""So much of its past is kept of each site."""

GROWTH, FRESH = 1.5, 0.9
"""A task that was cut off by the end of a pilot's time next wants so many times as long as it had, or a worker that has just begun."""

Needs = tuple[tuple[str, int], ...]


def in_units(amounts: tuple[tuple[str, float], ...]) -> Needs:
    return tuple((name, round(amount * UNIT)) for name, amount in amounts)


class Shape:
    """Tasks of one run that are alike to a policy: same priority, needs, time limit and wanted tags. Holds those that are ready."""

    __slots__ = (
        "cores_max",
        "lacking",
        "least_s",
        "made_from",
        "mean_us",
        "needs",
        "priority",
        "queue",
        "rank",
        "requirement",
        "run",
        "samples",
        "served",
        "tags",
        "time_s",
        "wanting",
    )

    def __init__(self, run: Run, number: int, memory: int, least_s: float) -> None:
        spec = run.specs[number]
        needs = dict(in_units(spec.request.amounts()))
        if memory:
            needs[MEMORY] = memory * UNIT
        self.run = run
        self.made_from = number, memory, least_s
        self.priority = spec.priority
        self.needs: Needs = tuple(needs.items())
        self.cores_max = round(spec.request.cores_max * UNIT)
        self.time_s = spec.time_s
        self.least_s = least_s
        """They take longer than this: so long they ran, and were cut off."""
        self.lacking: dict[str, None] = {}
        """Sites that have not got the directory in which they run."""
        self.served: dict[str, None] = {}
        """Sites where one of them has ended well."""
        self.tags = tuple(sorted(spec.tags.items()))
        self.queue: OrderedDict[Task, None] = OrderedDict()
        self.wanting: dict[ContentRecord, OrderedDict[Task, None]] = {}
        """Of those in the queue: who needs which content."""
        self.requirement = parse(spec.requirement) if spec.requirement else None
        self.rank = parse(spec.rank) if spec.rank else None
        self.mean_us = 0.0
        self.samples = 0

    @property
    def lasts_s(self) -> float:
        """A worker needs so much time for one of them, as far as is known."""
        return max(self.time_s, self.least_s)

    def learn(self, wall_us: int) -> None:
        """Keep a running mean of how long tasks of this shape take, quick to follow a change."""
        self.samples += 1
        self.mean_us += (wall_us - self.mean_us) / min(self.samples, 50)


class Troubles:
    """What went wrong with one task so far. Most tasks never have one of these."""

    __slots__ = ("avoid", "crashes", "deaths", "failures", "least_s", "losses", "memory", "ooms", "second_opinions", "suspect")

    def __init__(self) -> None:
        self.failures = 0
        self.losses = 0
        self.deaths = 0
        self.crashes = 0
        self.ooms = 0
        self.second_opinions = 0
        self.suspect = False
        self.avoid = ""
        self.memory = 0
        self.least_s = 0.0

    def as_row(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]


class ContentRecord:
    """What is known of one content. ``holders``: the workers that have it; ``home``: the master has it in its own store."""

    __slots__ = ("digest", "holders", "home", "inode", "maker", "mtime_ns", "path", "runs", "size")

    def __init__(self, digest: str, size: int) -> None:
        self.digest = digest
        self.size = size
        self.path = ""
        """Where a person has it; it had this time of change and this inode when it was read."""
        self.mtime_ns = 0
        self.inode = 0
        self.home = False
        self.maker = 0
        """The task that made it; 0: a person's file."""
        self.holders: dict[str, None] = {}
        self.runs = 0
        """So many runs need it, or made it."""

    @property
    def is_nowhere(self) -> bool:
        """It was kept where it was made, and nobody who is here has it."""
        return not (self.home or self.path or self.holders)

    @property
    def content(self) -> Content:
        return Content(self.digest, self.size, self.path, self.mtime_ns, self.inode)


class Task:
    __slots__ = (
        "attempt",
        "children",
        "contents",
        "failure",
        "id",
        "output",
        "payload",
        "shape",
        "spec",
        "state",
        "troubles",
        "waits_for",
        "worker",
    )

    def __init__(self, id: int, spec: int, shape: Shape, payload: Payload) -> None:
        self.id = id
        self.spec = spec
        self.shape = shape
        self.payload = payload
        self.state = READY
        self.attempt = 0
        self.worker: Worker | None = None
        self.output: Payload = b""
        self.failure: Failure | None = None
        self.troubles: Troubles | None = None
        self.waits_for = 0
        self.children: list[int] | None = None
        self.contents: tuple[ContentRecord, ...] = ()
        """What it needs besides what all tasks of its spec need."""

    @property
    def suspect(self) -> bool:
        return self.troubles is not None and self.troubles.suspect

    def __repr__(self) -> str:
        return f"task {ids.show_task(self.id)} ({TASK_STATES[self.state]})"


class Run:
    """One submission of tasks: in the order given, with the order in which they ended."""

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
        self.taken = 0
        """Of so many tasks, in the order of ending, the client that owns the run has the outputs and we no longer do."""
        self.specs: list[TaskSpec] = []
        self.spec_contents: dict[int, tuple[ContentRecord, ...]] = {}
        self.contents: dict[str, None] = {}
        """What its tasks need or have made."""
        self.spec_shapes: list[Shape] = []
        self.shapes: dict[tuple[object, ...], Shape] = {}
        self.tasks: list[Task] = []
        self.counts = [0] * len(TASK_STATES)
        self.ended = array("I")
        self.wall_us = array("q")
        self.cpu_us = array("q")
        self.rss_kib = array("q")
        self.attempts = 0

    @property
    def unfinished(self) -> int:
        return len(self.tasks) - len(self.ended)

    @property
    def finished(self) -> bool:
        return bool(self.closed) and not self.unfinished

    @property
    def incomplete(self) -> bool:
        """Its client went away before it had said that all tasks were sent."""
        return self.closed == CLIENT_GONE

    def shape_for(self, number: int, memory: int = 0, least_s: float = 0.0) -> Shape:
        """The shape of tasks of the spec with this number; ``memory``: granted instead of what it asked for."""
        spec = self.specs[number]
        request = spec.request
        wishes = (
            spec.priority,
            request.amounts(),
            request.cores_max,
            spec.time_s,
            tuple(sorted(spec.tags.items())),
            spec.requirement,
            spec.rank,
        )
        directory = "" if spec.launch.get("sandbox") else spec.launch.get("cwd")
        key = (*wishes, directory, memory, least_s)
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = Shape(self, number, memory, least_s)
        return shape


class Worker:
    """An agent that joined. ``active`` holds what it was given room for, ``ahead`` what waits there for room."""

    def __init__(self, id: str, pilot: str, capacity: dict[str, int], at: float) -> None:
        self.id = id
        self.pilot = pilot
        self.site = ""
        """Where its pilot was submitted; empty for an agent that came by itself."""
        self.state = JOINED
        self.capacity = capacity
        self.free = dict(capacity)
        self.tags: dict[str, str] = {}
        self.info: dict[str, Any] = {}
        self.ends_at: float | None = None
        self.poll_s = 0.0
        self.joined_at = at
        self.active: dict[Task, Needs] = {}
        self.ahead: OrderedDict[Task, Needs] = OrderedDict()
        self.recalled: dict[Task, None] = {}
        self.lent: dict[Task, None] = {}
        """Of a site's master: what it has for workers of its site, and has not given to one."""
        self.holds: dict[ContentRecord, None] = {}
        self.progress_at = at
        self.done = 0
        self.failed = 0
        self.streak: dict[int, None] = {}
        """Tasks that failed here since the last one that ended well."""
        self.quarantined_until = 0.0
        self.reason = ""
        self.history: list[tuple[float, str]] = [(at, "joined")]

    @cached_property
    def properties(self) -> dict[str, Any]:
        """What requirements and ranks may ask about it; known when it has joined, and the same from then on."""
        capacity = {name: amount / UNIT for name, amount in self.capacity.items()}
        return worker_properties(self.id, self.site, capacity, self.tags, self.info)

    @cached_property
    def slots(self) -> int:
        """How many tasks of one core it runs at the same time."""
        return max(1, self.capacity.get(CORES, 0) // UNIT)

    @property
    def alive(self) -> bool:
        return self.state in (JOINED, DRAINING)

    @property
    def held(self) -> int:
        return len(self.active) + len(self.ahead)

    @property
    def tasks(self) -> Iterator[Task]:
        """All that would be lost with it."""
        return chain(self.active, self.ahead, self.lent)

    def fits(self, needs: Needs) -> bool:
        free = self.free
        for name, amount in needs:  # noqa: SIM110 - a generator would cost more than the loop
            if free.get(name, 0) < amount:
                return False
        return True

    def could_fit(self, needs: Needs) -> bool:
        return all(self.capacity.get(name, 0) >= amount for name, amount in needs)

    def qualifies(self, shape: Shape) -> bool:
        """Has it the tags, and is it at one of the sites, that tasks of this shape ask for?"""
        sites = shape.run.options.sites
        if self.site in shape.lacking or (shape.requirement is not None and not shape.requirement.holds(self.properties)):
            return False
        return all(self.tags.get(name) == value for name, value in shape.tags) and (not sites or self.site in sites)

    def suits(self, shape: Shape, now: float) -> bool:
        """May a task of this shape run here at all: enough of everything, the tags that it wants, time enough?"""
        return self.has_time(shape, now) and self.could_fit(shape.needs) and self.qualifies(shape)

    def has_time(self, shape: Shape, now: float) -> bool:
        """Long enough for its limit; and for one that was cut off before, worth another try."""
        if self.ends_at is None:
            return True
        left = self.ends_at - now
        return left >= shape.lasts_s and left >= min(GROWTH * shape.least_s, FRESH * (self.ends_at - self.joined_at))

    @property
    def runs_suspect(self) -> bool:
        return len(self.active) == 1 and next(iter(self.active)).suspect

    def __repr__(self) -> str:
        return f"worker {self.id}"


@dataclass(slots=True)
class Pilot:
    id: str
    site: str
    size: PilotSize
    requested_at: float
    state: int = REQUESTED
    job: str = ""
    reason: str = ""
    joined: int = 0
    """How many of its agents have come so far, one on each of its nodes."""
    workers: list[str] = field(default_factory=list)
    """Those of them that are here."""
    instead_of: str = ""
    by_hand: bool = False
    withdrawn: str = ""
    """Why it was withdrawn, in one word."""

    @property
    def cores(self) -> float:
        return self.size.all_cores


@dataclass(slots=True)
class SiteRecord:
    """A site as its person describes it, how this pool uses it, and what its pilots have taught us."""

    bad_starts: int = 0
    """Pilots in a row that ended without ever joining."""
    last_bad_at: float = 0.0
    last_bad: str = ""
    """What the last of them said."""
    held: str = ""
    site: Site | None = None
    wanted: int | None = None
    """So many pilots shall be there while there is work; -1: as many as pay; None: the pool does not use it."""
    events: int = 0
    """How many there have been; ``history`` has the latest."""
    leaving: bool = False
    """It was taken out, and its last pilots are on their way home."""
    lost_s: float = 0.0
    """So much of their time pilots there have lost, of late, before their agents could use it, or must keep for the end."""
    history: deque[SiteEvent] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))


@dataclass
class State:
    epoch: int = 0
    at: float = 0.0
    runs: dict[int, Run] = field(default_factory=dict)
    run_uids: dict[str, int] = field(default_factory=dict)
    next_run: int = 1
    workers: dict[str, Worker] = field(default_factory=dict)
    gone_workers: OrderedDict[str, Worker] = field(default_factory=OrderedDict)
    contents: dict[str, ContentRecord] = field(default_factory=dict)
    pilots: dict[str, Pilot] = field(default_factory=dict)
    next_pilot: int = 1
    sites: dict[str, SiteRecord] = field(default_factory=dict)
    local_cores: float = 0.0
    sized: bool = False
    """Somebody said how many cores the pool shall have; none at all may be what they want."""
    ready: dict[Shape, None] = field(default_factory=dict)
    """Shapes that have ready tasks."""
    suspects: OrderedDict[Task, None] = field(default_factory=OrderedDict)
    """Ready tasks that must run alone."""
    unfinished: int = 0
    revoked: dict[str, None] = field(default_factory=dict)

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


KEPT_GONE_WORKERS = 1000
"""So many workers that left are remembered by name, to tell them so if they come back, and for people to look at."""
