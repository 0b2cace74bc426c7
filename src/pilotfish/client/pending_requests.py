"""What a client has asked of its master and has not been answered yet. The client's lock guards it all but ``Question.wait``."""

from __future__ import annotations

import secrets
import threading
from typing import Any, NamedTuple

from pilotfish.client.submission import Submission
from pilotfish.errors import ConnectionFailed, PilotfishError
from pilotfish.model.messages import Ask, frame_message
from pilotfish.portable.payload_format import Buffer

MOST_TRIES = 3
"""A question is given up after so many connections that broke before the answer: it may be what the masters die of."""


class Reply(NamedTuple):
    """The answer to a question: its data, and bytes where the kind has any."""

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
        """The connection over which it was sent broke. Whether it is settled by that, and not to be asked again."""
        self._tries += 1
        if self.kind == "stop":
            # The master that is asked to stop may be gone before its answer is.
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
    """Runs to be opened and questions to be answered, each until the master has replied."""

    def __init__(self) -> None:
        self._opening: dict[str, tuple[Submission, PendingRequest]] = {}
        self._open_unsent: list[str] = []
        self._questions: dict[int, PendingRequest] = {}
        self._unsent: list[int] = []
        self._next = 0
        self._name = secrets.token_hex(8)
        """Of this client, among all that ever speak to the pool."""

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
        frames = [frame_message(self._opening[uid][0].opening()) for uid in self._open_unsent]
        self._open_unsent.clear()
        return frames

    def cut_questions(self) -> list[list[Buffer]]:
        """The frames that ask; they go last, so that a question about a task comes after the task."""
        frames = [frame_message(self._asking(number)) for number in self._unsent]
        self._unsent.clear()
        return frames

    def _asking(self, number: int) -> Ask:
        """The same each time that it is asked, so that the master knows it again."""
        question = self._questions[number]
        return Ask(number, question.kind, question.arguments, f"{self._name}-{number}")

    def runs_to_forget(self) -> set[Any]:
        """Runs that the master may have forgotten already, although it has not said so."""
        return {question.arguments.get("run") for question in self._questions.values() if question.kind == "forget"}

    def opened(self, uid: str) -> tuple[Submission, PendingRequest] | None:
        return self._opening.pop(uid, None)

    def oldest_open(self) -> PendingRequest | None:
        """The run that has waited longest to be opened; taken, as its Open was refused."""
        uid = next(iter(self._opening), None)
        return None if uid is None else self._opening.pop(uid)[1]

    def answered(self, number: int) -> PendingRequest | None:
        return self._questions.pop(number, None)

    def cut_off(self) -> None:
        """The connection broke: no answer will come to what was sent over it."""
        unsent, open_unsent = set(self._unsent), set(self._open_unsent)
        for number, question in list(self._questions.items()):
            if number not in unsent and question.cut_off():
                del self._questions[number]
        for uid, (_, question) in list(self._opening.items()):
            if uid not in open_unsent and question.cut_off():
                del self._opening[uid]

    def repeat(self) -> None:
        """The connection is new: ask everything again."""
        self._open_unsent = list(self._opening)
        self._unsent = list(self._questions)

    def give_up(self) -> list[PendingRequest]:
        """Everything that will not be answered any more."""
        left = [*self._questions.values(), *(question for _, question in self._opening.values())]
        for collection in (self._questions, self._opening, self._unsent, self._open_unsent):
            collection.clear()
        return left
