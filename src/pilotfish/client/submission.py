"""Keeps the tasks and requests of a client until they are sent and the master has confirmed them."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from pilotfish.applications.task_list import TaskEntry
from pilotfish.applications.task_needs import NO_NEEDS, TaskNeeds
from pilotfish.client.master_connection import repeated_loss
from pilotfish.errors import BadInput, PayloadTooLarge, PilotfishError
from pilotfish.model.contents import KEY_BYTES, Content, ExpectedFile
from pilotfish.model.messages import Ask, EndedItem, Message, Open, Opened, Submit, Taken, frame_message
from pilotfish.model.quantities import show_bytes
from pilotfish.model.task import RunOptions, TaskSpec
from pilotfish.portable.payload_format import REFERENCE_BYTES, Buffer
from pilotfish.portable.payload_reference import SHARE_BYTES
from pilotfish.portable.wire.frames import MAX_BODY

BATCH_TASKS = 4096
BATCH_BYTES = 4 * 1024 * 1024
BATCH_DEPENDENCIES = 100_000
MAX_FRAME_TASKS = 500_000
"""Maximum number of tasks and dependencies in one frame. The header of a frame has room for this many indices, even if the indices have
many digits."""
CONFIRM_BYTES = 1024 * 1024
ENDING_BYTES = 64


def not_utf8_error(spec: TaskSpec, text: str) -> BadInput:
    """Returns the error for a ``text`` in a spec that is not UTF-8. The error names the task option that contains the text."""
    field = next((option for option, value in spec.launch.items() if _has_text(value, text)), spec.name)
    return BadInput(f"{field}: '{escape_surrogates(text)}' is not UTF-8", "give files, variables and directories names in UTF-8")


def _has_text(value: object, text: str) -> bool:
    """Returns whether a value of a launch description is ``text`` or contains ``text`` at any depth."""
    if isinstance(value, dict):
        return any(_has_text(part, text) for item in value.items() for part in item)
    return any(_has_text(part, text) for part in value) if isinstance(value, list | tuple) else value == text


def escape_surrogates(text: str) -> str:
    """Replaces bytes that are not UTF-8 by escapes such as ``\\udcff``. File names can contain such bytes."""
    return text.encode("utf-8", "backslashreplace").decode()


class RunListener(Protocol):
    """Receives the updates of a run. The client's thread calls its methods, so they must be quick and must not wait for the client."""

    def ended(self, items: list[EndedItem], body: memoryview) -> None: ...

    def began(self, indices: list[int]) -> None: ...

    def finished(self, counts: dict[str, int]) -> None: ...

    def lost(self, error: PilotfishError) -> None:
        """Is called with an error when no more updates will come: the master is lost, or it refused the run or its tasks."""


@dataclass(slots=True, eq=False)
class SubmitBatch:
    """Content of one Submit message. ``size``: number of bytes in the body. ``whole``: whether the batch is complete, so that no more tasks
    are added."""

    first: int
    first_spec: int
    whole: bool = False
    advance: int = -1
    size: int = 0
    dependencies: int = 0
    specs: list[TaskSpec] = field(default_factory=list)
    codes: list[bytes] = field(default_factory=list)
    tasks: list[tuple[int, int]] = field(default_factory=list)
    payloads: list[Buffer] = field(default_factory=list)
    deps: dict[int, list[int]] = field(default_factory=dict)
    after_any: dict[int, list[int]] = field(default_factory=dict)
    contents: dict[int, tuple[Content, ...]] = field(default_factory=dict)
    future_files: dict[int, tuple[ExpectedFile, ...]] = field(default_factory=dict)
    costs: list[float] = field(default_factory=list)
    """Costs of the first tasks of the batch. All later tasks have cost 1."""
    keys: bytearray = field(default_factory=bytearray)
    """Records of the first tasks of the batch. All later tasks have no records."""
    reuse: list[int] = field(default_factory=list)
    reuse_after: dict[int, tuple[float, float]] = field(default_factory=dict)

    def add(self, spec: int, payload: bytes, needs: TaskNeeds) -> None:
        place = len(self.tasks)
        if needs is not NO_NEEDS:
            if needs.after:
                self.deps[place] = list(needs.after)
            if needs.after_any:
                self.after_any[place] = list(needs.after_any)
            if needs.contents:
                self.contents[place] = needs.contents
            if needs.future_files:
                self.future_files[place] = needs.future_files
            self.dependencies += needs.dependencies
            if needs.cost != 1.0:
                self.costs += [1.0] * (place - len(self.costs)) + [needs.cost]
            if needs.key:
                self.keys += bytes(place * KEY_BYTES - len(self.keys)) + needs.key
                if needs.reuse:
                    self.reuse.append(place)
                    if needs.last_change.at or needs.program_change.at:
                        self.reuse_after[place] = needs.last_change.at, needs.program_change.at
        self.tasks.append((spec, len(payload)))
        self.payloads.append(payload)

    def encode(self, run: int) -> list[Buffer]:
        lengths = [len(code) for code in self.codes]
        costs = self.costs + [1.0] * (len(self.tasks) - len(self.costs)) if self.costs else []
        keys = bytes(self.keys.ljust(len(self.tasks) * KEY_BYTES, b"\0")) if self.keys else b""
        needs = (self.deps, self.advance, self.contents, costs, self.future_files, self.after_any, keys, self.reuse, self.reuse_after)
        message = Submit(run, self.first, self.first_spec, self.specs, lengths, self.tasks, *needs)
        return frame_message(message, [*self.codes, *self.payloads])


class Submission:
    """State of one run at its client. The client's lock guards this state, except the counts of reported and processed ended tasks: only
    the client's thread uses these counts. No method waits or does I/O."""

    def __init__(self, uid: str, options: RunOptions, sends_tasks: bool = True) -> None:
        self.uid = uid
        self._sends_tasks = sends_tasks
        self.options = msgspec.structs.replace(
            options, name=escape_surrogates(options.name), command=escape_surrogates(options.command), cwd=escape_surrogates(options.cwd)
        )
        self.run = -1
        self.next_index = 0
        self.next_spec = 0
        self.advanced = 0
        self.listener: RunListener | None = None
        self.failure: PilotfishError | None = None
        """The first error that ended the updates. After this error, the master possibly lacks some tasks."""
        self.payloads_wanted = True
        self.cursor = self.first_cursor = 0
        """Positions in the list of ended tasks of the run. ``cursor``: position of the next ended task that the master will send.
        ``first_cursor``: position of the first ended task that the listener wants."""
        self._reported = bytearray()
        self._processed = 0
        self._processed_bytes = 0
        self.results_in_use = 0
        """Number of submissions in progress whose calls have futures as arguments. While it is not 0, the master must keep all results."""
        self.watching = False
        self.close_wanted = False
        self.close_sent = False
        self.unsent_bytes = 0
        self._advance_sent = -1
        self._unsent: deque[SubmitBatch] = deque()
        self._unaccepted: deque[tuple[int, list[Buffer]]] = deque()
        self._numbers: dict[bytes, int] = {}

    def open_message(self) -> Open:
        return Open(self.uid, self.options, self._sends_tasks)

    def take_numbers(self, opened: Opened) -> None:
        """Stores the number of the run from the answer to Open. The first call also stores the next task index, the next spec number and
        the progress."""
        first_time = self.run < 0
        self.run = opened.run
        if first_time:
            self.next_index = opened.tasks
            self.next_spec = opened.specs
            self.advanced = opened.advanced
        elif self._advance_sent > opened.advanced and not self._unaccepted and not self._unsent:
            # The client does not keep a frame that has progress and no tasks. If the old master died before it recorded this progress, the
            # client sends the progress again here.
            self.add_whole((), (), self._advance_sent)

    def spec_number(self, spec: TaskSpec, code: bytes, batch: SubmitBatch | None = None) -> int:
        """Returns the number of a spec in the run. Equal specs with equal ``code`` get the same number and are sent once."""
        if len(code) > MAX_BODY // 2:
            raise PayloadTooLarge(
                f"{spec.name!r} has {show_bytes(len(code))} of code or shared files; {show_bytes(MAX_BODY // 2)} is the most",
                "pass large data as files that the workers can read",
            )
        spec = msgspec.structs.replace(spec, name=escape_surrogates(spec.name))
        try:
            digest = hashlib.sha256(msgspec.json.encode(spec))
        except UnicodeEncodeError as problem:
            raise not_utf8_error(spec, str(problem.object)) from None
        digest.update(code)
        key = digest.digest()
        number = self._numbers.get(key)
        if number is None:
            batch = batch or self._current_batch(len(code))
            batch.specs.append(spec)
            batch.codes.append(code)
            batch.size += len(code)
            self.unsent_bytes += len(code)
            number = self._numbers[key] = self.next_spec
            self.next_spec += 1
        return number

    def _current_batch(self, size: int) -> SubmitBatch:
        if self._unsent:
            batch = self._unsent[-1]
            has_room = len(batch.tasks) < BATCH_TASKS and batch.size + size <= BATCH_BYTES and batch.dependencies < BATCH_DEPENDENCIES
            if has_room and not batch.whole:
                return batch
        batch = SubmitBatch(self.next_index, self.next_spec)
        self._unsent.append(batch)
        return batch

    def add(self, spec: int, payload: bytes, needs: TaskNeeds = NO_NEEDS) -> int:
        """Adds a task and returns its index in the run."""
        size = len(payload)
        if needs.dependencies > MAX_FRAME_TASKS:
            raise PayloadTooLarge(
                f"after: {needs.dependencies} tasks; {MAX_FRAME_TASKS} are the most", "put a task in between that waits for a part of them"
            )
        if size > MAX_BODY:
            raise PayloadTooLarge(
                f"the arguments of a task have {show_bytes(size)} when pickled; {show_bytes(MAX_BODY)} is the most",
                "pass large data as files that the workers can read",
            )
        batch = self._current_batch(size)
        batch.add(spec, payload, needs)
        batch.size += size
        self.unsent_bytes += size
        index = self.next_index
        self.next_index = index + 1
        return index

    def add_whole(self, specs: Sequence[tuple[TaskSpec, bytes]], entries: Sequence[TaskEntry], advance: int) -> range:
        """Adds tasks and the progress of an application in one frame. The master records either the whole frame or nothing.

        ``entries``: the tasks. Their field ``spec`` is an index in ``specs``. The frame also contains those of the used specs that are new
        in the run. ``advance``: number of ended tasks that the manager has processed.
        """
        used = dict.fromkeys(entry.spec for entry in entries)
        size = sum(len(entry.payload) for entry in entries) + sum(len(specs[local][1]) for local in used)
        dependencies = sum(entry.needs.dependencies for entry in entries)
        if size > MAX_BODY or len(entries) + dependencies > MAX_FRAME_TASKS:
            raise PayloadTooLarge(
                f"{len(entries)} tasks with {dependencies} dependencies and {show_bytes(size)} in one answer; "
                f"{MAX_FRAME_TASKS} tasks and dependencies and {show_bytes(MAX_BODY)} are the most",
                "create fewer tasks at a time",
            )
        batch = SubmitBatch(self.next_index, self.next_spec, whole=True)
        numbers = {local: self.spec_number(*specs[local], batch) for local in used}
        for entry in entries:
            batch.add(numbers[entry.spec], entry.payload, entry.needs)
        batch.advance = advance
        self._advance_sent = max(self._advance_sent, advance)
        self._unsent.append(batch)
        self.next_index += len(entries)
        return range(batch.first, self.next_index)

    @property
    def has_unsent(self) -> bool:
        """Returns True if there is a frame to send. Specs wait for a task that uses them, because the master confirms only tasks."""
        unsent = self._unsent
        return bool(unsent) and (len(unsent) > 1 or bool(unsent[0].tasks) or unsent[0].advance >= 0)

    @property
    def has_unaccepted(self) -> bool:
        return bool(self._unaccepted) or self.has_unsent

    def take_frames(self) -> list[list[Buffer]]:
        """Returns the frames to send now. Keeps each frame with tasks or specs until the master has recorded it."""
        frames = []
        while self.has_unsent:
            batch = self._unsent[0]
            encoded = batch.encode(self.run)
            self._unsent.popleft()
            if batch.tasks or batch.specs:
                self._unaccepted.append((batch.first + max(len(batch.tasks), 1), encoded))
            frames.append(encoded)
        self.unsent_bytes = 0
        return frames

    def frames_to_repeat(self) -> list[list[Buffer]]:
        """Returns the frames to send again over a new connection. Also marks Watch and Close to be sent again."""
        self.watching = self.close_sent = False
        return [encoded for _, encoded in self._unaccepted]

    def lost(self, error: PilotfishError) -> None:
        """Records the error that ends the updates of this run, and reports it to the listener."""
        self.failure = self.failure or error
        if self.listener is not None:
            self.listener.lost(error)

    def give_up(self) -> None:
        """Drops all tasks that the master has not recorded."""
        self._unsent.clear()
        self._unaccepted.clear()

    def accepted(self, tasks: int) -> None:
        unaccepted = self._unaccepted
        while unaccepted and unaccepted[0][0] <= tasks:
            unaccepted.popleft()

    def new_endings(self, cursor: int, items: list[EndedItem], body: memoryview) -> tuple[list[EndedItem], memoryview]:
        """Removes tasks from ``items`` and ``body`` that were already reported to the listener, and returns the rest. A master with a
        damaged journal sends all ended tasks again. ``cursor``: position of the first item in the list of ended tasks of the run."""
        reported = self._reported
        reported.extend(bytes(max(0, max((item.index for item in items), default=0) + 1 - len(reported))))
        new = [item for item in items[max(0, self.first_cursor - cursor) :] if not reported[item.index]]
        self.cursor = cursor + len(items)
        if len(new) < len(items):
            body = _select_bodies(new, items, body) if self.payloads_wanted else body
        for item in items:
            reported[item.index] = 1
        return new, body

    def processed(self, items: list[EndedItem]) -> None:
        """Records that the listener has processed these ended tasks, so that the master can drop their results."""
        self._processed = self.cursor
        self._processed_bytes += sum(SHARE_BYTES if item.length == REFERENCE_BYTES else item.length + ENDING_BYTES for item in items)

    @property
    def confirmation_due(self) -> bool:
        """Returns True if it is time to tell the master how many results were processed. The master then drops these results."""
        return self._processed_bytes > CONFIRM_BYTES and self.options.owned and self.payloads_wanted and not self.results_in_use

    def confirm_processed(self) -> Taken:
        self._processed_bytes = 0
        return Taken(self.run, self._processed)


def _select_bodies(chosen: list[EndedItem], items: list[EndedItem], body: memoryview) -> memoryview:
    ends = list(itertools.accumulate(item.length for item in items))
    places = {item.index: body[end - item.length : end] for item, end in zip(items, ends, strict=True)}
    return memoryview(b"".join(places[item.index] for item in chosen))


# --- requests -------------------------------------------------------------------------------------------------------------------------

MAX_TRIES = 3
"""A request fails if this many connections break before its answer, because the request itself is possibly the cause."""


class Reply(NamedTuple):
    """The answer to a request: data and, for some kinds of requests, bytes."""

    data: Any
    body: bytes = b""


class PendingRequest(Future[Reply]):
    """A request as a future, whose result is the answer. ``submission``: the run that the request opens, or None."""

    def __init__(
        self,
        kind: str,
        arguments: dict[str, Any],
        message: Message,
        submission: Submission | None = None,
        payloads: Sequence[bytes] = (),
    ) -> None:
        super().__init__()
        self.payloads = payloads
        self.kind = kind
        self.arguments = arguments
        self.message = message
        self.submission = submission
        self.sent = False
        self._tries = 0

    def connection_broke(self, pool_directory: Path) -> bool:
        """Is called after the connection broke. Ends a sent request if it is a ``stop``, or after MAX_TRIES broken connections. Returns
        True if the request has ended."""
        if self.sent:
            self._tries += 1
            if self.kind == "stop":
                # A stopping master can end before it answers the request.
                self.set_result(Reply({}))
            elif self._tries >= MAX_TRIES:
                text = f"{self.kind}: the connection broke {MAX_TRIES} times before the master answered"
                self.set_exception(repeated_loss(text, pool_directory))
        return self.done()


class PendingRequests:
    """All requests without an answer. The caller must hold the client's lock. The key of a request that opens a run is the uid of the run.
    The key of any other request is a number."""

    def __init__(self) -> None:
        self._requests: dict[str | int, PendingRequest] = {}
        self.has_unsent = False
        """Whether a request is unsent. It is a separate value, because the client's thread reads it without the lock."""
        self._next = 0
        self._name = secrets.token_hex(8)
        """Unique name of this client in the pool."""

    def __bool__(self) -> bool:
        return bool(self._requests)

    def open(self, submission: Submission) -> PendingRequest:
        request = self._requests[submission.uid] = PendingRequest("open", {}, submission.open_message(), submission)
        self.has_unsent = True
        return request

    def ask(self, kind: str, arguments: dict[str, Any], payloads: Sequence[bytes] = ()) -> PendingRequest:
        # A request always has the same id, so that the master recognises repetitions.
        message = Ask(self._next, kind, arguments, f"{self._name}-{self._next}", list(map(len, payloads)))
        request = self._requests[self._next] = PendingRequest(kind, arguments, message, payloads=payloads)
        self._next += 1
        self.has_unsent = True
        return request

    def take_frames(self, *, opens: bool) -> list[list[Buffer]]:
        """Returns the frames of unsent requests and marks these requests as sent. With ``opens``, takes the requests that open a run.
        Without ``opens``, takes all other requests.

        Tasks are sent after the requests that open a run, and before all other requests. So a request can be about a task that was added
        just before.
        """
        frames = []
        for request in self._requests.values():
            if not request.sent and (request.submission is not None) == opens:
                request.sent = True
                frames.append(frame_message(request.message, request.payloads))
        self.has_unsent = self.has_unsent and opens  # the call with ``opens`` comes first
        return frames

    def runs_to_forget(self) -> set[Any]:
        """Returns the runs with an unanswered request ``forget``. The master has possibly forgotten these runs already."""
        return {request.arguments.get("run") for request in self._requests.values() if request.kind == "forget"}

    def oldest_open(self) -> PendingRequest | None:
        """Removes and returns the oldest pending request that opens a run, or None if there is no such request.

        The client calls this method after a refusal. A refusal does not name a request. The master answers in order, so the refusal is
        about the oldest request.
        """
        uid = next((key for key, request in self._requests.items() if request.submission is not None), None)
        return None if uid is None else self._requests.pop(uid)

    def answered(self, key: str | int) -> PendingRequest | None:
        """Removes and returns the request with this key, because the answer has come. Returns None if there is no such request."""
        return self._requests.pop(key, None)

    def connection_broke(self, pool_directory: Path) -> None:
        """Tells all requests that the connection broke. Removes the requests that end. The client sends the remaining requests again."""
        self._requests = {key: request for key, request in self._requests.items() if not request.connection_broke(pool_directory)}

    def repeat(self) -> None:
        """Marks all requests to be sent again over a new connection."""
        for request in self._requests.values():
            request.sent = False
        self.has_unsent = bool(self._requests)

    def give_up(self) -> list[PendingRequest]:
        """Removes and returns all requests, because no answers will come."""
        pending, self._requests, self.has_unsent = list(self._requests.values()), {}, False
        return pending
