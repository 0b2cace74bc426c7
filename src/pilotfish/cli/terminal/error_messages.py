"""Prints errors with a hint and a code.

Each code has an entry here, so that each error message names a next step. A test compares the entries with all error classes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

import click

from pilotfish.cli.terminal.screen import Screen, clean
from pilotfish.errors import BadInput, Correction, PilotfishError, did_you_mean

SOME_FAILED = 1
BAD_INPUT = 2
NOT_STARTED = 3
CANNOT = 4
EXIT_STATUSES = {
    0: "All tasks succeeded, or the command did what was asked.",
    SOME_FAILED: "Some tasks failed, or a check found a problem.",
    BAD_INPUT: "The command line or an input file is wrong. Nothing was started.",
    NOT_STARTED: "No worker can run the tasks yet. The run is kept and starts as soon as a suitable worker joins.",
    CANNOT: "Pilotfish could not do what was asked: no master was found, the disk is full, there was no answer, or the pool was stopped.",
    130: "The command was interrupted by Ctrl-C.",
}


class UsageError(PilotfishError):
    """The command line has an unknown option, command or argument."""

    code = "P1001"


KNOWN_ELSEWHERE = {
    "top": "status --watch",
    "watch": "status --watch",
    "ps": "status",
    "ls": "status",
    "list": "status",
    "jobs": "status",
    "queue": "status",
    "submit": "run",
    **dict.fromkeys(("kill", "scancel", "qdel", "bkill", "condor_rm"), "cancel"),
    **dict.fromkeys(("rm", "delete", "remove"), "forget"),
    **dict.fromkeys(("squeue", "qstat", "bjobs", "condor_q"), "status"),
    **dict.fromkeys(("sbatch", "srun", "qsub", "bsub", "condor_submit"), "run"),
    "sacct": "tasks",
    "sinfo": "workers",
    "wait": "attach",
    "retry": "rerun",
    "output": "logs",
    "pool": "pools",
}
"""Maps commands of other programs to the command of Pilotfish that does the same."""
DESTRUCTIVE = frozenset({"stop", "cancel", "forget", "gc"})


def suggest_command(name: str, known: Iterable[str]) -> str:
    """Returns a hint with the command that the user probably meant. Returns an empty text if no command is similar.

    If a command stops or deletes something, it is suggested only for a name with the same first letter. So ``stop`` is not suggested for
    ``top``.
    """
    names = list(known)
    ours = KNOWN_ELSEWHERE.get(name, "").split()
    if ours and ours[0] in names:
        return Correction(f"Did you mean {' '.join(ours)!r}?", name, "", ours)
    return did_you_mean(name, [command for command in names if command not in DESTRUCTIVE or command[:1] == name[:1].lower()])


class SuggestingGroup(click.Group):
    """A group of commands. If the user types an unknown command, the group suggests the most similar one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            typed = f"{ctx.command_path} {name}".removeprefix("pilotfish ")
            raise UsageError(f"there is no command {typed!r}", suggest_command(name, known) or f"See them all: {ctx.command_path} --help")
        return super().resolve_command(ctx, args)


@dataclass(frozen=True, slots=True)
class ErrorExplanation:
    """The meaning of a code, and the commands to suggest if an error with this code has no hint."""

    meaning: str
    commands: tuple[str, ...]
    adds_detail: bool = True
    """Whether the meaning adds something to the message of the error."""


EXPLANATIONS: dict[str, ErrorExplanation] = {
    "P1000": ErrorExplanation("Pilotfish could not do what was asked.", ("pilotfish doctor",), adds_detail=False),
    "P1001": ErrorExplanation("The command line has an option or a command that does not exist.", ("pilotfish --help",), adds_detail=False),
    "P1100": ErrorExplanation(
        "An argument or a file has a value that cannot be used; nothing was started.", ("pilotfish run --help",), adds_detail=False
    ),
    "P1101": ErrorExplanation(
        "A file or value is larger than the maximum size of a message. Put it in a place that the workers can read, and pass its path.",
        ("pilotfish run --here ...",),
    ),
    "P1200": ErrorExplanation(
        "A plug-in is installed, but it cannot be loaded. The message names its distribution and the reason.",
        ("pip list", "pip uninstall DISTRIBUTION"),
    ),
    "P1201": ErrorExplanation(
        "Two installed distributions provide a plug-in of the same kind and name. Pilotfish cannot know which of the two to use.",
        ("pip uninstall DISTRIBUTION",),
    ),
    "P2100": ErrorExplanation(
        "The journal cannot be written or read, for example because of a disk error. The master cannot run until this is solved.",
        ("df -h", "pilotfish doctor"),
    ),
    "P2101": ErrorExplanation("Another master already serves this pool.", ("pilotfish status", "pilotfish stop")),
    "P2102": ErrorExplanation(
        "The disk of the journal is full. The master accepts no new requests until there is space.", ("df -h", "pilotfish doctor")
    ),
    "P3100": ErrorExplanation("No master could be reached, or the master refused this client.", ("pilotfish doctor", "pilotfish gc")),
    "P3101": ErrorExplanation("This pool has no runs.", ("pilotfish run -- COMMAND",), adds_detail=False),
    "P3102": ErrorExplanation("The pool was stopped while this command watched it. Unfinished tasks are kept.", ("pilotfish attach",)),
    "P3200": ErrorExplanation(
        "A machine of a site could not be reached through ssh, or the machine refused the login.",
        ("pilotfish site list", "pilotfish sites"),
    ),
    "P4100": ErrorExplanation("A task failed and its retries are used up.", ("pilotfish tasks --state failed", "pilotfish rerun --failed")),
    "P4101": ErrorExplanation(
        "An Executor cannot run more calls, because its initializer failed or its master ended.", ("pilotfish doctor",)
    ),
    "P4102": ErrorExplanation(
        "A process or directory of a temporary pool still exists after the end of the pool.", ("pilotfish gc", "pilotfish gc --remove")
    ),
    "P4103": ErrorExplanation(
        "A task succeeded, but an output file could not be copied to its destination, for example because a file exists there. The pool "
        "keeps the output file until its run is forgotten.",
        ("pilotfish attach", "pilotfish attach --overwrite"),
    ),
    "P4104": ErrorExplanation(
        "A call of an Executor asks for more than the private pool of the Executor has. A private pool never gets other workers. Ask for "
        "less, create the Executor with more max_workers, or use a pool that has such workers: pool= or sites=.",
        ("pilotfish workers", "pilotfish sites"),
    ),
    "P4200": ErrorExplanation("The bytes of a result are damaged. Run the task again.", ("pilotfish rerun --failed",)),
    "P5100": ErrorExplanation(
        "The file that contains the agent is larger than its maximum size. This is a bug in Pilotfish.", ("pilotfish doctor --json",)
    ),
    "P9001": ErrorExplanation(
        "Pilotfish detected an inconsistency and stopped. This is a bug in Pilotfish, not an error in your work.",
        ("pilotfish doctor --json",),
    ),
}


def exit_status(error: PilotfishError) -> int:
    return BAD_INPUT if isinstance(error, BadInput) or error.code.startswith("P1") else CANNOT


def show_error(error: PilotfishError, as_json: bool = False, corrected: str = "") -> None:
    """Prints an error with its fix. ``corrected``: the typed command without the mistake, or an empty text."""
    screen = Screen.of(sys.stderr)
    explanation = EXPLANATIONS.get(error.code, EXPLANATIONS["P1000"])
    if as_json:
        commands = (corrected,) if corrected else () if error.hint else explanation.commands
        screen.json({"error": {"code": error.code, "message": str(error), "hint": error.hint, "commands": commands}})
        return
    first, *more = str(error).splitlines() or [type(error).__name__]
    screen.line(f"{screen.paint('error:', 'red')} {clean(first)}")
    for line in more:
        screen.line(f"  {clean(line)}")
    screen.line(f"  {screen.paint('fix:', 'bold')} {clean(error.hint or ' or '.join(explanation.commands))}")
    if corrected:
        screen.line(f"  {screen.paint('fix:', 'bold')} {clean(corrected)}")
    if explanation.adds_detail:
        screen.line(f"  {screen.paint('more:', 'dim')} pilotfish explain {error.code}")


# Causes of failures, with the text of ``pilotfish explain``. Other commands show a cause in brackets.

CAUSES: dict[str, str] = {
    "cancelled": "A user cancelled the task, or the run of the task was cancelled after too many failures.",
    "crash": "The process that ran a Python call died, perhaps inside a native library.",
    "damaged": "The description of the task was in a damaged part of the journal.",
    "dependency": "The task depends on another task, and that task failed or was cancelled. The task itself never ran.",
    "disk": "The disk of the worker is full or broken. The task was also tried on other workers, and they had the same problem.",
    "exception": "A Python call raised an exception.",
    "exit": "The program ended with an exit status other than 0.",
    "killed": "The program was killed by another process or by the system (SIGKILL), perhaps for lack of memory.",
    "missing-input": "An input of the task is not available: the file was changed or removed, or no connected worker has it.",
    "missing-output": "When the task had ended, one of its outputs did not exist, or was neither a regular file nor a directory.",
    "no-directory": "The node does not have the working directory of the task.",
    "oom": "The task used more memory than it requested.",
    "poison": "Several workers died while they ran the task. The last of these workers ran no other task, so the task must be the reason.",
    "result": "The result could not be returned: it cannot be pickled, it is too large, or the output files could not be stored.",
    "signal": "The program was ended by a signal.",
    "slot-lost": "The slot that ran the task was killed or stopped, or it could not continue. A slot is a process of the worker.",
    "spawn": "The program could not be started.",
    "time": "The task took longer than its time limit.",
    "unknown": "The cause is unknown.",
    "unpickle": "The worker cannot import a module or a name that the function or its arguments use.",
    "version": "The worker has another Python version than the program that submitted the call.",
    "worker-lost": "Too many workers were lost while they ran the task: more than the task option 'losses' allows.",
}
CAUSE_COMMANDS = ("pilotfish why TASK", "pilotfish logs TASK")
