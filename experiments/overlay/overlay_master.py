"""Runs the real machine behind a queue, as slow as it was measured to be.

Like the live master it handles all waiting messages as one turn, and nothing else until that turn ends. Its answers leave at the end of
the turn.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from experiments.overlay.overlay_settings import DISTRIBUTED, SITES
from experiments.overlay.thread_clock import ThreadClock
from pilotfish.core.machine import Machine, Turn
from pilotfish.core.pilots.factory_interface import PilotProposal, WithdrawalProposal
from pilotfish.core.policy_interface import HoldProposal
from pilotfish.core.state import State
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.settings import PoolSettings
from pilotfish.model.site import PilotSize
from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.matchers import LocalityMatcher
from tests.simulation.world.wire_codec import Frame, read_from_agent, write_to_agent

if TYPE_CHECKING:
    from experiments.overlay.overlay_world import OverlayWorld

BEAT = "beat"
CLIENT_LINK = 1
NEVER = float("inf")


class TwoSiteFleet:
    """Requests single-core pilots once, half of them at each site."""

    def __init__(self, pilots: int) -> None:
        self._sites = [SITES[number % len(SITES)] for number in range(pilots)]

    def propose(self, state: State, now: float) -> list[PilotProposal | WithdrawalProposal | HoldProposal]:
        sites, self._sites = self._sites, []
        return [PilotProposal(site, PilotSize(), "for the experiment") for site in sites]

    def next_look_at(self, state: State, now: float) -> float | None:
        return None

    def standings(self, state: State, now: float) -> dict[str, dict[str, object]]:
        return {}


class OverlayMaster:
    def __init__(self, world: OverlayWorld) -> None:
        self.world = world
        plan = world.plan
        settings = PoolSettings(matching="distributed" if plan.architecture == DISTRIBUTED else "central")
        self.machine = Machine(State(), Dispatcher(LocalityMatcher()), TwoSiteFleet(plan.pilots), settings)
        self.requests: Counter[str] = Counter()
        """Messages received from agents, by kind."""
        self.busy_s = 0.0
        self.most_waiting = 0
        self._inbox: list[tuple[int, Any]] = []
        self._beats_only = True
        """True if the inbox holds nothing but heartbeats."""
        self._stopwatch = ThreadClock()
        self._busy = False
        self._wake_at = NEVER

    def start(self) -> None:
        self._busy = True
        self._finish(self.machine.start(self.world.now), 0.0)

    # --- input ------------------------------------------------------------------------------------------------------------------------

    def heard_agent(self, link: int, kind: str, frame: Frame) -> None:
        self.requests[kind] += 1
        self._take(link, frame, kind == BEAT)

    def heard_client(self, message: m.FromClient, payloads: list[bytes]) -> None:
        self._take(CLIENT_LINK, i.ClientMessage(CLIENT_LINK, message, payloads))  # type: ignore[arg-type]

    def tell(self, news: i.Input) -> None:
        self._take(0, news)

    def _take(self, link: int, item: Any, is_beat: bool = False) -> None:
        self._beats_only = self._beats_only and is_beat
        self._inbox.append((link, item))
        self.most_waiting = max(self.most_waiting, len(self._inbox))
        if not self._busy:
            self._turn()

    # --- turns ------------------------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._busy = True
        inbox, self._inbox = self._inbox, []
        beats_only, self._beats_only = self._beats_only, True
        measured = not beats_only or self._stopwatch.is_due()
        if measured:
            self._stopwatch.begin()
        turn = self.machine.handle([_read(link, item) for link, item in inbox], self.world.now)
        sent = [_write(effect) for effect in turn.effects]
        seconds = self._stopwatch.end() if measured else self._stopwatch.usual()
        if measured and beats_only:
            self._stopwatch.usual(seconds)
        if self.world.around.message_s:
            seconds = self.world.around.message_s * (len(inbox) + len(sent))
        else:
            seconds *= self.world.around.master_factor
        self._finish(turn, seconds, sent)

    def _finish(self, turn: Turn, seconds: float, sent: list[Any] | None = None) -> None:
        if turn.facts:
            seconds += self.world.around.sync_s
        self.busy_s += seconds
        self.world.after(seconds, self._leave, [_write(effect) for effect in turn.effects] if sent is None else sent)

    def _leave(self, sent: list[Any]) -> None:
        world = self.world
        for link, what in sent:
            if link == CLIENT_LINK:
                world.after(world.around.client_s, world.client.heard, *what)
            elif link:
                world.after(world.around.wan_s, world.links[link].heard_master, what)
            elif isinstance(what, e.SubmitPilot):
                world.start_pilot(what.pilot, what.site)
        self._busy = False
        if self._inbox:
            self._turn()
        else:
            self._set_alarm()

    def _set_alarm(self) -> None:
        deadline = self.machine.deadline
        if deadline is not None and (deadline < self._wake_at or self._wake_at <= self.world.now):
            self._wake_at = max(deadline, self.world.now)
            self.world.at(self._wake_at, self._alarm)

    def _alarm(self) -> None:
        if self.world.now < self._wake_at:
            return
        self._wake_at = NEVER
        deadline = self.machine.deadline
        if self._busy or deadline is None:
            return
        if deadline <= self.world.now:
            self._turn()
        else:
            self._set_alarm()


def _read(link: int, item: Any) -> i.Input:
    if not isinstance(item, tuple):
        return item  # type: ignore[no-any-return]
    message, payloads = read_from_agent(item)
    return i.AgentMessage(link, message, payloads)  # type: ignore[arg-type]


def _write(effect: e.Effect) -> tuple[int, Any]:
    """Encodes an effect. Returns the link and the data; effects for sites have no link."""
    if isinstance(effect, e.Send) and effect.link == CLIENT_LINK:
        return CLIENT_LINK, (effect.message, [bytes(payload) for payload in effect.payloads])  # type: ignore[arg-type]
    if isinstance(effect, e.Send):
        return effect.link, write_to_agent(effect.message, b"".join(effect.payloads))  # type: ignore[arg-type]
    if isinstance(effect, e.IntroducePeer):
        return effect.link, write_to_agent(m.Introduce(effect.site, "", "", "", effect.contacts, effect.term, effect.master), b"")
    return 0, effect
