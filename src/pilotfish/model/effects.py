"""What the machine asks the world to do, once the facts behind it are durable."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from pilotfish.model.messages import Message
from pilotfish.model.site import PilotSize, Site
from pilotfish.model.task import Payload, StoredPayload


class Send(Struct, frozen=True):
    """Send a message; its body is the payloads, one behind the other. ``whole``: shared ones too, for a peer that cannot read them."""

    link: int
    message: Message
    payloads: list[Payload] = []
    whole: bool = False


class IntroducePeer(Struct, frozen=True):
    """Make a worker known to its peers: give it the keys of its site, and these contacts."""

    link: int
    site: str
    contacts: list[Any]
    term: int = 0
    master: Any = None


class HangUp(Struct, frozen=True):
    link: int


class SubmitPilot(Struct, frozen=True):
    pilot: str
    site: str
    size: PilotSize


class AdoptPilot(Struct, frozen=True):
    """After a restart: is this pilot still at its site? Found again by its tag, or it was never submitted."""

    pilot: str
    site: str
    size: PilotSize
    job: str


class CancelPilot(Struct, frozen=True):
    pilot: str


class DescribeSite(Struct, frozen=True):
    """A site is there, is described anew, or (None) is there no longer."""

    name: str
    site: Site | None


class ReadSites(Struct, frozen=True):
    """Look again what the person has written about sites; the answer is SitesRead."""


class ReleasePayload(Struct, frozen=True):
    """Nothing refers to these bytes any more. ``refused``: nothing did, and whoever sent them may send them again."""

    stored: StoredPayload
    refused: bool = False


class KeepPayload(Struct, frozen=True):
    """One more task refers to these bytes."""

    stored: StoredPayload


class ReleaseContent(Struct, frozen=True):
    """No run needs this content any more: the master need not keep it."""

    digest: str


class StartApplication(Struct, frozen=True):
    """Start the process that hosts the ApplicationManager of a run."""

    run: int
    uid: str
    path: str


class Finish(Struct, frozen=True):
    """All work is done and nobody is here: the master may end."""

    reason: str


Effect = (
    Send
    | IntroducePeer
    | HangUp
    | SubmitPilot
    | AdoptPilot
    | CancelPilot
    | DescribeSite
    | ReadSites
    | ReleasePayload
    | KeepPayload
    | ReleaseContent
    | StartApplication
    | Finish
)
