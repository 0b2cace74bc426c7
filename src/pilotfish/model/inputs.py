"""What the world tells the machine. Time comes with every turn, so there is no input for it."""

from __future__ import annotations

from msgspec import Struct

from pilotfish.model.messages import FromAgent, FromClient
from pilotfish.model.site import Site
from pilotfish.model.task import Payload


class AgentMessage(Struct, frozen=True):
    """A proved agent sent a message over a link; the host has cut its body into payloads (large ones are stored already)."""

    link: int
    message: FromAgent
    payloads: list[Payload] = []
    pilot: str = ""
    """Whose key it proved to hold; empty for the key that speaks for any pilot."""


class ClientMessage(Struct, frozen=True):
    link: int
    message: FromClient
    payloads: list[Payload] = []


class LinkClosed(Struct, frozen=True):
    link: int


class LinkPaused(Struct, frozen=True):
    """The other side reads too slowly: send nothing bulky over this link until it is resumed."""

    link: int


class LinkResumed(Struct, frozen=True):
    link: int


class PilotAccepted(Struct, frozen=True):
    """A site took a pilot, after so many seconds, and calls it ``job``."""

    pilot: str
    job: str
    took_s: float = 0.0


class PilotSeen(Struct, frozen=True):
    """What the site says of a pilot that is there: does it run, and if not, why not, in its own words."""

    pilot: str
    runs: bool
    reason: str


class PilotGone(Struct, frozen=True):
    """A pilot is no longer at its site. ``well`` tells an orderly end from a death, unless nobody saw it (not ``witnessed``).

    ``cause``: one word for how it ended (see ``model/site.py``)."""

    pilot: str
    well: bool
    reason: str
    witnessed: bool = True
    cause: str = ""


class SiteReachability(Struct, frozen=True):
    """Whether a site answers and takes pilots. ``trouble``: what is in the way, in the words of the site; empty if nothing is."""

    site: str
    trouble: str
    code: str = ""
    """Kind of trouble, if it has a remedy of its own: BATCH_LIMIT or LOGIN_NEEDED."""


class CredentialSeen(Struct, frozen=True):
    """How long a credential is still good: infinite if it has no end or nobody knows, minus infinite if there is none.

    ``warn_s``: when less is left, a person should know. ``problem``: why it is missing, or could not be looked at."""

    name: str
    left_s: float
    warn_s: float
    renew: str
    problem: str = ""


class CredentialsSeen(Struct, frozen=True):
    """All credentials that a site wants to see, as they are now; none: they are no longer watched."""

    site: str
    credentials: tuple[CredentialSeen, ...]


class SitesRead(Struct, frozen=True):
    """All sites that the person has described. ``unread``: those whose descriptions make no sense; they stay as they were."""

    sites: dict[str, Site]
    unread: tuple[str, ...] = ()


class TransferMeasured(Struct, frozen=True):
    """So many bytes of contents went to a site, in so many seconds in which something was under way."""

    site: str
    size: int
    seconds: float


class SpaceChanged(Struct, frozen=True):
    """The journal's disk ran full, or has room again."""

    full: bool


class HomeRoomChanged(Struct, frozen=True):
    """Files that tasks made do not fit on the master's disk, and why; or, with no problem, they do again."""

    problem: str


class WorkWanted(Struct, frozen=True):
    """Somebody came to a pool that was stopped, and not only to look."""


Input = (
    AgentMessage
    | ClientMessage
    | LinkClosed
    | LinkPaused
    | LinkResumed
    | PilotAccepted
    | PilotSeen
    | PilotGone
    | SiteReachability
    | CredentialsSeen
    | SitesRead
    | SpaceChanged
    | HomeRoomChanged
    | TransferMeasured
    | WorkWanted
)
