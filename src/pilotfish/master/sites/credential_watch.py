"""Watches what a site wants to see of us: how long its tickets, proxies, certificates and tokens are still good."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pilotfish.backends.credential_commands import Credential, Lifetime, credential
from pilotfish.backends.interface import CommandExchange, CommandOutput, CommandRefused, UnclearAnswer
from pilotfish.core.pilots.credential_status import say
from pilotfish.master.sites.child_process import run_child
from pilotfish.model import inputs as i
from pilotfish.model.site import Site

log = logging.getLogger(__name__)

EVERY_S = 300.0
SOON_S = 15.0
"""So often it is asked at most: near the end, and while somebody waits for a new one."""
WARN_S = 3600.0
WARN_SHARE = 0.25
"""Whoever has tickets for ten minutes does not want to be warned of each from its first moment."""


class Asks(Protocol):
    async def ask(self, exchange: CommandExchange[Any]) -> Any:
        """Run its command where the site's commands run; Unclear and Refused are raised."""


@dataclass(slots=True)
class CredentialState:
    """What is known of one of them. ``ends_at`` is a time of the wall clock, which goes on while this machine sleeps."""

    credential: Credential
    ends_at: float
    warn_s: float = 0.0
    problem: str = ""

    def left_s(self) -> float:
        return self.ends_at - time.time()


class CredentialWatch:
    """Asked only while there are pilots, so that nobody logs in for a site that nobody uses."""

    def __init__(self, name: str, site: Callable[[], Site], reach: Asks, tell: Callable[[i.Input], None]) -> None:
        self.name = name
        self._site = site
        self._reach = reach
        self._tell = tell
        self._known: dict[str, CredentialState] = {}
        self._looked, self._wake = asyncio.Event(), asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def watch(self) -> None:
        if self._site().credentials and (self._watching is None or self._watching.done()):
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    def rest(self) -> None:
        """Nobody needs them for now; what was known of them will not be true when somebody does."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
            self._known.clear()
            self._looked.set()  # nobody shall wait for an answer that will not come
            self._looked = asyncio.Event()
            self._tell(i.CredentialsSeen(self.name, ()))

    async def usable(self) -> bool:
        """True, or Unclear with what is in the way. What cannot be found out is not in the way: the site will tell."""
        if self._site().credentials:
            self.watch()
            await self._looked.wait()
            trouble = self.trouble()
            if trouble:
                raise UnclearAnswer(trouble)
        return True

    def trouble(self) -> str:
        """What is missing or has ended, and what to do about it."""
        return "; ".join(
            f"{say(known.credential.name, known.left_s(), known.problem)}: {known.credential.renew}"
            for known in self._known.values()
            if known.left_s() <= 0
        )

    async def look(self) -> bool:
        """Ask for all of them; whether all can be used."""
        site = self._site()
        wanted = {text: credential(text, site) for text in site.credentials}
        await asyncio.gather(*(self._ask(text, one) for text, one in wanted.items()))
        self._known = {text: self._known[text] for text in wanted if text in self._known}
        if wanted:
            self._tell(i.CredentialsSeen(self.name, tuple(_seen(known) for known in self._known.values())))
        if self.trouble():
            # Somebody waits for a new one from now on.
            self._wake.set()
        return not self.trouble()

    async def _ask(self, text: str, one: Credential) -> None:
        try:
            lifetime: Lifetime = await (_ask_here(one.exchange) if one.here else self._reach.ask(one.exchange))
        except CommandRefused as absence:
            self._known[text] = CredentialState(one, -math.inf, problem=str(absence))
        except UnclearAnswer as problem:
            # What was known before stays true.
            self._known.setdefault(text, CredentialState(one, math.inf)).problem = str(problem)
        else:
            warn_s = min(WARN_S, lifetime.whole_s * WARN_SHARE) if lifetime.whole_s > 0 else WARN_S
            self._known[text] = CredentialState(one, time.time() + lifetime.left_s, warn_s)

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # the edge: a tool that says something strange must not keep pilots waiting for ever
                log.exception("site %s: its credentials could not be looked at", self.name)
            self._looked.set()
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.pause_s()):  # wait_for may overhear that we are told to rest
                    await self._wake.wait()

    def pause_s(self) -> float:
        least_s = min((known.left_s() for known in self._known.values()), default=math.inf)
        return max(SOON_S, min(EVERY_S, least_s / 4))


def _seen(known: CredentialState) -> i.CredentialSeen:
    return i.CredentialSeen(known.credential.name, known.left_s(), known.warn_s, known.credential.renew, known.problem)


async def _ask_here(exchange: CommandExchange[Lifetime]) -> Lifetime:
    command = exchange.command
    outcome = await run_child(command.argv, command.stdin.encode(), command.patience_s)
    return exchange.read(CommandOutput(outcome.status, outcome.stdout, outcome.stderr))
