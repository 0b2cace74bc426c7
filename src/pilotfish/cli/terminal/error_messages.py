"""Prints errors with a hint and a code.

Every code has an entry here, so that each error is shown with a next step; a test checks all error classes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from pilotfish.cli.terminal.screen import Screen, clean
from pilotfish.errors import BadInput, PilotfishError

SOME_FAILED = 1
BAD_INPUT = 2
NOT_STARTED = 3
CANNOT = 4
EXIT_STATUSES = {
    0: "All tasks succeeded, or the command did what was asked.",
    SOME_FAILED: "Some tasks failed, or a check found a problem.",
    BAD_INPUT: "The request itself is wrong; nothing was started.",
    NOT_STARTED: "Nothing can run the tasks yet; the run is kept and starts as soon as something fits.",
    CANNOT: "Pilotfish could not do what was asked: no master, no disk, no answer, or the pool was stopped.",
    130: "Interrupted by Ctrl-C.",
}


class UsageError(PilotfishError):
    """The command line has an unknown option, command or argument."""

    code = "P1001"


@dataclass(frozen=True, slots=True)
class ErrorExplanation:
    """The meaning of a code, and commands to suggest if the error itself names none."""

    meaning: str
    commands: tuple[str, ...]
    adds_detail: bool = True
    """Whether the meaning adds anything to the error's own message."""


EXPLANATIONS: dict[str, ErrorExplanation] = {
    "P1000": ErrorExplanation("Pilotfish could not do what was asked.", ("pilotfish doctor",), adds_detail=False),
    "P1001": ErrorExplanation("The command line has an option or a command that does not exist.", ("pilotfish --help",), adds_detail=False),
    "P1100": ErrorExplanation(
        "An argument or a file has a value that cannot be used; nothing was started.", ("pilotfish run --help",), adds_detail=False
    ),
    "P1101": ErrorExplanation(
        "A file or value is larger than one message may be. Put it where the workers can read it, and pass its path.",
        ("pilotfish run --here ...",),
    ),
    "P1200": ErrorExplanation(
        "A plug-in is installed and cannot be loaded. The message names its distribution and what went wrong.",
        ("pip list", "pip uninstall DISTRIBUTION"),
    ),
    "P1201": ErrorExplanation(
        "Two installed distributions provide a plug-in of the same kind and name, so it is unclear which one is meant.",
        ("pip uninstall DISTRIBUTION",),
    ),
    "P2100": ErrorExplanation(
        "The journal cannot be written or read, usually because the disk is full. Nothing is acknowledged until it can.",
        ("df -h", "pilotfish doctor"),
    ),
    "P2101": ErrorExplanation("Another master already serves this pool.", ("pilotfish status", "pilotfish stop")),
    "P2102": ErrorExplanation(
        "The disk of the journal is full: nothing new is accepted until there is space.", ("df -h", "pilotfish doctor")
    ),
    "P3100": ErrorExplanation("No master could be reached, or it refused this client.", ("pilotfish doctor", "pilotfish gc")),
    "P3101": ErrorExplanation("This pool has no runs.", ("pilotfish run -- COMMAND",), adds_detail=False),
    "P3102": ErrorExplanation("The pool was stopped while this command watched it; unfinished work is kept.", ("pilotfish attach",)),
    "P3200": ErrorExplanation(
        "A machine of a site could not be reached through ssh, or refused the login.", ("pilotfish site list", "pilotfish sites")
    ),
    "P4100": ErrorExplanation("A task failed and its retries are used up.", ("pilotfish tasks --state failed", "pilotfish rerun --failed")),
    "P4101": ErrorExplanation(
        "An Executor cannot run more calls, because its initializer failed or its master ended.", ("pilotfish doctor",)
    ),
    "P4102": ErrorExplanation("A process or directory of a temporary pool outlived it.", ("pilotfish gc", "pilotfish gc --remove")),
    "P4200": ErrorExplanation("The bytes of a result are damaged. Run the task again.", ("pilotfish rerun --failed",)),
    "P5100": ErrorExplanation("The agent's bundle is larger than it may be: a bug in Pilotfish.", ("pilotfish doctor --json",)),
    "P9001": ErrorExplanation(
        "Pilotfish detected an inconsistency and stopped: a bug in Pilotfish, not in your work.",
        ("pilotfish doctor --json",),
    ),
}
UNKNOWN = EXPLANATIONS["P1000"]


def explain(code: str) -> ErrorExplanation:
    return EXPLANATIONS.get(code, UNKNOWN)


def exit_status(error: PilotfishError) -> int:
    return BAD_INPUT if isinstance(error, BadInput) or error.code.startswith("P1") else CANNOT


def show_error(error: PilotfishError, as_json: bool = False) -> None:
    screen = Screen.of(sys.stderr)
    explanation = explain(error.code)
    if as_json:
        commands = () if error.hint else explanation.commands
        screen.json({"error": {"code": error.code, "message": str(error), "hint": error.hint, "commands": commands}})
        return
    first, *more = str(error).splitlines() or [type(error).__name__]
    screen.line(f"{screen.paint('error:', 'red')} {clean(first)}")
    for line in more:
        screen.line(f"  {clean(line)}")
    screen.line(f"  {screen.paint('fix:', 'bold')} {clean(error.hint or ' or '.join(explanation.commands))}")
    if explanation.adds_detail:
        screen.line(f"  {screen.paint('more:', 'dim')} pilotfish explain {error.code}")


# Causes of failures, shown in brackets, with the text of ``pilotfish explain``.

CAUSES: dict[str, str] = {
    "cancelled": "A user cancelled it, or its run was cancelled after too many failures.",
    "crash": "The process of a Python call died, perhaps inside a native library.",
    "damaged": "Its description was in a damaged part of the journal.",
    "dependency": "A task that it depends on failed.",
    "disk": "The disk of its worker is full or broken, as were those of the other workers where it was tried.",
    "exception": "A Python call raised an exception.",
    "exit": "The program ended with an exit status other than 0.",
    "killed": "Something outside killed it.",
    "missing-input": "An input is not available: it was changed or removed, or no connected worker has it.",
    "missing-output": "An output did not exist when the task had ended, or is neither a regular file nor a directory.",
    "no-directory": "The node does not have the working directory of the task.",
    "oom": "It used more memory than requested.",
    "poison": "Each worker that started it died.",
    "result": "Its result could not be returned: it cannot be pickled, is too large, or its files could not be stored.",
    "signal": "The program was ended by a signal.",
    "slot-lost": "The process on the worker in which it ran was killed from outside.",
    "spawn": "The program could not be started.",
    "time": "It took longer than its time limit.",
    "unknown": "The cause is unknown.",
    "unpickle": "The worker cannot import what the function or its arguments refer to.",
    "version": "The worker has another Python version than the program that made the call.",
    "worker-lost": "Its worker was lost more often than its losses allow.",
}
CAUSE_COMMANDS = ("pilotfish why TASK", "pilotfish logs TASK")
