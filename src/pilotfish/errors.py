"""Defines the errors of Pilotfish. The message says what happened. ``hint`` says how to fix the problem."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
    """A state change that the transition tables forbid. It is a bug in Pilotfish and not in a task."""

    code = "P9001"


class JournalError(PilotfishError):
    """The journal cannot be written or read. In this state, the master confirms no request."""

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
    """A task failed. The message has the cause. ``remote_traceback`` is the traceback from the worker."""

    code = "P4100"

    def __init__(self, message: str, hint: str = "", cause: str = "", remote_traceback: str = "") -> None:
        super().__init__(message, hint)
        self.cause = cause
        self.remote_traceback = remote_traceback


class DamagedPayload(PilotfishError):
    """A stored or received payload is incomplete or has another format."""

    code = "P4200"


class PayloadTooLarge(BadInput):
    """A value or file does not fit into one frame."""

    code = "P1101"


def show_exception(error: Exception) -> str:
    """Returns an exception in one line, with the file and line that raised it. The file shows whether a plug-in is the cause."""
    from traceback import extract_tb

    place = "".join(f" ({frame.filename}, line {frame.lineno})" for frame in extract_tb(error.__traceback__)[-1:])
    return " ".join(f"{type(error).__name__}: {error}{place}".split())


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Returns a hint such as ``Did you mean 'alpha'?``. Returns an empty text if no known name is similar."""
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wrong.lower(), list(lowered), n=1, cutoff=0.6)
    return f"Did you mean {lowered[close[0]]!r}?" if close else ""
