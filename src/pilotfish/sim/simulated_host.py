"""Simulates one worker that fetches and runs tasks. It starts as many tasks as its cores allow and reports results like an agent."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import Content
from pilotfish.sim.workload import SimulatedSite

if TYPE_CHECKING:
    from pilotfish.sim.light_world import LightWorld


class SimulatedAttempt:
    """One attempt. ``lacking`` is the number of its files that are not here yet."""

    __slots__ = ("began", "cores", "given", "key", "lacking", "number", "task")

    def __init__(self, task: int, number: int, cores: float, given: float) -> None:
        self.task = task
        self.number = number
        self.key = task, number
        self.cores = cores
        self.given = given
        self.began = -1.0
        self.lacking = 0


class SimulatedHost:
    def __init__(self, world: LightWorld, link: int, place: SimulatedSite, speed: float, cores: float | None = None) -> None:
        self.world = world
        self.link = link
        self.place = place
        self.speed = speed
        self._free = float(place.cores if cores is None else cores)
        self._specs: dict[int, m.SentSpec] = {}
        self._queue: deque[SimulatedAttempt] = deque()
        """Assigned attempts without cores, in order."""
        self._here: dict[tuple[int, int], SimulatedAttempt] = {}
        self._sent = 0
        self._fresh: list[SimulatedAttempt] = []
        """Attempts started since the last heartbeat."""
        self._draining = False

    def hear(self, message: m.Message) -> None:
        if type(message) is m.Assign:
            self._take(message)
        elif type(message) is m.Kill:
            for task, number in message.items:
                self._drop(task, number)
        elif type(message) is m.Recall:
            self._hand_back(message)
        elif type(message) is m.Drain:
            self._draining = True
            self._hand_back(m.Recall([attempt.key for attempt in self._queue]))
            self._leave_when_done()

    def holds(self, attempt: SimulatedAttempt, contents: tuple[Content, ...] = ()) -> None:
        """Adds an attempt that was assigned before the simulation began and waits for cores or files."""
        self._here[attempt.key] = attempt
        if contents:
            self._fetch(attempt, contents)
        self._queue.append(attempt)

    def runs(self, attempt: SimulatedAttempt, left_s: float) -> None:
        """Adds an attempt that started before the simulation began."""
        self._here[attempt.key] = attempt
        self._free -= attempt.cores
        self.world.after(left_s, self._end, attempt, self.world.now - attempt.began + left_s)

    def begin(self) -> None:
        self._begin_some()

    @property
    def busy(self) -> bool:
        return bool(self._here)

    def leave(self) -> None:
        """Leaves the pool at the end of the pilot's walltime."""
        if self._draining and not self._here:
            return
        cut_off = [(a.task, a.number, max(0.0, self.world.now - a.began)) for a in self._here.values() if a.began >= 0]
        self._here.clear()
        self._queue.clear()
        self.world.tell(i.AgentMessage(self.link, m.Leave("its time is over", cut_off), []))

    def _take(self, message: m.Assign) -> None:
        for spec in message.specs:
            self._specs[spec.spec] = spec
        for sent in message.tasks:
            spec = self._specs[sent.spec]
            attempt = SimulatedAttempt(sent.task, sent.attempt, sent.cores or spec.needs.get("cores", 0.0), self.world.now)
            self._here[attempt.key] = attempt
            if spec.contents or sent.contents:
                self._fetch(attempt, (*spec.contents, *sent.contents))
            self._queue.append(attempt)
        self._begin_some()

    def _fetch(self, attempt: SimulatedAttempt, contents: tuple[Content, ...]) -> None:
        disk = self.world.disks[self.place.name]
        self.world.fetching(self.place.name)
        for content in contents:
            if not disk.has(content.digest):
                attempt.lacking += 1
                if disk.fetch(content.digest, content.size, lambda: self._arrived(attempt)):
                    disk.fetch(content.digest, content.size, lambda digest=content.digest: self._got(digest))  # type: ignore[misc]

    def _got(self, digest: str) -> None:
        """Reports a new file to the master. Only the first host that requested it does so."""
        self.world.tell(i.AgentMessage(self.link, m.CacheReport([digest], []), []))

    def _arrived(self, attempt: SimulatedAttempt) -> None:
        attempt.lacking -= 1
        if not attempt.lacking:
            self._try(attempt)

    def _begin_some(self) -> None:
        """Gives cores to queued attempts in order. An attempt takes cores also while its files are in transfer, as at an agent: the agent
        does not know a later attempt to run instead."""
        while self._queue and self._free >= self._queue[0].cores:
            attempt = self._queue.popleft()
            if attempt.key in self._here:
                self._free -= attempt.cores
                attempt.began = -2.0
                self._try(attempt)

    def _try(self, attempt: SimulatedAttempt) -> None:
        """Starts an attempt that has both its cores and its files."""
        if attempt.began == -2.0 and not attempt.lacking and attempt.key in self._here:
            attempt.began = self.world.now + self.place.launch_s
            seconds = self.world.seconds(attempt.task, self)
            self.world.after(self.place.launch_s + seconds, self._end, attempt, seconds)
            if self.world.beat_s:
                if not self._fresh:
                    self.world.after(self.world.beat_s, self._beat)
                self._fresh.append(attempt)

    def _beat(self) -> None:
        """Reports attempts that started and still run, like an agent's heartbeat."""
        fresh, self._fresh = self._fresh, []
        started = [attempt.key for attempt in fresh if attempt.key in self._here]
        if started:
            self.world.tell(i.AgentMessage(self.link, m.Heartbeat(started), []))

    def _end(self, attempt: SimulatedAttempt, seconds: float) -> None:
        if self._here.pop(attempt.key, None) is None:
            return
        self._free += attempt.cores
        wall_us = int(seconds * 1e6)
        result = m.ResultItem(attempt.task, attempt.number, None, wall_us, wall_us, 0, 0)
        self._sent += 1
        self.world.ended(self, attempt.task, attempt.given, attempt.began)
        self.world.tell(i.AgentMessage(self.link, m.Results(self._sent, [result]), [b""]))
        if self._queue:
            self._begin_some()
        elif self._draining:
            self._leave_when_done()

    def _leave_when_done(self) -> None:
        if not self._here:
            self.world.tell(i.AgentMessage(self.link, m.Leave("has done what it had"), []))

    def _drop(self, task: int, number: int) -> None:
        attempt = self._here.pop((task, number), None)
        if attempt is not None and attempt.began != -1.0:
            self._free += attempt.cores
            self._begin_some()

    def _hand_back(self, message: m.Recall) -> None:
        wanted = self._here.keys() & set(message.items)
        back = [attempt for attempt in self._queue if attempt.key in wanted]
        for attempt in back:
            self._queue.remove(attempt)
            del self._here[attempt.key]
        if back:
            self.world.tell(i.AgentMessage(self.link, m.Returned([attempt.key for attempt in back]), []))
