"""Lists what the host reports to the machine. The time is not an input: the host passes it with every turn."""

from __future__ import annotations

from msgspec import Struct

from pilotfish.model.messages import FromAgent, FromClient
from pilotfish.model.site import Site
from pilotfish.model.task import Payload


class Input(Struct, frozen=True):
    """Base of all inputs."""


class AgentMessage(Input, frozen=True):
    """A message of an authenticated agent. The host has split the body into payloads, and has stored large payloads."""

    link: int
    message: FromAgent
    payloads: list[Payload] = []
    pilot: str = ""
    """Pilot whose key the agent used; empty if the agent used the key that is valid for all pilots."""


class ClientMessage(Input, frozen=True):
    link: int
    message: FromClient
    payloads: list[Payload] = []


class LinkClosed(Input, frozen=True):
    link: int


class LinkPaused(Input, frozen=True):
    """The agent or client at the other end of a link reads too slowly (``paused``) or reads fast enough again. Over a paused link, the
    machine sends nothing large."""

    link: int
    paused: bool


class PilotAccepted(Input, frozen=True):
    """A site accepted a pilot after ``took_s`` seconds, as batch job ``job``."""

    pilot: str
    job: str
    took_s: float = 0.0


class PilotSeen(Input, frozen=True):
    """A site reports whether a pilot runs. If the pilot does not run, the site reports the reason in its own words."""

    pilot: str
    runs: bool
    reason: str


class PilotEndReported(Input, frozen=True):
    """A pilot is no longer at its site. ``well``: whether the pilot ended normally. ``witnessed``: whether the end was observed. If False,
    Pilotfish only concluded that the pilot has ended.

    ``cause``: one word for how the pilot ended (see ``model/site.py``).
    """

    pilot: str
    well: bool
    reason: str
    witnessed: bool = True
    cause: str = ""


class SiteReachability(Input, frozen=True):
    """A site answers and accepts pilots, or has a problem. ``trouble``: the site's own message about the problem; empty if there is no
    problem."""

    site: str
    trouble: str
    code: str = ""
    """BATCH_LIMIT or LOGIN_NEEDED, because these two problems have special fixes; empty for other problems."""


class CredentialSeen(Struct, frozen=True):
    """One credential of a site. ``left_s``: seconds until the credential expires. The value is infinite if the credential never expires or
    if the time of expiry is unknown. The value is minus infinite if the credential is missing.

    ``warn_s``: the user is warned when fewer seconds are left. ``problem``: why the credential is missing or could not be checked.
    """

    name: str
    left_s: float
    warn_s: float
    renew: str
    problem: str = ""


class CredentialsSeen(Input, frozen=True):
    """All credentials of a site, as they are now. If the list is empty, credentials of the site are no longer checked."""

    site: str
    credentials: tuple[CredentialSeen, ...]


class SitesRead(Input, frozen=True):
    """All configured sites. ``unread``: sites whose new configuration is invalid. Their previous configuration stays in use."""

    sites: dict[str, Site]
    unread: tuple[str, ...] = ()


class TransferMeasured(Input, frozen=True):
    """The master sent ``size`` bytes of contents to a site. ``seconds``: the time during which a transfer was active."""

    site: str
    size: int
    seconds: float


class JournalSpaceChanged(Input, frozen=True):
    """The journal's disk is full, or has room again."""

    full: bool


class OutputSpaceChanged(Input, frozen=True):
    """Output files do not fit on the master's disk, or fit again. ``problem``: the reason; empty if they fit."""

    problem: str


class ResumeRequested(Input, frozen=True):
    """A client wants to continue a stopped pool, not only to inspect it."""
