"""Keeps requests until the master answers them. The client's lock guards everything except ``PendingRequest.wait``."""

from __future__ import annotations

import secrets
import threading
from typing import Any, NamedTuple

from pilotfish.client.submission import Submission
from pilotfish.errors import ConnectionFailed, PilotfishError
from pilotfish.model.messages import Ask, frame_message
from pilotfish.portable.payload_format import Buffer

MOST_TRIES = 3
"""Maximum connections that may break before the answer to a request; then it is given up, because it may be what kills the masters."""


class Reply(NamedTuple):
    """Answer to a request: data, and bytes for some kinds."""

    data: Any
    body: bytes


class PendingRequest:
    __slots__ = ("_problem", "_reply", "_said", "_tries", "arguments", "kind")

    def __init__(self, kind: str, arguments: dict[str, Any]) -> None:
        self.kind = kind
        self.arguments = arguments
        self._tries = 0
        self._reply: Reply | None = None
        self._problem: PilotfishError | None = None
        self._said = threading.Event()

    def answer(self, reply: Reply) -> None:
        self._reply = reply
        self._said.set()

    def fail(self, problem: PilotfishError) -> None:
        self._problem = problem
        self._said.set()

    def cut_off(self) -> bool:
        """Handles a broken connection; returns whether the request is settled and not to be repeated."""
        self._tries += 1
        if self.kind == "stop":
            # A master that is asked to stop may be gone before it answers.
            self.answer(Reply({}, b""))
        elif self._tries >= MOST_TRIES:
            text = f"{self.kind}: the connection broke {MOST_TRIES} times before the master answered"
            self.fail(ConnectionFailed(text, "see why: pilotfish doctor"))
        return self._said.is_set()

    def wait(self) -> Reply:
        self._said.wait()
        if self._problem is not None:
            raise self._problem
        assert self._reply is not None
        return self._reply


class PendingRequests:
    """Runs to open and requests to answer, each until the master replies."""

    def __init__(self) -> None:
        self._opening: dict[str, tuple[Submission, PendingRequest]] = {}
        self._open_unsent: list[str] = []
        self._questions: dict[int, PendingRequest] = {}
        self._unsent: list[int] = []
        self._next = 0
        self._name = secrets.token_hex(8)
        """Unique name of this client in the pool."""

    def __bool__(self) -> bool:
        return bool(self._opening or self._questions)

    @property
    def has_unsent(self) -> bool:
        return bool(self._open_unsent or self._unsent)

    def open(self, submission: Submission) -> PendingRequest:
        question = PendingRequest("open", {})
        self._opening[submission.uid] = submission, question
        self._open_unsent.append(submission.uid)
        return question

    def ask(self, kind: str, arguments: dict[str, Any]) -> PendingRequest:
        question = PendingRequest(kind, arguments)
        self._questions[self._next] = question
        self._unsent.append(self._next)
        self._next += 1
        return question

    def cut_opens(self) -> list[list[Buffer]]:
        """Returns the frames that open runs; they are sent before all others."""
        frames = [frame_message(self._opening[uid][0].opening()) for uid in self._open_unsent]
        self._open_unsent.clear()
        return frames

    def cut_questions(self) -> list[list[Buffer]]:
        """Returns the frames of requests; they are sent last, so that a request about a task follows the task."""
        frames = [frame_message(self._asking(number)) for number in self._unsent]
        self._unsent.clear()
        return frames

    def _asking(self, number: int) -> Ask:
        """Builds the request, always with the same id, so that the master recognises repetitions."""
        question = self._questions[number]
        return Ask(number, question.kind, question.arguments, f"{self._name}-{number}")

    def runs_to_forget(self) -> set[Any]:
        """Returns the runs with an unanswered ``forget``; the master may have forgotten them already."""
        return {question.arguments.get("run") for question in self._questions.values() if question.kind == "forget"}

    def opened(self, uid: str) -> tuple[Submission, PendingRequest] | None:
        return self._opening.pop(uid, None)

    def oldest_open(self) -> PendingRequest | None:
        """Removes and returns the oldest pending Open, which was refused."""
        uid = next(iter(self._opening), None)
        return None if uid is None else self._opening.pop(uid)[1]

    def answered(self, number: int) -> PendingRequest | None:
        return self._questions.pop(number, None)

    def cut_off(self) -> None:
        """Handles a broken connection: requests that were sent over it get no answer."""
        unsent, open_unsent = set(self._unsent), set(self._open_unsent)
        for number, question in list(self._questions.items()):
            if number not in unsent and question.cut_off():
                del self._questions[number]
        for uid, (_, question) in list(self._opening.items()):
            if uid not in open_unsent and question.cut_off():
                del self._opening[uid]

    def repeat(self) -> None:
        """Marks all requests to be sent again over a new connection."""
        self._open_unsent = list(self._opening)
        self._unsent = list(self._questions)

    def give_up(self) -> list[PendingRequest]:
        """Removes and returns all requests; none will be answered."""
        left = [*self._questions.values(), *(question for _, question in self._opening.values())]
        for collection in (self._questions, self._opening, self._unsent, self._open_unsent):
            collection.clear()
        return left
