"""Defines task specs, requests, usage, failures and run options."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from pilotfish.model.contents import Content
from pilotfish.portable.payload_format import REFERENCE_BYTES

MEMORY = "memory"
CORES = "cores"
GPUS = "gpus"
UNIT = 10_000
"""Units per core, byte or GPU. Resources are integers in these units, so that sums of fractions are exact."""
UNNAMED = "task"
"""Name of a task to which the user gave no name. The name or command of the run then describes the task."""


MIN_COST, MAX_COST = 1e-6, 1e9
"""Bounds of the relative cost of a task."""


class StoredPayload(Struct, frozen=True, array_like=True, tag="stored"):
    """The place of a payload in the payload store, if the payload is too large to keep in memory."""

    segment: int
    offset: int
    length: int


Payload = bytes | StoredPayload

SHARED_SEGMENT = 0
"""Segment number of payloads that have a file of their own. Processes of this machine read such a file directly. ``offset`` names the
file."""


def sent_bytes(payload: Payload, whole: bool = False) -> int:
    """Returns the number of bytes of a payload in a message. If ``whole`` is False, a shared payload is sent as a reference."""
    if isinstance(payload, bytes):
        return len(payload)
    return REFERENCE_BYTES if payload.segment == SHARED_SEGMENT and not whole else payload.length


class Request(Struct, frozen=True, array_like=True):
    """The resources that one task needs at a worker.

    If ``cores_max`` is above ``cores``, the task is moldable: the policy chooses the number of cores. If ``nodes`` is above 1, the task
    needs this number of workers at the same time. The workers must belong to one pilot, one on each node. The other amounts are then for
    each worker.
    """

    cores: float = 1.0
    cores_max: float = 0.0
    memory: int = 0
    gpus: float = 0.0
    custom: dict[str, float] = {}
    nodes: int = 1

    def amounts(self) -> tuple[tuple[str, float], ...]:
        """Returns non-zero needs as (name, amount), in a fixed order, so that equal requests give equal tuples."""
        named = [(CORES, self.cores), (MEMORY, float(self.memory)), (GPUS, self.gpus), *sorted(self.custom.items())]
        return tuple((name, amount) for name, amount in named if amount > 0)


class TaskSpec(Struct, frozen=True, array_like=True):
    """Values that many tasks of one run share. A task is a spec and a payload.

    ``launch``: how the agent starts the task; only the agent reads these values. ``code``: bytes that every task of the spec needs (a
    pickled function, small input files). The code is sent to a worker once per connection. ``contents``: large files that every task of the
    spec needs.
    """

    kind: str
    name: str = ""
    request: Request = Request()
    time_s: float = 0.0
    retries: int = 0
    losses: int = 10
    priority: int = 0
    tags: dict[str, str] = {}
    launch: dict[str, Any] = {}
    code: Payload = b""
    contents: tuple[Content, ...] = ()
    requirement: str = ""
    """Expression that must be true of a worker. See ``portable/expressions/evaluation.py``."""
    rank: str = ""
    """Expression. Tasks prefer workers with a larger value of this expression."""
    concurrency_limit: tuple[str, int] = ("", 0)
    """Limit name and number N. Of all tasks of the run that have this limit name, at most N run at the same time. Empty name: no limit."""

    @property
    def python(self) -> str:
        """Returns the minor version of Python that a worker must have, such as "3.12"; empty if any version is good enough.

        A pickled function can only be loaded by a Python of the same minor version, because bytecode differs between minor versions.
        """
        version = self.launch.get("python") if self.launch.get("form") == "pickle" else None
        if isinstance(version, list | tuple) and len(version) == 2 and all(type(part) is int for part in version):
            return f"{version[0]}.{version[1]}"
        return ""

    @property
    def full_requirement(self) -> str:
        """Returns ``requirement`` and the required version of Python as one expression, for site masters."""
        if not self.python:
            return self.requirement
        major, minor = self.python.split(".")
        own = f'python >= "{self.python}" and python < "{major}.{int(minor) + 1}"'
        return f"{own} and ({self.requirement})" if self.requirement else own


class Usage(Struct, frozen=True, array_like=True):
    """Resources that one attempt used, as measured by the agent."""

    wall_us: int = 0
    cpu_us: int = 0
    rss_kib: int = 0


NO_DIRECTORY = "no-directory"
"""Cause of failure: the worker does not have the working directory of an executable."""


MISSING_INPUT = "missing-input"
"""Cause of failure: the worker cannot get an input."""
MISSING_OUTPUT = "missing-output"
"""Cause of failure: the task did not leave an output."""
DISK = "disk"
"""Cause of failure: the worker's disk is full."""


DAMAGED = "damaged"
"""Cause of failure: the payload was in a damaged part of the journal."""


DEPENDENCY = "dependency"
"""Cause of failure: the task depends on another task, which failed or was cancelled."""


class Failure(Struct, frozen=True, array_like=True):
    """Why an attempt failed, and whose fault it was. ``blame``: task, worker, site or user."""

    cause: str
    blame: str
    message: str = ""


class RunOptions(Struct, frozen=True, array_like=True):
    """Options of a whole run."""

    name: str = ""
    command: str = ""
    cwd: str = ""
    owned: bool = False
    """Whether the run belongs to one client. If that client stays disconnected, the run is cancelled."""
    max_failures: int = 0
    """Maximum failed tasks before the run is cancelled; 0: no limit."""
    application: str = ""
    """Path of the run file with the ApplicationManager. If the process of the manager dies, the master restarts the process."""
    sites: tuple[str, ...] = ()
    """Sites where tasks of the run are allowed to run; empty: no restriction."""
    speculate: bool | None = None
    """Whether slow tasks are allowed to have speculative copies; None: the policy decides. With a copy, the actions of a task outside its
    sandbox happen twice."""
    share: str = ""
    """Name of the share of the run. Shares divide the pool by weight. See ``core/tasks/fair_share.py``."""
    weight: float = 0.0
    """Weight of the share; 0: the share keeps its weight."""
    deadline: float = 0.0
    """Time at which the run should be finished, in seconds since 1970; 0: none."""
    priority: int | None = None
    """Priority of all tasks of the run; None: the priority of each spec."""
    resume: bool = False
    """Whether stored results of equal earlier tasks are reused for the tasks of this run."""
