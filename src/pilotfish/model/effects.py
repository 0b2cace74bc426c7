"""Lists what the machine asks its host to do after the facts of the turn are durable."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from pilotfish.model.messages import Message
from pilotfish.model.site import PilotSize, Site
from pilotfish.model.task import Payload, StoredPayload


class Effect(Struct, frozen=True):
    """Base of all effects."""


class Send(Effect, frozen=True):
    """Send a message with the payloads as its body. ``whole``: send shared payloads as bytes, because the receiver cannot read the payload
    files."""

    link: int
    message: Message
    payloads: list[Payload] = []
    whole: bool = False


class IntroducePeer(Effect, frozen=True):
    """Send a worker the keys of its site and the addresses of some peers."""

    link: int
    site: str
    contacts: list[Any]
    term: int = 0
    master: Any = None


class HangUp(Effect, frozen=True):
    link: int


class SubmitPilot(Effect, frozen=True):
    pilot: str
    site: str
    size: PilotSize


class AdoptPilot(Effect, frozen=True):
    """After a restart, find the batch job of a pilot at its site. If the site has no such job, the pilot was never submitted: submit the
    pilot now."""

    pilot: str
    site: str
    size: PilotSize
    job: str


class CancelPilot(Effect, frozen=True):
    pilot: str


class DescribeSite(Effect, frozen=True):
    """Use this configuration of a site. If the configuration is None, the site was removed."""

    name: str
    site: Site | None


class ReadSites(Effect, frozen=True):
    """Read the configuration of all sites again. The answer is ``SitesRead``."""


class ReleasePayload(Effect, frozen=True):
    """Delete a payload to which nothing refers any more. ``refused``: the payload was never used, because its message was refused. The
    sender possibly sends the payload again."""

    stored: StoredPayload
    refused: bool = False


class KeepPayload(Effect, frozen=True):
    """Count one more reference to this payload, because one more task or spec uses it."""

    stored: StoredPayload


class ReleaseContent(Effect, frozen=True):
    """Delete a content that no run needs any more."""

    digest: str


class StartApplication(Effect, frozen=True):
    """Start the process that hosts the ApplicationManager of a run."""

    run: int
    uid: str
    path: str


class Finish(Effect, frozen=True):
    """End the master, because a user stopped the pool, or because there is no more work and no client."""

    reason: str
