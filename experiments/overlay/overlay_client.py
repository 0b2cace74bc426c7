"""Submits the two-step workflow. Jobs of the first step make one file each; jobs of the second step are submitted as these files appear."""

from __future__ import annotations

import math
import random
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from experiments.overlay.overlay_settings import SITES, WORKFLOWS
from pilotfish.model import messages as m
from pilotfish.model.contents import Content
from pilotfish.model.task import RunOptions, TaskSpec

if TYPE_CHECKING:
    from experiments.overlay.overlay_world import OverlayWorld

SPREAD = 0.3
"""Standard deviation of the logarithms of run times."""

Job = tuple[str, tuple[str, ...]]
"""The site where a job's files are, and the files."""


def file_of(task: int) -> str:
    return sha256(b"%d" % task).hexdigest()


class OverlayClient:
    """The client of the experiment. ``ready``: submitted jobs that have not started, by the site of their files; empty: jobs without
    files, which may run at any site."""

    def __init__(self, world: OverlayWorld) -> None:
        self.world = world
        plan = world.plan
        self.reads, self.readers = WORKFLOWS[plan.workflow]
        self.first_jobs = round(plan.tasks * self.reads / (self.reads + self.readers))
        self.begun_at = self.ended_at = 0.0
        self.ended = 0
        self.ready = dict.fromkeys(("", *SITES), 0)
        dice = random.Random(f"jobs {plan.seed}")
        scale = plan.surroundings.task_s * math.exp(-SPREAD * SPREAD / 2)
        self._seconds = [scale * dice.lognormvariate(0.0, SPREAD) for _ in range(plan.tasks)]
        self._submitted = 0
        self._sites: dict[int, str] = {}
        self._first_left = self.first_jobs
        self._files: dict[str, list[str]] = {site: [] for site in SITES}
        """Files that no job reads yet."""

    def seconds(self, job: int) -> float:
        return self._seconds[job]

    def site_of(self, job: int) -> str:
        """Returns the site of a job's files; empty for a job of the first step, which has none."""
        return "" if job < self.first_jobs else self._sites[job]

    # --- protocol ---------------------------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        self._say(m.Open("overlay", RunOptions(name="overlay")), [])

    def begin(self) -> None:
        self.begun_at = self.world.now
        self._submit([("", ())] * self.first_jobs, [TaskSpec("exec", "make"), TaskSpec("exec", "read")])

    def _say(self, message: Any, payloads: list[bytes]) -> None:
        self.world.after(self.world.around.client_s, self.world.master.heard_client, message, payloads)

    def heard(self, message: Any, payloads: list[bytes]) -> None:
        if isinstance(message, m.Opened):
            self._say(m.Watch(message.run, 0, True), [])
        elif isinstance(message, m.Ended):
            self._hear_ended(message, payloads)
        elif isinstance(message, m.Problem):
            raise RuntimeError(f"the master refuses: {message}")

    def _submit(self, jobs: list[Job], specs: list[TaskSpec]) -> None:
        size = self.world.around.file_bytes
        contents = {at: tuple(Content(digest, size) for digest in files) for at, (_, files) in enumerate(jobs) if files}
        payloads = [b"%d" % (self._submitted + number) for number in range(len(jobs))]
        for number, (site, _) in enumerate(jobs, self._submitted):
            self.ready[site] += 1
            self._sites[number] = site
        tasks = [(0 if specs else 1, len(payload)) for payload in payloads]
        message = m.Submit(1, self._submitted, 0 if specs else 2, specs, [0] * len(specs), tasks, contents=contents)
        self._submitted += len(jobs)
        self._say(message, [b""] * len(specs) + payloads)

    def _hear_ended(self, message: m.Ended, payloads: list[bytes]) -> None:
        for item, payload in zip(message.items, payloads, strict=True):
            if item.failure is not None:
                raise RuntimeError(f"job {item.index} failed: {item.failure}")
            self.ended += 1
            if item.index < self.first_jobs:
                self._first_left -= 1
                digest, site = payload.decode().split()
                self._files[site].append(digest)
        jobs: list[Job] = []
        for site in SITES:
            files = self._files[site]
            while len(files) >= self.reads or (files and not self._first_left):
                read, self._files[site] = tuple(files[: self.reads]), files[self.reads :]
                files = self._files[site]
                jobs += [(site, read)] * self.readers
        jobs = jobs[: self.world.plan.tasks - self._submitted]
        if jobs:
            self._submit(jobs, [])
        self._consider_end()

    def _consider_end(self) -> None:
        if self.ended == self._submitted and not self._first_left:
            self.ended_at = self.world.now
            self.world.over = True
