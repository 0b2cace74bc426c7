"""Defines the messages between master, agents and clients, encodes them as frames and splits frame bodies.

A frame has two 32-bit lengths (of header and body, in network byte order), a JSON header and a binary body. The header is one of the
Structs in this module, written as a JSON array whose first item is the tag. The body consists of parts, one after the other; the header has
their lengths. The agent has its own code for the same arrays, because it uses only the standard library. ``tests/contract`` checks that
this module and the agent convert every message in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from pilotfish.errors import ConnectionFailed
from pilotfish.model.contents import Content, ExpectedFile, IntermediateFile, ProducedContent
from pilotfish.model.task import Failure, RunOptions, TaskSpec
from pilotfish.portable.payload_format import Buffer
from pilotfish.portable.wire.frames import PREFIX


class Message(Struct, frozen=True, array_like=True):
    """Base of all messages."""


# --- the handshake; see master/endpoints.py and client/master_connection.py ----


class Banner(Message, frozen=True, tag="pilotfish"):
    protocol: int
    nonce: str


class Prove(Message, frozen=True, tag="prove"):
    protocol: int
    role: str
    key_id: str
    nonce: str
    mac: str


class Proved(Message, frozen=True, tag="proved"):
    mac: str
    epoch: int


class Refused(Message, frozen=True, tag="refused"):
    reason: str


# --- agent to master --------------------------------------------------------------------------------------------------------------

QUEUED, STARTED, FINISHED = range(3)


class Hello(Message, frozen=True, tag="hello"):
    """An agent joins or reconnects. ``holding``: every attempt that the agent has, as [task, attempt, QUEUED|STARTED|FINISHED]."""

    worker: str
    pilot: str
    capacity: dict[str, float]
    tags: dict[str, str]
    info: dict[str, Any]
    ends_in_s: float | None
    poll_s: float
    """Seconds between two connections of an agent that polls; 0: the agent stays connected."""
    holding: list[tuple[int, int, int]]


class Bulk(Message, frozen=True, tag="bulk"):
    """Opens a connection that transfers only contents. An agent sends Bulk instead of Hello. The protocol on this connection is described
    in ``portable/transfer/transfer_protocol.py``."""

    worker: str = ""


class Heartbeat(Message, frozen=True, tag="beat"):
    """Periodic message of an agent. ``started``: attempts [task, attempt] that started since the last heartbeat and still run.

    ``moving``: contents in transfer to this node, or from this node to the master, as (digest, bytes so far, total bytes).
    """

    started: list[tuple[int, int]]
    moving: list[tuple[str, int, int]] = []
    input_counts: list[int] = []
    """Counts the contents that tasks have needed since the agent started. The list has two values, number and bytes, for each place where
    contents were found. The places are: the cache, peers, the site's storage or a shared disk, the master."""


Count = Annotated[int, Meta(ge=0, le=2**53)]


class ResultItem(Struct, frozen=True, array_like=True):
    task: int
    attempt: int
    failure: Failure | None
    wall_us: Count
    cpu_us: Count
    rss_kib: Count
    length: Count
    made: list[ProducedContent] = []
    left_out: Count = 0
    """Number of bytes of standard output and standard error that are stored nowhere."""


class Results(Message, frozen=True, tag="results"):
    """Attempts that ended. The agent numbers its results from 0; a result that is sent again keeps its number. ``first``: the number of the
    first of these results. ``gained``, ``lost``: see CacheReport. Body: the payloads."""

    first: int
    items: list[ResultItem]
    gained: list[str] = []
    lost: list[str] = []


class CacheReport(Message, frozen=True, tag="holds"):
    """Contents that the node gained and lost. ``all``: True if ``gained`` lists all contents of the node. ``held``: contents that tasks
    made and that the master does not have; the node keeps them until the master releases them."""

    gained: list[str]
    lost: list[str]
    all: bool = False
    held: list[str] = []


class Returned(Message, frozen=True, tag="returned"):
    """Attempts that the agent returns because it has not started them."""

    items: list[tuple[int, int]]


class SiteMasterClaim(Message, frozen=True, tag="reigns"):
    """The agent is the site master in this term: it was appointed, or elected by its peers. Term 0 means that the agent is no longer the
    site master."""

    term: int


class DelegatedWorkers(Message, frozen=True, tag="vouch"):
    """Workers that a site master serves from now on (``joined``), and workers that it no longer serves (``removed``). The message also
    means that all workers that the site master serves are alive.

    After SiteMasterClaim, the first message of this kind names all workers that the site master serves.
    """

    joined: list[str]
    removed: list[str]
    term: int = 0


class ClaimedTasks(Message, frozen=True, tag="claims"):
    """Delegated tasks that a site master has assigned. ``given``: pairs of a worker and its tasks, each task as (task, attempt)."""

    given: list[tuple[str, list[tuple[int, int]]]]


class DelegatedTasks(Message, frozen=True, tag="loans"):
    """All delegated tasks that a site master has not assigned yet, as (task, attempt)."""

    items: list[tuple[int, int]]


class Draining(Message, frozen=True, tag="draining"):
    """The agent will end soon and takes no more tasks. Running tasks continue."""

    reason: str


class Leave(Message, frozen=True, tag="leave"):
    """The agent leaves. ``cut_off``: attempts that the end of the walltime stopped, as (task, attempt, seconds that the attempt ran)."""

    reason: str
    cut_off: list[tuple[int, int, float]] = []


class AgentDied(Message, frozen=True, tag="gone"):
    """A supervisor reports that its agent died and that none of its processes is left."""

    worker: str
    reason: str


class Peeked(Message, frozen=True, tag="peeked"):
    """The answer to Peek. Body: bytes of the stream from ``offset`` on. ``known``: whether the attempt runs at this worker."""

    query: int
    known: bool
    offset: int


# --- master to agent --------------------------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True, tag="welcome"):
    epoch: int
    beat_s: float
    orphan_s: float


class Introduce(Message, frozen=True, tag="introduce"):
    """Key, certificate and some peers of a site, for an agent of the site. A peer is [id, [host, port]]."""

    site: str
    key: str
    certificate: str
    private_key: str
    contacts: list[Any]
    term: int = 0
    master: Any = None
    """Address of the site master of ``term``; None if the master knows no address."""


class SetHeartbeats(Message, frozen=True, tag="quiet"):
    """Turns the heartbeats of an agent off (``quiet``) or on. Heartbeats are off while a site master serves the worker. The setting is
    valid until the connection ends."""

    quiet: bool


class SentSpec(Struct, frozen=True, array_like=True):
    """A spec for an agent. It is sent once per connection, before the first task that uses it."""

    spec: int
    kind: str
    time_s: float
    needs: dict[str, float]
    launch: dict[str, Any]
    length: int
    contents: tuple[Content, ...] = ()
    requirement: str = ""
    rank: str = ""
    tags: dict[str, str] = {}


class SentTask(Struct, frozen=True, array_like=True):
    """One attempt to run. ``cores``, ``memory``: granted amounts. An amount is 0 if it is the same as in the spec."""

    task: int
    attempt: int
    spec: int
    length: int
    cores: float
    memory: int
    contents: tuple[Content, ...] = ()
    intermediate: tuple[IntermediateFile, ...] = ()
    """Files that other tasks left for this task. The payload does not name them. ``contents`` includes them."""


class Assign(Message, frozen=True, tag="assign"):
    """Tasks to run. Body: the code of the specs, then the payloads of the tasks."""

    specs: list[SentSpec]
    tasks: list[SentTask]


class Delegate(Message, frozen=True, tag="lend"):
    """Attempts for a site master, which assigns them to workers of its site. Body: as in Assign."""

    specs: list[SentSpec]
    tasks: list[SentTask]


class ReleaseContents(Message, frozen=True, tag="let_go"):
    """The agent need not keep these contents any more, because no run needs them."""

    digests: list[str]


class Acked(Message, frozen=True, tag="acked"):
    """The results ``first`` to ``last`` are durable. The agent can now delete these results. See Results for the numbers."""

    first: int
    last: int


class Kill(Message, frozen=True, tag="kill"):
    """Stop these attempts [task, attempt] and report nothing about them."""

    items: list[tuple[int, int]]


class Recall(Message, frozen=True, tag="recall"):
    """Return each of these attempts that has not started. The answer is Returned."""

    items: list[tuple[int, int]]


class HeartbeatAck(Message, frozen=True, tag="pulse"):
    """The answer to Heartbeat: the master is alive."""


class Drain(Message, frozen=True, tag="drain"):
    """Return tasks that have not started, finish the other tasks, then leave."""

    reason: str


class Retire(Message, frozen=True, tag="retire"):
    """Stop everything and end. The master no longer needs this agent, or has already requeued its tasks."""

    reason: str


class Peek(Message, frozen=True, tag="peek"):
    """Ask for the output of a running attempt. ``stream``: 1 (standard output), 2 (standard error) or 0 (CPU seconds and bytes of memory
    used so far, as JSON). ``offset``: position of the first byte to send; -N means the last N bytes."""

    query: int
    task: int
    attempt: int
    stream: int
    offset: int


# --- client to master -------------------------------------------------------------------------------------------------------------


class Open(Message, frozen=True, tag="open"):
    """Open a run. If a run with this uid exists, continue this run. The client chooses the uid."""

    uid: str
    options: RunOptions
    feeds: bool = True
    """Whether this client sends the tasks. If False, the client only watches the run. If a client that sends tasks stays disconnected, the
    run is closed."""


class Submit(Message, frozen=True, tag="submit"):
    """Submit tasks of a run, from index ``first`` on. If a client sends this message again, the master skips the tasks that it has already.

    ``specs``: new specs. The first of them gets the number ``first_spec`` in the run. ``code_lengths``: lengths of the codes of these
    specs; in the body, the codes come before the payloads. ``deps``: for each task, by its offset in ``tasks``, the indices of the tasks
    that must be done before it.
    """

    run: int
    first: int
    first_spec: int
    specs: list[TaskSpec]
    code_lengths: list[int]
    tasks: list[tuple[int, int]]
    """For each task: number of its spec in the run, and length of its payload."""
    deps: dict[int, list[int]] = {}
    advance: int = -1
    """Only for applications: number of ended tasks that the application has handled. The number is recorded together with the new tasks."""
    contents: dict[int, tuple[Content, ...]] = {}
    """For each task, by its offset in ``tasks``: the large files that it needs in addition to the contents of its spec."""
    costs: list[float] = []
    """Relative durations of the tasks, as given by the user. If the list is empty, all durations count as equal."""
    expected_files: dict[int, tuple[ExpectedFile, ...]] = {}
    """For each task, by its offset in ``tasks``: the files that earlier tasks of the run will leave for it."""
    after_any: dict[int, list[int]] = {}
    """For each task, by its offset in ``tasks``: the indices of the tasks that must have ended before it, with any result."""
    keys: bytes = b""
    """One record of KEY_BYTES for each task. Equal tasks have equal records. Zeros: the task has no record. Empty: no task has a
    record."""
    reuse: list[int] = []
    """Offsets in ``tasks`` of the tasks for which the master can reuse the result of an earlier task with the same key."""
    reuse_after: dict[int, tuple[float, float]] = {}
    """For each task, by its offset in ``tasks``: the last change of its files, and the last change of its programs. The result of an
    earlier task is reused only if the earlier task ended after the first time and started after the second time."""


class Close(Message, frozen=True, tag="close"):
    """No more tasks will be submitted to the run."""

    run: int


class Watch(Message, frozen=True, tag="watch"):
    """Subscribe to the ended tasks of a run. The run lists them in the order of their ends. ``cursor``: the position in this list of the
    first task to send. ``payloads``: send payloads, too."""

    run: int
    cursor: int
    payloads: bool


class Taken(Message, frozen=True, tag="taken"):
    """The owning client has the outputs of the first ``count`` ended tasks. No other client will ask for these outputs."""

    run: int
    count: int


class Ask(Message, frozen=True, tag="ask"):
    """A query or command with an answer. ``core/explain/queries.py`` and ``core/clients/pool_commands.py`` list the kinds."""

    query: int
    kind: str
    arguments: dict[str, Any]
    request: str = ""
    """Unique name of this request. If a command is sent again because its answer was lost, it is not carried out twice."""
    lengths: list[int] = []
    """Lengths of the payloads in the body. Only ``rerun`` has payloads."""


# --- master to client -------------------------------------------------------------------------------------------------------------


class Opened(Message, frozen=True, tag="opened"):
    uid: str
    run: int
    tasks: int
    specs: int
    advanced: int


class Accepted(Message, frozen=True, tag="accepted"):
    """The first ``tasks`` tasks of the run are durable."""

    run: int
    tasks: int


class EndedItem(Struct, frozen=True, array_like=True):
    index: int
    state: int
    failure: Failure | None
    wall_us: int
    cpu_us: int
    rss_kib: int
    length: int


class Ended(Message, frozen=True, tag="ended"):
    """Ended tasks of a run. ``cursor``: the position of the first of these tasks in the list of ended tasks of the run. Body: the payloads
    of these tasks, if the client asked for payloads."""

    run: int
    cursor: int
    items: list[EndedItem]


class Began(Message, frozen=True, tag="began"):
    """Tasks that were reported as running. Short tasks can be missing."""

    run: int
    indices: list[int]


class RunFinished(Message, frozen=True, tag="finished"):
    """The run is closed and its last task has ended."""

    run: int
    counts: dict[str, int]


class Answer(Message, frozen=True, tag="answer"):
    """The answer to Ask. Body: the bytes of the answer, such as outputs of tasks; empty for most answers."""

    query: int
    data: Any


class Problem(Message, frozen=True, tag="problem"):
    """The answer to an Ask, Open or Submit that is refused. For Open and Submit, ``query`` is -1."""

    query: int
    code: str
    message: str
    hint: str
    wrong: str = ""
    """The wrong word of the command line, if the hint is a ``Correction``."""
    right: str = ""


FromAgent = (
    Prove
    | Hello
    | Bulk
    | Heartbeat
    | Results
    | CacheReport
    | Returned
    | SiteMasterClaim
    | DelegatedWorkers
    | ClaimedTasks
    | DelegatedTasks
    | Draining
    | Leave
    | AgentDied
    | Peeked
)
FromClient = Prove | Open | Submit | Close | Watch | Taken | Ask
ToClient = Banner | Proved | Refused | Opened | Accepted | Ended | Began | RunFinished | Answer | Problem

encode = msgspec.json.Encoder().encode


def frame_message(message: Message, parts: Sequence[Buffer] = ()) -> list[Buffer]:
    """Returns a message and its body as buffers to send one after the other."""
    header = encode(message)
    return [PREFIX.pack(len(header), sum(map(len, parts))), header, *parts]


decode_from_agent = msgspec.json.Decoder(FromAgent).decode
decode_from_client = msgspec.json.Decoder(FromClient).decode
decode_to_client = msgspec.json.Decoder(ToClient).decode


# The body is split by the lengths in the header. If their sum differs from the length of the body, the connection fails.


def split_body(message: object, body: memoryview) -> list[memoryview]:
    if isinstance(message, Results):
        lengths = [item.length for item in message.items]
    elif isinstance(message, Submit):
        if len(message.code_lengths) != len(message.specs):
            raise ConnectionFailed("a submission counts its specs and their code differently")
        lengths = [*message.code_lengths, *(length for _, length in message.tasks)]
    elif isinstance(message, Ask):
        lengths = message.lengths
    elif isinstance(message, Peeked):
        return [body]
    else:
        lengths = []
    if sum(lengths) != len(body) or min(lengths, default=0) < 0:
        raise ConnectionFailed(f"a body of {len(body)} bytes does not match its header, which counts {sum(lengths)}")
    return [body[end - length : end] for length, end in zip(lengths, accumulate(lengths), strict=True)]
