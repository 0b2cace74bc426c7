"""Checks how long the credentials of a site remain valid: tickets, proxies, certificates and tokens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from pilotfish.backends.credential_commands import Credential, Lifetime, credential
from pilotfish.backends.interface import CommandRefused, UnclearAnswer
from pilotfish.core.explain.site_reasons import describe_credential
from pilotfish.master.sites.child_process import run_child
from pilotfish.master.sites.site_access import SiteAccess
from pilotfish.model import inputs as i
from pilotfish.model.site import Site

log = logging.getLogger(__name__)

MAX_INTERVAL_S = 300.0
MIN_INTERVAL_S = 15.0
"""Shortest interval between two checks in seconds. It is used shortly before a credential expires, and while pilots wait for a new
credential."""
WARN_S = 3600.0
"""The user is warned when a credential expires in less than this many seconds."""
WARN_SHARE = 0.25
"""In addition, at most this fraction of the lifetime must be left. Without this rule, a ticket that lasts ten minutes would cause a warning
at once."""


@dataclass(slots=True)
class CredentialState:
    """The last known state of one credential. ``ends_at`` is wall-clock time, which also advances while this machine sleeps."""

    credential: Credential
    ends_at: float
    warn_s: float = 0.0
    problem: str = ""

    def left_s(self) -> float:
        return self.ends_at - time.time()

    def seen(self) -> i.CredentialSeen:
        return i.CredentialSeen(self.credential.name, self.left_s(), self.warn_s, self.credential.renew, self.problem)


class CredentialWatch:
    """Checks the credentials of one site. Checks only while the site has pilots, so that an unused site needs no login."""

    def __init__(self, name: str, site: Callable[[], Site], access: SiteAccess, tell: Callable[[i.Input], None]) -> None:
        self.name = name
        self._site = site
        self._access = access
        self._tell = tell
        self._states: dict[str, CredentialState] = {}
        self._checked, self._wake = asyncio.Event(), asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._site().credentials and (self._watching is None or self._watching.done()):
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        """Stops checking and forgets the states of all credentials, because the states will be out of date at the next start."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
            self._states.clear()
            self._checked.set()  # Otherwise callers of require_valid would wait forever.
            self._checked = asyncio.Event()
            self._tell(i.CredentialsSeen(self.name, ()))

    async def require_valid(self) -> bool:
        """Returns True if all credentials are valid. Raises UnclearAnswer if a credential is missing or expired. A credential that cannot
        be checked counts as valid."""
        if self._site().credentials:
            self.start()
            await self._checked.wait()
            trouble = self.trouble()
            if trouble:
                raise UnclearAnswer(trouble)
        return True

    def trouble(self) -> str:
        """Lists the credentials that are missing or expired, with the commands that renew them. The text is empty if all are valid."""
        return "; ".join(
            f"{describe_credential(state.credential.name, state.left_s(), state.problem)}: {state.credential.renew}"
            for state in self._states.values()
            if state.left_s() <= 0
        )

    async def check(self) -> bool:
        """Checks all credentials. Returns True if all are valid."""
        site = self._site()
        required = {text: credential(text, site) for text in site.credentials}
        await asyncio.gather(*(self._ask(text, needed) for text, needed in required.items()))
        self._states = {text: self._states[text] for text in required if text in self._states}
        if required:
            self._tell(i.CredentialsSeen(self.name, tuple(state.seen() for state in self._states.values())))
        if self.trouble():
            # Pilots wait for a new credential, so the intervals between checks become shorter.
            self._wake.set()
        return not self.trouble()

    async def _ask(self, text: str, needed: Credential) -> None:
        command = needed.exchange.command
        lifetime: Lifetime
        try:
            if needed.here:
                lifetime = needed.exchange.read(await run_child(command.argv, command.stdin.encode(), command.timeout_s))
            else:
                lifetime = await self._access.ask(needed.exchange)
        except CommandRefused as absence:
            self._states[text] = CredentialState(needed, -math.inf, problem=str(absence))
        except UnclearAnswer as problem:
            # The last known state of the credential stays.
            self._states.setdefault(text, CredentialState(needed, math.inf)).problem = str(problem)
        else:
            warn_s = min(WARN_S, lifetime.whole_s * WARN_SHARE) if lifetime.whole_s > 0 else WARN_S
            self._states[text] = CredentialState(needed, time.time() + lifetime.left_s, warn_s)

    async def _watch(self) -> None:
        while True:
            try:
                await self.check()
            except Exception:  # pilots must not wait forever because of unexpected output of a tool
                log.exception("site %s: its credentials could not be checked", self.name)
            self._checked.set()
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.interval_s()):  # wait_for can swallow a cancellation
                    await self._wake.wait()

    def interval_s(self) -> float:
        least_s = min((state.left_s() for state in self._states.values()), default=math.inf)
        return max(MIN_INTERVAL_S, min(MAX_INTERVAL_S, least_s / 4))
