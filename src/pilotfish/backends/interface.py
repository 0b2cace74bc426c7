"""Defines backends. A backend makes commands and reads their output.

A backend does not run commands and does not know where they run. Each of its functions makes a ``CommandExchange``: a command, and a
*reader*, which is a function that reads the output of the command. The reader raises ``CommandRefused`` if the system refused the command.
The reader raises ``UnclearAnswer`` if the output has no usable information. For example, the daemon is down, the command timed out, or the
text is unknown. After an ``UnclearAnswer``, the master keeps the last known state of the pilots and asks again.
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
"""Seconds after which a command that has not ended is killed."""


@dataclass(frozen=True)
class Command:
    """A command. It runs on the login node of a site, or on this machine if the site has no login node. ``at``: if not empty, the command
    runs on this host instead, through ssh. ``bare``: whether the command runs without the environment variables of the site."""

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
        """Returns the lines of stdout and stderr that are not blank."""
        return [line for line in (*self.stdout.splitlines(), *self.stderr.splitlines()) if line.strip()]

    def require_success(self) -> str:
        """Returns the standard output. Raises UnclearAnswer if the command failed."""
        if self.status != 0:
            raise self.unclear()
        return self.stdout

    def require_cancelled(self, harmless: re.Pattern[str]) -> None:
        """Raises UnclearAnswer if the output of a cancel command reports a failure. ``harmless``: matches lines that are no failure, such
        as "already finished"."""
        lines = self.lines()
        if self.status is None or (self.status != 0 and not (lines and all(map(harmless.search, lines)))):
            raise self.unclear()

    def unclear(self, problem: str = "") -> UnclearAnswer:
        """Returns the error for output without usable information. The text of the error is ``problem``, if there is one, and the message
        of the system."""
        return UnclearAnswer(f"{problem}: {self.complaint()}" if problem else self.complaint())

    def refused(self, reason: str = "", later: bool = False) -> CommandRefused:
        """Returns the error for a refused command. The text of the error is ``reason``; if ``reason`` is empty, it is the message of the
        system. ``later``: whether the system possibly accepts the command at a later time."""
        return CommandRefused(reason or self.complaint(), later)


class UnclearAnswer(Exception):
    """The answer has no usable information about pilots. The argument is the reason. ``unfinished``: whether the command possibly still
    runs at the site. ``code``: the kind of problem, if it is known (see ``model/site.py``)."""

    unfinished = False
    code = ""


class CommandRefused(Exception):
    """The system refused a command. The argument is the message of the system. ``later``: whether the system possibly accepts the command
    at a later time."""

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
    """The status of one job. ``phase``: QUEUED, RUNNING or ENDED. ``reason``: a text of the batch system: why the job waits, or how it
    ended. ``well``: False if the job ended and the system or the job reports a failure. ``expired``: whether the job reached its time
    limit.
    """

    phase: int
    reason: str = ""
    well: bool = True
    expired: bool = False


@dataclass(frozen=True)
class PilotBatch:
    """Equal pilots that are submitted together. The directory ``folder`` contains ``start.sh``. For pilot n (from 1), ``folder`` also
    contains the credentials ``n.json`` and the output ``n.log``. ``bundle`` is the path of the agent."""

    tag: str
    """Job name, which no other batch has. If the answer to a submission is lost, the batch is found by this name."""
    count: int
    size: PilotSize
    folder: str
    bundle: str
    host: str = ""
    """Host on which the pilots run, for sites without a batch system."""


class Backend(Protocol):
    """Adapter for one kind of system. ``traits``, a class attribute: site options, programs and environment variables of the system.
    ``arrays``: maximum number of pilots per submission.

    Some methods return a list of exchanges: one for each machine that must be asked. The answers are merged. If one answer is unclear, the
    other answers are still used. A job counts as not found only if all answers are clear.
    """

    @property
    def traits(self) -> BackendTraits: ...

    @property
    def arrays(self) -> int: ...

    def submit(self, site: Site, batch: PilotBatch) -> CommandExchange[list[str]]:
        """Submits a batch. The answer has one job id per pilot."""

    def query(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[dict[str, JobStatus]]]:
        """Asks for the status of jobs. The answer leaves out jobs that the system does not list. These jobs possibly still exist."""

    def cancel(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[None]]:
        """Cancels jobs. If a job has already ended, this is no error."""

    def find(self, site: Site, tag: str) -> list[CommandExchange[dict[int, str]]]:
        """Finds the jobs of a batch. The answer maps pilot numbers to job ids. It is empty if the system does not know the batch."""

    def past(self, site: Site, jobs: Sequence[str]) -> CommandExchange[dict[str, JobStatus]] | None:
        """Asks how jobs have ended that ``query`` no longer lists. Returns None if ``query`` lists all ended jobs, or if the system keeps
        no record of ended jobs."""


def _one_line(text: str, max_length: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= max_length else line[: max_length - 1] + "…"
