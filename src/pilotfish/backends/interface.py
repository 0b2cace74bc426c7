"""Defines backends. A backend makes commands and reads their output.

A backend does not run commands and does not know where they run. Each of its functions makes a ``CommandExchange``: a command, and the
function that reads its output. The reader raises ``CommandRefused`` if the system refused. It raises ``UnclearAnswer`` if the output has no
usable information: the daemon is down, the command hung, or the text is unknown. Then the known state stays valid, and the master asks
again.
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
    """A command that runs on the login node of a site, or on this machine if the site has no login node. ``at``: another destination of
    ssh. ``bare``: whether the command runs without the environment variables of the site."""

    argv: tuple[str, ...]
    stdin: str = ""
    at: str = ""
    timeout_s: float = COMMAND_TIMEOUT_S
    bare: bool = False


@dataclass(frozen=True)
class CommandOutput:
    """The output of a command. ``status`` is None if there was no answer: the command timed out, or the login node was not reached.
    ``code``: the kind of problem, if it is known (see ``model/site.py``)."""

    status: int | None
    stdout: str = ""
    stderr: str = ""
    code: str = ""

    def complaint(self) -> str:
        """Returns the error message of the system in one line."""
        if self.status is None:
            return _one_line(self.stderr) or "it did not answer in time"
        return _one_line(self.stderr) or _one_line(self.stdout) or f"exit status {self.status}"

    def lines(self) -> list[str]:
        """Returns all lines of both streams that are not blank."""
        return [line for line in (*self.stdout.splitlines(), *self.stderr.splitlines()) if line.strip()]

    def require_success(self) -> str:
        """Returns the standard output. Raises UnclearAnswer if the command failed."""
        if self.status != 0:
            raise self.unclear()
        return self.stdout

    def require_cancelled(self, harmless: re.Pattern[str]) -> None:
        """Raises UnclearAnswer if the cancellation failed. Harmless lines, such as "already finished", are no failure."""
        lines = self.lines()
        if self.status is None or (self.status != 0 and not (lines and all(map(harmless.search, lines)))):
            raise self.unclear()

    def unclear(self, problem: str = "") -> UnclearAnswer:
        """Returns an error to raise if this output has no usable information. Its text is the problem and the message of the system."""
        return UnclearAnswer(f"{problem}: {self.complaint()}" if problem else self.complaint())

    def refused(self, reason: str = "", later: bool = False) -> CommandRefused:
        """Returns an error to raise if the system refused. If there is no reason, its text is the message of the system."""
        return CommandRefused(reason or self.complaint(), later)


class UnclearAnswer(Exception):
    """The answer has no usable information about pilots. The argument is the reason. ``unfinished``: whether the command may still run at
    the site. ``code``: the kind of problem, if it is known (see ``model/site.py``)."""

    unfinished = False
    code = ""


class CommandRefused(Exception):
    """The system refused. The argument is its message. ``later``: whether it may accept later, after a limit or an outage has passed."""

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

    For jobs that ended, ``well`` is False if the system or the job reports a failure. ``expired``: whether the job reached its time limit.
    """

    phase: int
    reason: str = ""
    well: bool = True
    expired: bool = False


@dataclass(frozen=True)
class PilotBatch:
    """Equal pilots that are submitted together. ``folder`` contains ``start.sh``. For pilot n (from 1), it also contains the credentials
    ``n.json`` and the output ``n.log``. ``bundle`` is the path of the agent."""

    tag: str
    """Job name, which is never used twice. If the answer to a submission is lost, the batch is found by this name."""
    count: int
    size: PilotSize
    folder: str
    bundle: str
    host: str = ""
    """Host on which the pilots run, for sites without a batch system."""


class Backend(Protocol):
    """One kind of batch system. ``traits``: its options, programs and variables, an attribute of the class. ``arrays``: maximum number of
    pilots per submission.

    Methods that return a list make one exchange per machine that must be asked. The answers are merged. If one answer is unclear, the other
    answers are still used. A job counts as not found only if all answers are clear.
    """

    @property
    def traits(self) -> BackendTraits: ...

    @property
    def arrays(self) -> int: ...

    def submit(self, site: Site, batch: PilotBatch) -> CommandExchange[list[str]]:
        """Submits a batch. The answer has one job id per pilot."""

    def query(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[dict[str, JobStatus]]]:
        """Asks for the status of jobs. The answer leaves out jobs that the system does not list. Such jobs may still exist."""

    def cancel(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[None]]:
        """Cancels jobs. It is no error if a job has ended already."""

    def find(self, site: Site, tag: str) -> list[CommandExchange[dict[int, str]]]:
        """Finds the jobs of a batch. The answer has the job ids by pilot number. It is empty if the system does not know the batch."""

    def past(self, site: Site, jobs: Sequence[str]) -> CommandExchange[dict[str, JobStatus]] | None:
        """Asks how jobs have ended if ``query`` no longer lists them. Returns None if the system keeps no record of ended jobs."""


def _one_line(text: str, max_length: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= max_length else line[: max_length - 1] + "…"
