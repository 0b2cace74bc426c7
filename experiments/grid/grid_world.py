"""Simulates a grid without agents: sites, pilots, a bag of tasks and a clock. It drives the same factory objects as a live pool."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from experiments.grid.grid_sites import BLACK_HOLE, DEAD, KILLER, REFUSING, GridSite
from pilotfish.core.pilots.factory_interface import (
    EXPIRED,
    FAILED,
    JOINED,
    SUBMITTED,
    SUCCEEDED,
    WITHDRAWN,
    Demand,
    Factory,
    FactoryView,
    PilotProposal,
    SiteEvent,
    SiteView,
)
from pilotfish.core.pilots.pilot_records import MAX_EVENTS, Pilot
from pilotfish.core.state import State
from pilotfish.factories.site_limits import is_queued
from pilotfish.model import states
from pilotfish.model.site import BOOTSTRAP, DIED, REFUSED, PilotSize, Site

LATEST_S = 48 * 3600.0
TICK_S = 30.0
"""Seconds between calls of the factory. A live pool polls queues no more often."""
RETRY_S = 60.0
MOST_SIZES = 60


@dataclass(slots=True, frozen=True)
class TaskBag:
    tasks: int = 240
    mean_s: float = 600.0
    walltime_s: float = 2 * 3600.0
    """Walltime of a pilot."""


@dataclass(slots=True)
class GridFigures:
    makespan_s: float = LATEST_S
    pool: float = 0.0
    """Mean number of workers while tasks waited."""
    first_worker_s: float = LATEST_S
    submissions: int = 0
    wasted: int = 0
    """Pilots that finished no task."""
    most_queued: int = 0


@dataclass(slots=True)
class PilotLife:
    """State of a pilot in the grid."""

    pilot: Pilot
    site: GridSite
    ready_at: float = 0.0
    running: bool = False
    ends_at: float = 0.0
    task: float = 0.0
    done: int = 0
    gone: bool = False


@dataclass(slots=True)
class GridPlace:
    shape: GridSite
    site: Site
    queue: list[PilotLife] = field(default_factory=list)
    running: int = 0
    history: deque[SiteEvent] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))


class GridWorld:
    def __init__(self, shapes: list[GridSite], factory: Factory, seed: int, bag: TaskBag | None = None) -> None:
        self.bag = bag or TaskBag()
        self.rng = random.Random(f"fate {seed}")
        self.factory = factory
        self.now = 0.0
        self.state = State()
        self.places = {shape.name: GridPlace(shape, self._describe(shape)) for shape in shapes}
        self.bodies: dict[str, PilotLife] = {}
        rng = random.Random(f"tasks {seed}")
        self.waiting = deque(rng.lognormvariate(0.0, 0.5) * self.bag.mean_s / 1.133 for _ in range(self.bag.tasks))
        self.unfinished = self.bag.tasks
        self.measured = GridFigures()
        self.workers = 0
        self._pool_area = 0.0
        self._pool_time = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = itertools.count()
        self._news = False
        self._stopped = False
        self._asked_at = -TICK_S

    def _describe(self, shape: GridSite) -> Site:
        return Site(backend="slurm", cores=1, walltime_s=self.bag.walltime_s, max_pilots=shape.slots * 2, max_queued=8)

    # --- the clock --------------------------------------------------------------------------------------------------------------------

    def after(self, seconds: float, act: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._count), act, arguments))

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> GridFigures:
        self.after(0.0, self._ask)
        while self.unfinished and self._events and not self._stopped:
            at, _, act, arguments = heapq.heappop(self._events)
            if at > LATEST_S:
                break
            self._advance(at)
            act(*arguments)
        done = [body.done for body in self.bodies.values()]
        self.measured.makespan_s = self.now if not self.unfinished else LATEST_S
        self.measured.pool = self._pool_area / self._pool_time if self._pool_time else 0.0
        self.measured.submissions = len(done)
        self.measured.wasted = sum(1 for count in done if not count)
        return self.measured

    def _advance(self, at: float) -> None:
        if self.waiting:
            self._pool_area += (at - self.now) * self.workers
            self._pool_time += at - self.now
        self.now = at

    def restart(self, make: Callable[[], Factory]) -> None:
        """Restarts the master: a new factory receives the recorded events of all sites again."""
        self.factory = make()
        events = [event for place in self.places.values() for event in place.history]
        for event in sorted(events, key=lambda event: event.at):
            self.factory.on_event(event)
        self._look_soon()

    # --- factory ----------------------------------------------------------------------------------------------------------------------

    def _tell(self, pilot: Pilot, kind: str, seconds: float = 0.0, cause: str = "") -> None:
        event = SiteEvent(self.now, pilot.site, kind, pilot.id, seconds, cause)
        self.places[pilot.site].history.append(event)
        self.factory.on_event(event)
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._news:
            self._news = True
            self.after(max(0.0, self._asked_at + TICK_S - self.now), self._ask)

    def view(self) -> FactoryView:
        self.state.unfinished = self.unfinished
        views = [SiteView(name, place.site, [], place.history) for name, place in self.places.items()]
        by_name = {view.name: view for view in views}
        for pilot in self.state.pilots.values():
            if pilot.state < states.ENDING:
                by_name[pilot.site].pilots.append(pilot)
        return FactoryView(self.state, views, self._demand(), self.now)

    def _demand(self) -> Demand:
        on_their_way: dict[str, list[str]] = {}
        for pilot in self.state.pilots.values():
            if is_queued(pilot):
                on_their_way.setdefault(pilot.replica_of or pilot.id, []).append(pilot.id)
        groups = list(on_their_way.values())
        tasks = len(self.waiting)
        missing = max(0, tasks - len(groups))
        awaited = {pilot: PilotSize() for members in groups[:tasks] for pilot in members}
        spare = [pilot for members in groups[tasks:] for pilot in members]
        return Demand(float(missing), missing, [PilotSize()] * min(missing, MOST_SIZES), spare, awaited)

    def _ask(self) -> None:
        self._news = False
        self._asked_at = self.now
        view = self.view()
        for proposal in self.factory.propose(view):
            if isinstance(proposal, PilotProposal):
                self._submit(proposal)
            else:
                self._withdraw(self.bodies[proposal.pilot], proposal.cause)
        queued = sum(1 for pilot in self.state.pilots.values() if is_queued(pilot))
        self.measured.most_queued = max(self.measured.most_queued, queued)
        at = self.factory.next_look_at(view)
        if at is not None:
            self.after(max(TICK_S, at - self.now), self._look_soon)

    def _withdraw(self, body: PilotLife, cause: str) -> None:
        if is_queued(body.pilot):
            self._end(body, WITHDRAWN, self.now - body.pilot.requested_at, cause)

    # --- a pilot's life ---------------------------------------------------------------------------------------------------------------

    def _submit(self, wish: PilotProposal) -> None:
        pilot = Pilot(f"p{len(self.bodies) + 1}", wish.site, wish.size, self.now, reason=wish.reason, replica_of=wish.replaces)
        body = self.bodies[pilot.id] = PilotLife(pilot, self.places[wish.site].shape)
        self.state.pilots[pilot.id] = pilot
        self.after(body.site.submit_s * self.rng.uniform(0.5, 2.0), self._accept, body, self.now)

    def _accept(self, body: PilotLife, since: float) -> None:
        if body.gone:
            return
        if body.site.nature(self.now) == REFUSING:
            self._end(body, FAILED, cause=REFUSED)
            return
        body.pilot.state = states.SUBMITTED
        self._tell(body.pilot, SUBMITTED, self.now - since)
        wait = self.rng.lognormvariate(0.0, 0.8) * body.site.wait_s / 1.377
        body.ready_at = self.now + wait
        self.places[body.pilot.site].queue.append(body)
        self.after(wait, self._start_some, body.pilot.site)

    def _start_some(self, name: str) -> None:
        place = self.places[name]
        if place.shape.nature(self.now) == DEAD:
            if place.queue and place.shape.changes_at:
                self.after(RETRY_S, self._start_some, name)
            return
        for body in [body for body in place.queue if body.ready_at <= self.now]:
            if place.running >= place.shape.slots:
                return
            place.queue.remove(body)
            place.running += 1
            body.running = True
            self._boot(body)

    def _boot(self, body: PilotLife) -> None:
        nature = body.site.nature(self.now)
        if nature == BLACK_HOLE or self.rng.random() < body.site.bad_start:
            self.after(self.rng.uniform(1, 20), self._end, body, FAILED, 0.0, BOOTSTRAP)
            return
        self.after(self.rng.uniform(3, 15), self._join, body)
        if nature == KILLER:
            self.after(self.rng.uniform(20, 60), self._end, body, FAILED, 0.0, DIED)
        body.ends_at = self.now + self.bag.walltime_s
        self.after(self.bag.walltime_s, self._end, body, EXPIRED)

    def _join(self, body: PilotLife) -> None:
        if body.gone:
            return
        body.pilot.state = states.ACTIVE
        body.pilot.joined = 1
        self.workers += 1
        self.measured.first_worker_s = min(self.measured.first_worker_s, self.now)
        self._tell(body.pilot, JOINED, self.now - body.pilot.requested_at)
        self._work(body)

    def _work(self, body: PilotLife) -> None:
        """Takes the next task that ends before the pilot's walltime; leaves if there is none."""
        for position, task in enumerate(self.waiting):
            seconds = task / body.site.speed
            if self.now + seconds < body.ends_at:
                del self.waiting[position]
                body.task = task
                self.after(seconds, self._finish, body)
                return
            if position > 20:
                break
        if not self.waiting:
            self._end(body, SUCCEEDED)

    def _finish(self, body: PilotLife) -> None:
        if body.gone:
            return
        body.task = 0.0
        body.done += 1
        self.unfinished -= 1
        self._work(body)

    def _end(self, body: PilotLife, kind: str, seconds: float = 0.0, cause: str = "") -> None:
        if body.gone:
            return
        body.gone = True
        if body.task:
            self.waiting.appendleft(body.task)
            body.task = 0.0
        if body.pilot.joined:
            self.workers -= 1
        place = self.places[body.pilot.site]
        if body.running:
            place.running -= 1
            self.after(0.0, self._start_some, body.pilot.site)
        elif body in place.queue:
            place.queue.remove(body)
        body.pilot.state = states.ENDED
        del self.state.pilots[body.pilot.id]
        self._tell(body.pilot, kind, seconds, cause)
