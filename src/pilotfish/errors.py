"""What a person or a caller may have to deal with. Each says what happened, and ``hint`` says what to do now."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PilotfishError(Exception):
    """Base of all errors that Pilotfish raises on purpose."""

    code = "P1000"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            # A Python traceback shows it below the message; the command line has a line of its own for it.
            self.add_note(hint)


class BadInput(PilotfishError):
    """Something that a person wrote cannot be used: the message names the field and the value, the hint the fix."""

    code = "P1100"


class IllegalTransition(PilotfishError):
    """The machine was about to do what its tables forbid: a bug in Pilotfish, never in a task."""

    code = "P9001"


class JournalError(PilotfishError):
    """The journal cannot be written or read; nothing may be acknowledged."""

    code = "P2100"


class JournalFull(PilotfishError):
    """There is no room: nothing of what was asked was kept, what was kept before is safe, and it works again when space returns."""

    code = "P2102"


class AlreadyRunning(PilotfishError):
    """Another master holds this pool."""

    code = "P2101"


class ConnectionFailed(PilotfishError):
    """No master could be reached, or it refused us."""

    code = "P3100"


class PoolStopped(PilotfishError):
    """Somebody stopped the pool while we watched."""

    code = "P3102"


class TaskFailed(PilotfishError):
    """A task ended badly; the message is its cause, ``remote_traceback`` what its Python said."""

    code = "P4100"

    def __init__(self, message: str, hint: str = "", cause: str = "", remote_traceback: str = "") -> None:
        super().__init__(message, hint)
        self.cause = cause
        self.remote_traceback = remote_traceback


class DamagedPayload(PilotfishError):
    """A stored or received payload is incomplete or has another format."""

    code = "P4200"


class PayloadTooLarge(BadInput):
    """A value or file exceeds what one frame may carry."""

    code = "P1101"


# The nearest name to a misspelt one.


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """``Did you mean 'alpha'?``, or nothing when no name is near."""
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wrong.lower(), list(lowered), n=1, cutoff=0.6)
    return f"Did you mean {lowered[close[0]]!r}?" if close else ""
