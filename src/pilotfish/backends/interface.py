"""Defines a backend: commands out, parsed text in.

A backend is pure: it neither runs commands nor knows where they run. Each of its functions makes a ``CommandExchange``: a command, and the
function that reads its output. Reading raises ``UnclearAnswer`` if the output tells nothing (the daemon is down, the command hung, the text
is strange); what was known before stays true, and the master asks again later. It raises ``CommandRefused`` if the system refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pilotfish.model.backend_traits import BackendTraits
from pilotfish.model.site import PilotSize, Site

Result_co = TypeVar("Result_co", covariant=True)

QUEUED, RUNNING, ENDED = range(3)
COMMAND_TIMEOUT_S = 60.0
"""Seconds until a command without an answer is killed."""


@dataclass(frozen=True)
class Command:
    """A command to run on the login node of a site, or on this machine if it has none. ``at``: another destination of ssh.
    ``bare``: run it without the site's environment variables."""

    argv: tuple[str, ...]
    stdin: str = ""
    at: str = ""
    timeout_s: float = COMMAND_TIMEOUT_S
    bare: bool = False


@dataclass(frozen=True)
class CommandOutput:
    """What a command printed. ``status`` is None without an answer: the command timed out, or the login node was not reached. ``code``:
    the kind of problem, if it is known (see ``model/site.py``)."""

    status: int | None
    stdout: str = ""
    stderr: str = ""
    code: str = ""

    def complaint(self) -> str:
        """The system's error message in one line."""
        if self.status is None:
            return _one_line(self.stderr) or "it did not answer in time"
        return _one_line(self.stderr) or _one_line(self.stdout) or f"exit status {self.status}"

    def lines(self) -> list[str]:
        """All lines of both streams that are not blank."""
        return [line for line in (*self.stdout.splitlines(), *self.stderr.splitlines()) if line.strip()]

    def require_success(self) -> str:
        """Standard output of a command that succeeded; otherwise raises UnclearAnswer."""
        if self.status != 0:
            raise self.unclear()
        return self.stdout

    def require_cancelled(self, harmless: re.Pattern[str]) -> None:
        """Raises UnclearAnswer unless the cancellation succeeded, or all that was printed is harmless, such as "already finished"."""
        lines = self.lines()
        if self.status is None or (self.status != 0 and not (lines and all(map(harmless.search, lines)))):
            raise self.unclear()

    def unclear(self, problem: str = "") -> UnclearAnswer:
        """An error to raise: this output tells nothing. The system's message follows the problem."""
        return UnclearAnswer(f"{problem}: {self.complaint()}" if problem else self.complaint())

    def refused(self, reason: str = "", later: bool = False) -> CommandRefused:
        """An error to raise: the system refused. Without a reason, the system's message is taken."""
        return CommandRefused(reason or self.complaint(), later)


class UnclearAnswer(Exception):
    """The answer tells nothing about any pilot; the argument says why. ``unfinished``: the command may still be running at the site.
    ``code``: the kind of problem, if it is known (see ``model/site.py``)."""

    unfinished = False
    code = ""


class CommandRefused(Exception):
    """The system refused; the argument is its message. ``later``: a limit or an outage, so that it may accept at another time."""

    code = ""

    def __init__(self, reason: str, later: bool = False) -> None:
        super().__init__(reason)
        self.later = later


@dataclass(frozen=True)
class CommandExchange(Generic[Result_co]):
    """A command and the function that reads its output."""

    command: Command
    read: Callable[[CommandOutput], Result_co]


@dataclass(frozen=True)
class JobStatus:
    """The status of one job. ``reason``: why it waits or how it ended, as the batch system reports it.

    For jobs that ended: ``well`` is False if the system or the job reports a failure; ``expired``: the job reached its time limit.
    """

    phase: int
    reason: str = ""
    well: bool = True
    expired: bool = False


@dataclass(frozen=True)
class PilotBatch:
    """Equal pilots that are submitted together. ``folder`` holds ``start.sh`` and, for pilot n (from 1), its credentials ``n.json``; it
    writes its output to ``n.log`` there. ``bundle`` is the path of the agent."""

    tag: str
    """Job name, unique forever. A batch is found by it if the answer to its submission was lost."""
    count: int
    size: PilotSize
    folder: str
    bundle: str
    host: str = ""
    """Host to run on, for sites without a batch system."""


class Backend(Protocol):
    """One kind of batch system. ``traits``: its options, programs and variables, an attribute of the class. ``arrays``: maximum pilots per
    submission.

    Methods that return a list make one exchange per machine that has to be asked. Their answers are merged; an unclear one does not spoil
    the others. "Not found" counts only if all of them are clear.
    """

    @property
    def traits(self) -> BackendTraits: ...

    @property
    def arrays(self) -> int: ...

    def submit(self, site: Site, batch: PilotBatch) -> CommandExchange[list[str]]:
        """Submit a batch. Answer: one job id per pilot."""

    def query(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[dict[str, JobStatus]]]:
        """Ask for the status of jobs. Jobs that the system does not list are left out, which proves nothing."""

    def cancel(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[None]]:
        """Cancel jobs. Jobs that have ended already are no error."""

    def find(self, site: Site, tag: str) -> list[CommandExchange[dict[int, str]]]:
        """Find the jobs of a batch. Answer: job ids by the numbers of the pilots; empty if the system does not know the batch."""

    def past(self, site: Site, jobs: Sequence[str]) -> CommandExchange[dict[str, JobStatus]] | None:
        """Ask how jobs ended that are no longer listed. None: the system keeps no record."""


def _one_line(text: str, max_length: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= max_length else line[: max_length - 1] + "…"
