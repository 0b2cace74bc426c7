"""Defines the errors of Pilotfish. The message of an error says what happened. Its ``hint`` says how to fix the problem."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class Correction(str):
    """A hint about a wrong word in a command. It also contains the word and its replacement, so that the command line can show the
    corrected command."""

    wrong: str
    right: str
    words: tuple[str, ...]
    """Words that replace the wrong word, if it must become several words; otherwise empty."""
    replaced: int
    """How many typed words are replaced by ``words``: the wrong word, and possibly words after it."""

    def __new__(cls, hint: str, wrong: object, right: str, words: Sequence[str] = (), replaced: int = 1) -> Correction:
        self = super().__new__(cls, hint)
        self.wrong, self.right, self.words, self.replaced = str(wrong), right, tuple(words), replaced
        return self


class PilotfishError(Exception):
    """Base class of all errors that Pilotfish raises on purpose."""

    code = "P1000"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            # A Python traceback shows the note below the message. The command line prints the hint on its own line.
            self.add_note(hint)


class BadInput(PilotfishError):
    """The input of the user is not valid. The message names the field and the value. The hint has the fix."""

    code = "P1100"


class IllegalTransition(PilotfishError):
    """Pilotfish tried a state change that the transition tables forbid. The cause is a bug in Pilotfish, not in a task."""

    code = "P9001"


class JournalError(PilotfishError):
    """The journal cannot be written or read. The master never confirms a request that is not recorded in the journal."""

    code = "P2100"


class JournalFull(PilotfishError):
    """The disk is full. The request was not recorded. Earlier records are safe. The pool continues when the disk has space again."""

    code = "P2102"


class AlreadyRunning(PilotfishError):
    """Another master serves this pool."""

    code = "P2101"


class ConnectionFailed(PilotfishError):
    """No master can be reached, or the master refused the connection."""

    code = "P3100"


class PoolStopped(PilotfishError):
    """The pool was stopped by a user."""

    code = "P3102"


class TaskFailed(PilotfishError):
    """A task failed. The message states the cause. ``remote_traceback`` is the traceback from the worker. ``completed``: the output of the
    task, or None if no output was stored."""

    code = "P4100"
    completed: Any = None

    def __init__(self, message: str, hint: str = "", cause: str = "", remote_traceback: str = "") -> None:
        super().__init__(message, hint)
        self.cause = cause
        self.remote_traceback = remote_traceback


class DamagedPayload(PilotfishError):
    """A stored or received payload is incomplete or has a wrong format."""

    code = "P4200"


class PayloadTooLarge(BadInput):
    """A value or file does not fit into one frame."""

    code = "P1101"


def show_exception(error: Exception) -> str:
    """Returns the type and message of an exception in one line, with the file and the line where it was raised. The file shows whether a
    plug-in is the cause."""
    from traceback import extract_tb

    place = "".join(f" ({frame.filename}, line {frame.lineno})" for frame in extract_tb(error.__traceback__)[-1:])
    return " ".join(f"{type(error).__name__}: {error}{place}".split())


def nearest(wrong: str, known: Iterable[str]) -> str:
    """Returns the known name that the user probably meant: the most similar name, with at most two typing errors. If there is none, returns
    the only known name that begins with ``wrong``. Otherwise returns an empty text. Ignores upper case, and dashes before an option
    name."""
    typed = wrong.lower().lstrip("-")
    limit = min(2, (len(typed) + 1) // 3)
    best, meant, prefixed = (limit, 0), "", []
    for name in known:
        lowered = name.lower().lstrip("-")
        if abs(len(lowered) - len(typed)) <= best[0]:
            # Of two equally similar names, prefer the longer name: people leave out letters more often than they add letters.
            rank = (_typing_errors(typed, lowered), -len(lowered))
            if rank <= best:
                best, meant = rank, name
        if len(typed) > 2 and lowered.startswith(typed):
            prefixed.append(name)
    return meant or (prefixed[0] if len(prefixed) == 1 else "")


def _typing_errors(first: str, second: str) -> int:
    """Returns how many typing errors turn one text into the other. A typing error is one missing, extra or wrong character, or two swapped
    neighbours."""
    before, row = [0], list(range(len(second) + 1))
    for i, one in enumerate(first):
        older, before, row = before, row, [i + 1]
        for j, other in enumerate(second):
            least = min(before[j] + (one != other), before[j + 1] + 1, row[j] + 1)
            if i and j and one == second[j - 1] and other == first[i - 1]:
                least = min(least, older[j - 1] + 1)
            row.append(least)
    return row[-1]


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Returns a hint such as ``Did you mean 'alpha'?``. Returns an empty text if no known name is similar."""
    meant = nearest(wrong, known)
    return Correction(f"Did you mean {meant!r}?", wrong, meant) if meant else ""
