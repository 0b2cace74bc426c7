"""How a batch system is spoken to: a command goes out, text comes in. Pure: who runs the command, and where, is not known here.

A backend is a handful of functions that make an ``Exchange`` each: what to run, and how to read the answer. Reading raises ``Unclear`` when
the answer tells nothing (the daemon is down, the command hung, the text is strange): what was known before stays true, and it is asked
again later. It raises ``Refused`` when the system said no.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pilotfish.model.site import PilotSize, Site

Result_co = TypeVar("Result_co", covariant=True)

QUEUED, RUNNING, ENDED = range(3)
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Command:
    """What to run at a site: on its login node, or here if it has none. ``at``: on this machine instead, as one would give it to ssh.
    ``bare``: without the variables that the site's own commands are given."""

    argv: tuple[str, ...]
    stdin: str = ""
    at: str = ""
    patience_s: float = PATIENCE_S
    bare: bool = False


@dataclass(frozen=True)
class CommandOutput:
    """``status`` is None when nobody answered: it took too long, or the login node could not be reached."""

    status: int | None
    stdout: str = ""
    stderr: str = ""

    def complaint(self) -> str:
        """The system's own words, in one line."""
        if self.status is None:
            return _one_line(self.stderr) or "it did not answer in time"
        return _one_line(self.stderr) or _one_line(self.stdout) or f"exit status {self.status}"


class UnclearAnswer(Exception):
    """The answer tells nothing about any pilot. The argument is why. ``unfinished``: the command may still be at work over there."""

    unfinished = False


class CommandRefused(Exception):
    """The system said no, in its own words. ``later``: a limit or an outage, so that it may say yes another time."""

    def __init__(self, reason: str, later: bool = False) -> None:
        super().__init__(reason)
        self.later = later


@dataclass(frozen=True)
class CommandExchange(Generic[Result_co]):
    command: Command
    read: Callable[[CommandOutput], Result_co]


@dataclass(frozen=True)
class JobStatus:
    """What the batch system says of one job. ``reason``: why it waits, or how it ended, in its own words.

    ``well`` is of interest when it ended: False if the system, or the job itself, says that something went wrong. ``expired``: its time was
    over.
    """

    phase: int
    reason: str = ""
    well: bool = True
    expired: bool = False


@dataclass(frozen=True)
class PilotBatch:
    """Equal pilots that are submitted together. Their files lie in ``folder``: ``start.sh``, and for the n-th of them, counted from 1,
    ``n.json`` (its credentials); it shall write its output to ``n.log`` there. ``bundle`` is the agent."""

    tag: str
    """The name of the job, by which it is found again when the answer to its submission was lost. Never used twice."""
    count: int
    size: PilotSize
    folder: str
    bundle: str
    host: str = ""
    """For machines without a batch system: the one of the site's hosts that is to run it."""


class Backend(Protocol):
    """``arrays``: the most pilots that one submission can hold.

    What returns a list makes one exchange, or one for each machine that has to be asked: what they tell adds up, and one that is unclear
    spoils none of the others. To find an order is only clear without a result if all of them are clear.
    """

    arrays: int

    def submit(self, site: Site, order: PilotBatch) -> CommandExchange[list[str]]:
        """The jobs' ids, one for each pilot of the order."""

    def query(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[dict[str, JobStatus]]]:
        """All of them at once. What the system does not list is left out, which says nothing about it."""

    def cancel(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[None]]:
        """Jobs that ended already are no error."""

    def find(self, site: Site, tag: str) -> list[CommandExchange[dict[int, str]]]:
        """The ids of the pilots of an order, by their numbers; empty if the system does not know it."""

    def past(self, site: Site, jobs: Sequence[str]) -> CommandExchange[dict[str, JobStatus]] | None:
        """Of jobs that are no longer listed: how they ended, as far as the system remembers. None: it has no memory."""


def _one_line(text: str, most: int = 300) -> str:
    words = " ".join(text.split())
    return words if len(words) <= most else words[: most - 1] + "…"
