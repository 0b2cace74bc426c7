"""Keeps requests until the master answers them. The client's lock guards everything except ``PendingRequest.result``."""

from __future__ import annotations

import secrets
from concurrent.futures import Future
from typing import Any, NamedTuple

from pilotfish.client.submission import Submission
from pilotfish.errors import ConnectionFailed
from pilotfish.model.messages import Ask, Message, frame_message
from pilotfish.portable.payload_format import Buffer

MAX_TRIES = 3
"""Maximum connections that may break before the answer to a request; then it is given up, because it may be what kills the masters."""


class Reply(NamedTuple):
    """Answer to a request: data, and bytes for some kinds."""

    data: Any
    body: bytes = b""


class PendingRequest(Future[Reply]):
    """A request; its result is the answer. ``submission``: the run that it opens, if that is what it asks for."""

    def __init__(self, kind: str, arguments: dict[str, Any], submission: Submission | None = None) -> None:
        super().__init__()
        self.kind = kind
        self.arguments = arguments
        self.submission = submission
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
    """Runs to open, by uid, and other requests, by number, each until the master replies."""

    def __init__(self) -> None:
        self._requests: dict[str | int, PendingRequest] = {}
        self._next = 0
        self._name = secrets.token_hex(8)
        """Unique name of this client in the pool."""

    def __bool__(self) -> bool:
        return bool(self._requests)

    @property
    def has_unsent(self) -> bool:
        return not all(request.sent for request in self._requests.values())

    def open(self, submission: Submission) -> PendingRequest:
        request = self._requests[submission.uid] = PendingRequest("open", {}, submission)
        return request

    def ask(self, kind: str, arguments: dict[str, Any]) -> PendingRequest:
        request = self._requests[self._next] = PendingRequest(kind, arguments)
        self._next += 1
        return request

    def take_frames(self, *, opens: bool) -> list[list[Buffer]]:
        """Returns the unsent frames that open runs, which are sent before all others, or those of the other requests.

        The latter are sent last, so that a request about a task follows the task. A request always has the same id, so that the master
        recognises repetitions.
        """
        frames = []
        for number, request in self._requests.items():
            if not request.sent and (request.submission is not None) == opens:
                request.sent = True
                message: Message
                if request.submission is not None:
                    message = request.submission.open_message()
                else:
                    message = Ask(int(number), request.kind, request.arguments, f"{self._name}-{number}")
                frames.append(frame_message(message))
        return frames

    def runs_to_forget(self) -> set[Any]:
        """Returns the runs with an unanswered ``forget``; the master may have forgotten them already."""
        return {request.arguments.get("run") for request in self._requests.values() if request.kind == "forget"}

    def oldest_open(self) -> PendingRequest | None:
        """Removes and returns the oldest pending Open, which was refused."""
        uid = next((key for key, request in self._requests.items() if request.submission is not None), None)
        return None if uid is None else self._requests.pop(uid)

    def answered(self, key: str | int) -> PendingRequest | None:
        """Removes and returns the request of this number, or the Open of this uid."""
        return self._requests.pop(key, None)

    def connection_broke(self) -> None:
        """Removes requests that are not to be repeated; the others that were sent get no answer over this connection."""
        self._requests = {key: request for key, request in self._requests.items() if not request.connection_broke()}

    def repeat(self) -> None:
        """Marks all requests to be sent again over a new connection."""
        for request in self._requests.values():
            request.sent = False

    def give_up(self) -> list[PendingRequest]:
        """Removes and returns all requests; none will be answered."""
        pending, self._requests = list(self._requests.values()), {}
        return pending
