"""What is to be run, how it may fail, and what it used."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from pilotfish.model.contents import Content
from pilotfish.portable.payload_format import REFERENCE_BYTES

MEMORY = "memory"
CORES = "cores"
GPUS = "gpus"
UNNAMED = "task"
"""What a task is called of which nobody said more: then its run's name or command tells what it does."""


LEAST_COST, MOST_COST = 1e-6, 1e9
"""Of a task compared with others."""


class StoredPayload(Struct, frozen=True, array_like=True, tag="stored"):
    """Bytes too large to keep in memory: where the payload store put them."""

    segment: int
    offset: int
    length: int


Payload = bytes | StoredPayload

SHARED_SEGMENT = 0
"""The segment of payloads that lie in files of their own, which everybody on this machine reads directly; ``offset`` names the file."""


def sent_bytes(payload: Payload, whole: bool = False) -> int:
    """How long a payload is when it is sent: shared ones travel as a reference, unless they are sent ``whole``."""
    if isinstance(payload, bytes):
        return len(payload)
    return REFERENCE_BYTES if payload.segment == SHARED_SEGMENT and not whole else payload.length


class Request(Struct, frozen=True, array_like=True):
    """What one task needs of a worker. ``cores_max`` above ``cores`` makes the task moldable: the policy grants what pays. With several
    ``nodes`` it has so many workers of one pilot at the same time, and needs all this of each of them."""

    cores: float = 1.0
    cores_max: float = 0.0
    memory: int = 0
    gpus: float = 0.0
    custom: dict[str, float] = {}
    nodes: int = 1

    def amounts(self) -> tuple[tuple[str, float], ...]:
        """The needs that count, as (name, amount); the order is fixed so that equal requests make equal tuples."""
        named = [(CORES, self.cores), (MEMORY, float(self.memory)), (GPUS, self.gpus), *sorted(self.custom.items())]
        return tuple((name, amount) for name, amount in named if amount > 0)


class TaskSpec(Struct, frozen=True, array_like=True):
    """What many tasks of one run share. A task is a spec and a payload.

    ``launch`` is for the agent alone (how to start it); ``code`` are bytes that every task of the spec needs (a pickled function,
    small input files), sent to a worker once; ``contents`` are larger files that every one of them needs.
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
    """An expression over a worker's properties: it must hold where a task of this spec runs. See ``portable/expressions/evaluation.py``."""
    rank: str = ""
    """An expression: of the workers that will do, the one where it is largest is the best."""


class Usage(Struct, frozen=True, array_like=True):
    """What one attempt used, as the agent measured it."""

    wall_us: int = 0
    cpu_us: int = 0
    rss_kib: int = 0


NO_DIRECTORY = "no-directory"
"""The cause of failure if a worker has not got the directory in which an executable shall run."""


MISSING_INPUT = "missing-input"
"""The cause of failure if something that it needs cannot be had."""
DISK = "disk"
"""The cause of failure if a worker has no room on its disk."""


class Failure(Struct, frozen=True, array_like=True):
    """Why an attempt did not succeed, and whose fault that was. ``blame``: task, worker, site or user."""

    cause: str
    blame: str
    message: str = ""


class RunOptions(Struct, frozen=True, array_like=True):
    """What a person asked for about a run as a whole."""

    name: str = ""
    command: str = ""
    cwd: str = ""
    owned: bool = False
    """The run belongs to one client: it is cancelled when that client has been gone for a while."""
    max_failures: int = 0
    """Stop the run after so many failed tasks; 0 means never."""
    application: str = ""
    """The run file of an ApplicationManager that the master keeps alive for this run."""
    sites: tuple[str, ...] = ()
    """Its tasks run at these sites only; none: wherever there is a worker."""
    speculate: bool | None = None
    """May a slow task be tried by a second worker at the same time? What it does outside of its sandbox is then done twice. None: as the
    pool's policy has it."""
    share: str = ""
    """Runs of one share stand in one line, and shares get the pool in turns. See ``core/tasks/fair_share.py``."""
    weight: float = 0.0
    """The share gets so many times what others get; 0: as much as it got so far."""
    deadline: float = 0.0
    """It should have ended by then, in seconds since 1970; 0: whenever."""
    priority: int | None = None
    """All its tasks have this one; None: each the one of its spec."""
