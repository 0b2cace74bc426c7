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
    """One attempt. ``missing_files`` is the number of its files that are not here yet."""

    __slots__ = ("assigned_at", "cores", "key", "missing_files", "number", "started_at", "task")

    def __init__(self, task: int, number: int, cores: float, assigned_at: float) -> None:
        self.task = task
        self.number = number
        self.key = task, number
        self.cores = cores
        self.assigned_at = assigned_at
        self.started_at = -1.0
        self.missing_files = 0


class SimulatedHost:
    def __init__(self, world: LightWorld, link: int, site: SimulatedSite, speed: float, cores: float) -> None:
        self.world = world
        self.link = link
        self.site = site
        self.speed = speed
        self._free = float(cores)
        self._specs: dict[int, m.SentSpec] = {}
        self._queue: deque[SimulatedAttempt] = deque()
        """Assigned attempts without cores, in order."""
        self._attempts: dict[tuple[int, int], SimulatedAttempt] = {}
        self._sent = 0
        self._just_started: list[SimulatedAttempt] = []
        """Attempts started since the last heartbeat."""
        self._draining = False

    def handle(self, message: m.Message) -> None:
        if type(message) is m.Assign:
            self._take(message)
        elif type(message) is m.Kill:
            for task, number in message.items:
                self._drop(task, number)
        elif type(message) is m.Recall:
            self._return_attempts(message)
        elif type(message) is m.Drain:
            self._draining = True
            self._return_attempts(m.Recall([attempt.key for attempt in self._queue]))
            self._leave_when_done()

    def add_waiting(self, attempt: SimulatedAttempt, contents: tuple[Content, ...] = ()) -> None:
        """Adds an attempt that was assigned before the simulation began and waits for cores or files."""
        self._attempts[attempt.key] = attempt
        if contents:
            self._fetch(attempt, contents)
        self._queue.append(attempt)

    def add_running(self, attempt: SimulatedAttempt, left_s: float) -> None:
        """Adds an attempt that started before the simulation began."""
        self._attempts[attempt.key] = attempt
        self._free -= attempt.cores
        self.world.after(left_s, self._end, attempt, self.world.now - attempt.started_at + left_s)

    @property
    def busy(self) -> bool:
        return bool(self._attempts)

    def leave(self) -> None:
        """Leaves the pool at the end of the pilot's walltime."""
        if self._draining and not self._attempts:
            return
        cut_off = [(a.task, a.number, max(0.0, self.world.now - a.started_at)) for a in self._attempts.values() if a.started_at >= 0]
        self._attempts.clear()
        self._queue.clear()
        self.world.deliver(i.AgentMessage(self.link, m.Leave("its time is over", cut_off), []))

    def _take(self, message: m.Assign) -> None:
        for spec in message.specs:
            self._specs[spec.spec] = spec
        for sent in message.tasks:
            spec = self._specs[sent.spec]
            attempt = SimulatedAttempt(sent.task, sent.attempt, sent.cores or spec.needs.get("cores", 0.0), self.world.now)
            self._attempts[attempt.key] = attempt
            if spec.contents or sent.contents:
                self._fetch(attempt, (*spec.contents, *sent.contents))
            self._queue.append(attempt)
        self.start_attempts()

    def _fetch(self, attempt: SimulatedAttempt, contents: tuple[Content, ...]) -> None:
        disk = self.world.disks[self.site.name]
        self.world.note_fetching(self.site.name)
        for content in contents:
            if not disk.has(content.digest):
                attempt.missing_files += 1
                if disk.fetch(content.digest, content.size, lambda: self._arrived(attempt)):
                    disk.fetch(content.digest, content.size, lambda digest=content.digest: self._report_file(digest))  # type: ignore[misc]

    def _report_file(self, digest: str) -> None:
        """Reports a new file to the master. Only the first host that requested it does so."""
        self.world.deliver(i.AgentMessage(self.link, m.CacheReport([digest], []), []))

    def _arrived(self, attempt: SimulatedAttempt) -> None:
        attempt.missing_files -= 1
        if not attempt.missing_files:
            self._start_if_ready(attempt)

    def start_attempts(self) -> None:
        """Gives cores to queued attempts in order. An attempt takes cores also while its files are in transfer, as at an agent: the agent
        does not know a later attempt to run instead."""
        while self._queue and self._free >= self._queue[0].cores:
            attempt = self._queue.popleft()
            if attempt.key in self._attempts:
                self._free -= attempt.cores
                attempt.started_at = -2.0
                self._start_if_ready(attempt)

    def _start_if_ready(self, attempt: SimulatedAttempt) -> None:
        """Starts an attempt that has both its cores and its files."""
        if attempt.started_at == -2.0 and not attempt.missing_files and attempt.key in self._attempts:
            attempt.started_at = self.world.now + self.site.launch_s
            seconds = self.world.seconds(attempt.task, self)
            self.world.after(self.site.launch_s + seconds, self._end, attempt, seconds)
            if self.world.heartbeat_s:
                if not self._just_started:
                    self.world.after(self.world.heartbeat_s, self._send_heartbeat)
                self._just_started.append(attempt)

    def _send_heartbeat(self) -> None:
        """Reports attempts that started and still run, like an agent's heartbeat."""
        just_started, self._just_started = self._just_started, []
        started = [attempt.key for attempt in just_started if attempt.key in self._attempts]
        if started:
            self.world.deliver(i.AgentMessage(self.link, m.Heartbeat(started), []))

    def _end(self, attempt: SimulatedAttempt, seconds: float) -> None:
        if self._attempts.pop(attempt.key, None) is None:
            return
        self._free += attempt.cores
        wall_us = int(seconds * 1e6)
        result = m.ResultItem(attempt.task, attempt.number, None, wall_us, wall_us, 0, 0)
        self._sent += 1
        self.world.note_ended(self, attempt)
        self.world.deliver(i.AgentMessage(self.link, m.Results(self._sent, [result]), [b""]))
        if self._queue:
            self.start_attempts()
        elif self._draining:
            self._leave_when_done()

    def _leave_when_done(self) -> None:
        if not self._attempts:
            self.world.deliver(i.AgentMessage(self.link, m.Leave("has done what it had"), []))

    def _drop(self, task: int, number: int) -> None:
        attempt = self._attempts.pop((task, number), None)
        if attempt is not None and attempt.started_at != -1.0:
            self._free += attempt.cores
            self.start_attempts()

    def _return_attempts(self, message: m.Recall) -> None:
        wanted = self._attempts.keys() & set(message.items)
        returned = [attempt for attempt in self._queue if attempt.key in wanted]
        for attempt in returned:
            self._queue.remove(attempt)
            del self._attempts[attempt.key]
        if returned:
            self.world.deliver(i.AgentMessage(self.link, m.Returned([attempt.key for attempt in returned]), []))
