"""Keeps requests until the master answers them. The client's lock guards everything except ``PendingRequest.result``."""

from __future__ import annotations

import secrets
from concurrent.futures import Future
from typing import Any, NamedTuple

from pilotfish.client.submission import Submission
from pilotfish.errors import ConnectionFailed
from pilotfish.model.messages import Ask, frame_message
from pilotfish.portable.payload_format import Buffer

MAX_TRIES = 3
"""Maximum connections that may break before the answer to a request; then it is given up, because it may be what kills the masters."""


class Reply(NamedTuple):
    """Answer to a request: data, and bytes for some kinds."""

    data: Any
    body: bytes = b""


class PendingRequest(Future[Reply]):
    """A request; its result is the answer."""

    def __init__(self, kind: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.kind = kind
        self.arguments = arguments
        self.sent = False
        self._tries = 0

    def connection_broke(self) -> bool:
        """Returns whether the request is settled; otherwise it is repeated. One that was not sent is not affected."""
        if self.sent:
            self._tries += 1
            if self.kind == "stop":
                # A master that is asked to stop may end before it answers.
                self.set_result(Reply({}))
            elif self._tries >= MAX_TRIES:
                text = f"{self.kind}: the connection broke {MAX_TRIES} times before the master answered"
                self.set_exception(ConnectionFailed(text, "see why: pilotfish doctor"))
        return self.done()


class PendingRequests:
    """Runs to open and requests to answer, each until the master replies."""

    def __init__(self) -> None:
        self._opens: dict[str, tuple[Submission, PendingRequest]] = {}
        self._requests: dict[int, PendingRequest] = {}
        self._next = 0
        self._name = secrets.token_hex(8)
        """Unique name of this client in the pool."""

    def __bool__(self) -> bool:
        return bool(self._opens or self._requests)

    def all(self) -> list[PendingRequest]:
        return [*self._requests.values(), *(request for _, request in self._opens.values())]

    @property
    def has_unsent(self) -> bool:
        return bool(self) and not all(request.sent for request in self.all())

    def open(self, submission: Submission) -> PendingRequest:
        request = PendingRequest("open", {})
        self._opens[submission.uid] = submission, request
        return request

    def ask(self, kind: str, arguments: dict[str, Any]) -> PendingRequest:
        request = self._requests[self._next] = PendingRequest(kind, arguments)
        self._next += 1
        return request

    def take_open_frames(self) -> list[list[Buffer]]:
        """Returns the frames that open runs; they are sent before all others."""
        unsent = [(submission, request) for submission, request in self._opens.values() if not request.sent]
        for _, request in unsent:
            request.sent = True
        return [frame_message(submission.open_message()) for submission, _ in unsent]

    def take_request_frames(self) -> list[list[Buffer]]:
        """Returns the frames of requests; they are sent last, so that a request about a task follows the task.

        A request always has the same id, so that the master recognises repetitions.
        """
        unsent = [(number, request) for number, request in self._requests.items() if not request.sent]
        for _, request in unsent:
            request.sent = True
        return [frame_message(Ask(number, request.kind, request.arguments, f"{self._name}-{number}")) for number, request in unsent]

    def runs_to_forget(self) -> set[Any]:
        """Returns the runs with an unanswered ``forget``; the master may have forgotten them already."""
        return {request.arguments.get("run") for request in self._requests.values() if request.kind == "forget"}

    def opened(self, uid: str) -> tuple[Submission, PendingRequest] | None:
        return self._opens.pop(uid, None)

    def oldest_open(self) -> PendingRequest | None:
        """Removes and returns the oldest pending Open, which was refused."""
        uid = next(iter(self._opens), None)
        return None if uid is None else self._opens.pop(uid)[1]

    def answered(self, number: int) -> PendingRequest | None:
        return self._requests.pop(number, None)

    def connection_broke(self) -> None:
        """Removes requests that are not to be repeated; the others that were sent get no answer over this connection."""
        self._requests = {number: request for number, request in self._requests.items() if not request.connection_broke()}
        self._opens = {uid: opened for uid, opened in self._opens.items() if not opened[1].connection_broke()}

    def repeat(self) -> None:
        """Marks all requests to be sent again over a new connection."""
        for request in self.all():
            request.sent = False

    def give_up(self) -> list[PendingRequest]:
        """Removes and returns all requests; none will be answered."""
        pending = self.all()
        self._requests, self._opens = {}, {}
        return pending
