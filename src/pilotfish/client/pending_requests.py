"""What a client has asked of its master and has not been answered yet. The client's lock guards it all but ``Question.wait``."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from pilotfish.client.submission import Submission
from pilotfish.errors import PilotfishError
from pilotfish.model.message_frames import Buffer, frame
from pilotfish.model.messages import Ask


class Reply(NamedTuple):
    """The answer to a question: its data, and bytes where the kind has any."""

    data: Any
    body: bytes


class PendingRequest:
    __slots__ = ("_problem", "_reply", "_said", "arguments", "kind")

    def __init__(self, kind: str, arguments: dict[str, Any]) -> None:
        self.kind = kind
        self.arguments = arguments
        self._reply: Reply | None = None
        self._problem: PilotfishError | None = None
        self._said = threading.Event()

    def answer(self, reply: Reply) -> None:
        self._reply = reply
        self._said.set()

    def fail(self, problem: PilotfishError) -> None:
        self._problem = problem
        self._said.set()

    def wait(self) -> Reply:
        self._said.wait()
        if self._problem is not None:
            raise self._problem
        assert self._reply is not None
        return self._reply


class PendingRequests:
    """Runs to be opened and questions to be answered, each until the master has replied."""

    def __init__(self) -> None:
        self._opening: dict[str, tuple[Submission, PendingRequest]] = {}
        self._open_unsent: list[str] = []
        self._questions: dict[int, PendingRequest] = {}
        self._unsent: list[int] = []
        self._next = 0

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
        """The frames that open runs; they go before everything else."""
        frames = [frame(self._opening[uid][0].opening()) for uid in self._open_unsent]
        self._open_unsent.clear()
        return frames

    def cut_questions(self) -> list[list[Buffer]]:
        """The frames that ask; they go last, so that a question about a task comes after the task."""
        frames = [frame(Ask(number, self._questions[number].kind, self._questions[number].arguments)) for number in self._unsent]
        self._unsent.clear()
        return frames

    def opened(self, uid: str) -> tuple[Submission, PendingRequest] | None:
        return self._opening.pop(uid, None)

    def oldest_open(self) -> PendingRequest | None:
        """The run that has waited longest to be opened; taken, as its Open was refused."""
        uid = next(iter(self._opening), None)
        return None if uid is None else self._opening.pop(uid)[1]

    def answered(self, number: int) -> PendingRequest | None:
        return self._questions.pop(number, None)

    def repeat(self) -> None:
        """The connection is new: ask everything again. Nothing that can be asked is done twice for that."""
        sent = [number for number in self._questions if number not in self._unsent]
        for number in sent:
            kind = self._questions[number].kind
            if kind == "stop":
                # The master that is asked to stop may be gone before its answer is.
                self._questions.pop(number).answer(Reply({}, b""))
        self._open_unsent = list(self._opening)
        self._unsent = list(self._questions)

    def give_up(self) -> list[PendingRequest]:
        """Everything that will not be answered any more."""
        left = [*self._questions.values(), *(question for _, question in self._opening.values())]
        for collection in (self._questions, self._opening, self._unsent, self._open_unsent):
            collection.clear()
        return left
