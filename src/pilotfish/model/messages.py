"""What travels between master, agents and clients: the wire contract.

A frame is ``!II`` (header length, body length), a JSON header and a binary body. The header is one of the Structs below, written as a
JSON array whose first item is the tag. The body is opaque: the parts that the header counts, one behind the other.
The agent reads and writes the same arrays with the standard library; ``tests/contract`` round-trips every message through both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from pilotfish.errors import ConnectionFailed
from pilotfish.model.contents import AwaitedFile, Content, IntermediateFile, ProducedContent
from pilotfish.model.task import Failure, RunOptions, TaskSpec
from pilotfish.portable.payload_format import Buffer
from pilotfish.portable.wire.frames import PREFIX


class Message(Struct, frozen=True, array_like=True):
    """Base of all that travels."""


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
    """An agent joins, or comes back: who it is, what it offers, and every attempt it holds as [task, attempt, QUEUED|STARTED|FINISHED]."""

    worker: str
    pilot: str
    capacity: dict[str, float]
    tags: dict[str, str]
    info: dict[str, Any]
    ends_in_s: float | None
    poll_s: float
    """0 keeps the connection; otherwise the agent hangs up and calls again after so many seconds."""
    holding: list[tuple[int, int, int]]


class Bulk(Message, frozen=True, tag="bulk"):
    """Instead of a Hello: this connection is for contents. What follows is the protocol of ``portable/transfer/transfer_protocol.py``."""

    worker: str = ""


class Heartbeat(Message, frozen=True, tag="beat"):
    """I am alive; these attempts [task, attempt] were started since the last beat and still run.

    ``moving``: (digest, bytes so far, bytes in all) of contents that are on their way here, or from here to the master."""

    started: list[tuple[int, int]]
    moving: list[tuple[str, int, int]] = []
    got: list[int] = []
    """Since the agent started: how many contents its tasks needed, and of how many bytes, by where they were: [here, its bytes, with peers,
    …, in the site's storage or on a shared disk, …, at the master, …]."""


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


class Results(Message, frozen=True, tag="results"):
    """Attempts that ended. ``first`` numbers them for the acknowledgement; body: their payloads. ``gained`` and ``lost`` as in Holds."""

    first: int
    items: list[ResultItem]
    gained: list[str] = []
    lost: list[str] = []


class CacheReport(Message, frozen=True, tag="holds"):
    """These contents are here now, and those no longer. ``all``: nothing else is here; ``held``: what is kept for runs that count on it."""

    gained: list[str]
    lost: list[str]
    all: bool = False
    held: list[str] = []


class Returned(Message, frozen=True, tag="returned"):
    """Attempts handed back without having been started."""

    items: list[tuple[int, int]]


class SiteMasterClaim(Message, frozen=True, tag="reigns"):
    """I am the master of my site: appointed, or elected by my peers for this term. 0: I am not any more."""

    term: int


class DelegatedWorkers(Message, frozen=True, tag="vouch"):
    """Of a site's master: these workers are with me, and those no longer; all others of mine are well. The first after ``Reigns`` names all
    workers of the site's master."""

    joined: list[str]
    gone: list[str]
    term: int = 0


class ClaimedTasks(Message, frozen=True, tag="claims"):
    """Of a site's master: tasks that were lent to it, as (task, attempt), and the workers that it gave them to."""

    given: list[tuple[str, list[tuple[int, int]]]]


class DelegatedTasks(Message, frozen=True, tag="loans"):
    """Of a site's master: all that it has of what was lent to it, as (task, attempt), and has claimed for nobody."""

    items: list[tuple[int, int]]


class Draining(Message, frozen=True, tag="draining"):
    """I shall end soon: send no more work. What runs goes on."""

    reason: str


class Leave(Message, frozen=True, tag="leave"):
    """``cut_off``: (task, attempt, seconds) of what ran so long and did not end before the time of the pilot was over."""

    reason: str
    cut_off: list[tuple[int, int, float]] = []


class Gone(Message, frozen=True, tag="gone"):
    """A supervisor says that its agent died and that nothing of it is left running."""

    worker: str
    reason: str


class Peeked(Message, frozen=True, tag="peeked"):
    """The answer to Peek; body: bytes of the stream from ``offset``. ``known`` is False when the attempt is not running here."""

    query: int
    known: bool
    offset: int


# --- master to agent --------------------------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True, tag="welcome"):
    epoch: int
    beat_s: float
    orphan_s: float


class Introduce(Message, frozen=True, tag="introduce"):
    """You are a peer of the agents of a site: what opens their doors, and some of them to begin with, as [id, [host, port]]."""

    site: str
    key: str
    certificate: str
    private_key: str
    contacts: list[Any]
    term: int = 0
    master: Any = None
    """Who speaks for the site, in which term, as far as the pool's master knows: a contact."""


class SetHeartbeats(Message, frozen=True, tag="quiet"):
    """Somebody vouches for you, or nobody does any more: beats are not needed, or are again. It holds for one connection."""

    quiet: bool


class SentSpec(Struct, frozen=True, array_like=True):
    """A spec as an agent needs it; it is sent once per connection before the first task that uses it."""

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
    """One attempt to make. ``cores`` and ``memory`` are what was granted, where that differs from the spec's needs; else 0."""

    task: int
    attempt: int
    spec: int
    length: int
    cores: float
    memory: int
    contents: tuple[Content, ...] = ()
    handed: tuple[IntermediateFile, ...] = ()
    """Inputs that its payload does not name: other tasks left them. They are among ``contents``."""


class Assign(Message, frozen=True, tag="assign"):
    """Body: the code of the specs, then the payloads of the tasks."""

    specs: list[SentSpec]
    tasks: list[SentTask]


class Delegate(Message, frozen=True, tag="lend"):
    """To a site's master: attempts to be given to workers of its site; body as that of Assign."""

    specs: list[SentSpec]
    tasks: list[SentTask]


class ReleaseContents(Message, frozen=True, tag="let_go"):
    """No run needs these contents any more, which you were to keep."""

    digests: list[str]


class Acked(Message, frozen=True, tag="acked"):
    """Results ``first`` to ``last`` are durable: the agent may forget them."""

    first: int
    last: int


class Kill(Message, frozen=True, tag="kill"):
    """Stop these attempts [task, attempt] and forget them; nothing is to be reported."""

    items: list[tuple[int, int]]


class Recall(Message, frozen=True, tag="recall"):
    """Hand back (Returned) those of these attempts that were not started."""

    items: list[tuple[int, int]]


class HeartbeatAck(Message, frozen=True, tag="pulse"):
    """The answer to a Beat: the master lives."""


class Drain(Message, frozen=True, tag="drain"):
    """Hand back what was not started, finish the rest, then leave."""

    reason: str


class Retire(Message, frozen=True, tag="retire"):
    """Stop everything and end: the master has no more use for this agent, or has already given its tasks away."""

    reason: str


class Peek(Message, frozen=True, tag="peek"):
    """Ask for output of a running attempt. ``stream``: 1 or 2."""

    query: int
    task: int
    attempt: int
    stream: int
    offset: int


# --- client to master -------------------------------------------------------------------------------------------------------------


class Open(Message, frozen=True, tag="open"):
    """Open a run, or find it again by its uid, which the client made up."""

    uid: str
    options: RunOptions
    feeds: bool = True
    """Tasks will come from this client: when it is gone for long, no more will. False: it only watches."""


class Submit(Message, frozen=True, tag="submit"):
    """Tasks number ``first`` and on of the run. Repeating it is harmless: what the master has already is skipped.

    ``specs``: new specs, numbered from ``first_spec`` in the run; ``code_lengths``: their code in the body, before the payloads.
    ``deps`` maps an offset in ``tasks`` to the indices, in the run, that must be done first.
    """

    run: int
    first: int
    first_spec: int
    specs: list[TaskSpec]
    code_lengths: list[int]
    tasks: list[tuple[int, int]]
    """(spec number in the run, payload length)"""
    deps: dict[int, list[int]] = {}
    advance: int = -1
    """Of an application only: it has dealt with so many ended tasks; written down together with the new tasks."""
    contents: dict[int, tuple[Content, ...]] = {}
    """Offset in ``tasks`` -> larger files that this task needs, besides those of its spec."""
    costs: list[float] = []
    """How long each of them takes compared with the others, as far as the person knows; empty: all alike."""
    awaited: dict[int, tuple[AwaitedFile, ...]] = {}
    """Offset in ``tasks`` -> files that earlier tasks of the run will leave for this one."""


class Close(Message, frozen=True, tag="close"):
    """No more tasks will come."""

    run: int


class Watch(Message, frozen=True, tag="watch"):
    """Tell of tasks that end, from the ``cursor``-th on in order of ending; with their payloads or without."""

    run: int
    cursor: int
    payloads: bool


class Taken(Message, frozen=True, tag="taken"):
    """Of a run that lives and dies with this client: it has what the first ``count`` tasks that ended gave; nobody else will ask for it."""

    run: int
    count: int


class Ask(Message, frozen=True, tag="ask"):
    """A question or a command with a reply: ``core/explain/queries.py`` and ``core/clients/pool_commands.py`` list the kinds."""

    query: int
    kind: str
    arguments: dict[str, Any]
    request: str = ""
    """Names this request and no other, so that a command that is sent again after its answer was lost is not carried out twice."""


# --- master to client -------------------------------------------------------------------------------------------------------------


class Opened(Message, frozen=True, tag="opened"):
    uid: str
    run: int
    tasks: int
    specs: int
    advanced: int


class Accepted(Message, frozen=True, tag="accepted"):
    """The run's first ``tasks`` tasks are durable."""

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
    """Tasks that ended, number ``cursor`` and on; body: their payloads, if asked for."""

    run: int
    cursor: int
    items: list[EndedItem]


class Began(Message, frozen=True, tag="began"):
    """Tasks that were seen running (long ones only)."""

    run: int
    indices: list[int]


class RunFinished(Message, frozen=True, tag="finished"):
    """The run is closed and its last task has ended."""

    run: int
    counts: dict[str, int]


class Answer(Message, frozen=True, tag="answer"):
    """The reply to Ask; body: bytes, where the kind has any."""

    query: int
    data: Any


class Problem(Message, frozen=True, tag="problem"):
    """The reply to an Ask, Open or Submit that cannot be met (query -1 for the latter two)."""

    query: int
    code: str
    message: str
    hint: str


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
    | Gone
    | Peeked
)
FromClient = Prove | Open | Submit | Close | Watch | Taken | Ask
ToAgent = (
    Banner
    | Proved
    | Refused
    | Welcome
    | Introduce
    | SetHeartbeats
    | Assign
    | Delegate
    | ReleaseContents
    | Acked
    | Kill
    | Recall
    | HeartbeatAck
    | Drain
    | Retire
    | Peek
)
ToClient = Banner | Proved | Refused | Opened | Accepted | Ended | Began | RunFinished | Answer | Problem

encode = msgspec.json.Encoder().encode


def frame_message(message: Message, parts: Sequence[Buffer] = ()) -> list[Buffer]:
    """Encode a message and its body as buffers to send one after the other."""
    header = encode(message)
    return [PREFIX.pack(len(header), sum(map(len, parts))), header, *parts]


decode_from_agent = msgspec.json.Decoder(FromAgent).decode
decode_from_client = msgspec.json.Decoder(FromClient).decode
decode_to_client = msgspec.json.Decoder(ToClient).decode
decode_to_agent = msgspec.json.Decoder(ToAgent).decode


# Cuts the body of a frame into the payloads that its header counts. A peer whose sums do not add up is not believed.


def split_body(message: object, body: memoryview) -> list[memoryview]:
    if isinstance(message, Results):
        lengths = [item.length for item in message.items]
    elif isinstance(message, Submit):
        if len(message.code_lengths) != len(message.specs):
            raise ConnectionFailed("a submission counts its specs and their code differently")
        lengths = [*message.code_lengths, *(length for _, length in message.tasks)]
    elif isinstance(message, Peeked):
        return [body]
    else:
        lengths = []
    if sum(lengths) != len(body) or min(lengths, default=0) < 0:
        raise ConnectionFailed(f"a body of {len(body)} bytes does not match its header, which counts {sum(lengths)}")
    parts = []
    start = 0
    for length in lengths:
        parts.append(body[start : start + length])
        start += length
    return parts
