"""Estimates which files are where, which are in transfer, and how fast links are."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import NamedTuple

from pilotfish.core.data.replicas import needs
from pilotfish.core.policy_interface import PolicyView
from pilotfish.core.state import ContentRecord, Task
from pilotfish.model.site import LOCAL
from pilotfish.model.states import ASSIGNED

BANDWIDTH = 1e6
"""Assumed bytes per second of an unmeasured link. Small files go first and measure it."""
DISK = 500e6
"""Assumed bytes per second to this machine: files are copied from disk to disk, which is not measured."""
BESIDE = 0.1
"""A file may be sent beside others if it takes at most this part of their remaining time."""
AT_ONCE_S = 0.5
"""Maximum seconds that a core may wait for files."""
OVERDUE_S = 1.0
"""Seconds until an overdue file is expected."""
TRIAL_S = 5.0
"""Seconds that an unmeasured link gets no second file after its first small one, unless it is measured sooner."""
LEAST_BYTES, LEAST_S = 100_000, 0.01
MOST_TRIALS, MOST_ALIKE = 32, 16
"""Maximum sets of files kept as first transfers, and maximum tasks with the same set."""
NEVER = float("inf")


def is_at(outlook: PolicyView, record: ContentRecord, site: str) -> bool:
    workers = outlook.state.workers
    return any(workers[name].site == site for name in record.holders)


def smallest_first(tasks: Iterable[Task]) -> list[Task]:
    """Tasks with the smallest inputs that are large enough to measure a link."""
    alike: dict[tuple[ContentRecord, ...], list[Task]] = {}
    for task in tasks:
        if (wanted := needs(task)) and not task.suspect and len(ones := alike.setdefault(wanted, [])) < MOST_ALIKE:
            ones.append(task)
    sizes = {wanted: size for wanted in alike if (size := sum(record.size for record in wanted)) >= LEAST_BYTES}
    return [task for wanted in nsmallest(MOST_TRIALS, sizes, key=lambda wanted: sizes[wanted]) for task in alike[wanted]]


class LinkProbe(NamedTuple):
    """The first files over a link, and when they were sent."""

    files: tuple[ContentRecord, ...]
    since: float


class LinkEstimates:
    """Transfers caused by tasks that were given away. Files arrive one after the other over the link of a site."""

    def __init__(self) -> None:
        self._coming: dict[str, dict[str, tuple[float, Task, float]]] = {}
        """By site and digest: expected arrival, the task it was sent for, and when that task was given away."""
        self._seen: PolicyView | None = None
        self._still: dict[str, dict[str, float]] = {}
        self._free_at: dict[str, float] = {}
        """What is in transfer to each site, and when all of it will have arrived, for the current view."""
        self._trials: dict[str, LinkProbe] = {}
        self._rates: dict[str, float] = {}
        """Bytes per second of the first transfers, used until the link is measured."""

    def bandwidth(self, outlook: PolicyView, site: str) -> float:
        """Estimated bytes per second from the master to a site, reduced while forecasts of it have large errors. The first bytes over an
        idle link are often fast, and a useless transfer cannot be undone."""
        measured = outlook.state.forecasts.bandwidth("", site)
        if measured is not None:
            return max(1.0, measured.value / (1 + min(1.0, measured.error)))
        return DISK if site == LOCAL else self._rates.get(site, BANDWIDTH)

    def _is_known(self, outlook: PolicyView, site: str) -> bool:
        """Whether the speed of the link is known. Files may also come from elsewhere, so that it is never measured."""
        trial = self._trials.get(site)
        if trial is not None and site not in self._rates and all(is_at(outlook, record, site) for record in trial.files):
            self._rates[site] = sum(record.size for record in trial.files) / max(outlook.now - trial.since, LEAST_S)
        return site == LOCAL or site in self._rates or outlook.state.forecasts.bandwidth("", site) is not None

    def arrival(self, outlook: PolicyView, record: ContentRecord, site: str) -> float:
        """When a content is at the site; infinite if it has to be sent."""
        return outlook.now if is_at(outlook, record, site) else self._ends(outlook, site).get(record.digest, NEVER)

    def link_free_at(self, outlook: PolicyView, site: str) -> float:
        self._ends(outlook, site)
        return self._free_at[site]

    def _ends(self, outlook: PolicyView, site: str) -> dict[str, float]:
        """Expected arrivals at a site. A transfer is over when its task has left the site or runs there."""
        if self._seen is not outlook:
            self._seen, self._still, self._free_at = outlook, {}, {}
        found = self._still.get(site)
        if found is None:
            found = self._still[site] = {}
            for digest, (end, task, since) in self._coming.get(site, {}).items():
                waits = task.state == ASSIGNED and task.worker is not None and task.worker.site == site
                if waits or since == outlook.now:
                    found[digest] = end if end > outlook.now else outlook.now + OVERDUE_S
            self._free_at[site] = max(found.values(), default=outlook.now)
        return found

    def must_wait(self, outlook: PolicyView, task: Task, site: str) -> bool:
        """Whether a core would only wait: the task's files are in transfer, or the link is busy with larger ones."""
        missing = [record for record in needs(task) if not is_at(outlook, record, site)]
        if not missing:
            return False
        trial = self._trials.get(site)
        if trial is not None and outlook.now < trial.since + TRIAL_S and not self._is_known(outlook, site):
            return True
        busy_s = self.link_free_at(outlook, site) - outlook.now
        if busy_s < AT_ONCE_S:
            return False
        if any(record.digest in self._ends(outlook, site) for record in missing):
            return True
        return sum(record.size for record in missing) / self.bandwidth(outlook, site) > BESIDE * busy_s > 0

    def comes(self, outlook: PolicyView, task: Task, site: str) -> bool:
        """Whether the task lacks files at the site and all of them are in transfer."""
        missing = [record.digest for record in needs(task) if not is_at(outlook, record, site)]
        return bool(missing) and all(digest in self._ends(outlook, site) for digest in missing)

    def trial(self, outlook: PolicyView, tasks: Iterable[Task], site: str) -> Task | None:
        """The first task that lacks files at a site whose link was never used.

        A large file over a slow link could not be taken back."""
        if site in self._trials or self._is_known(outlook, site):
            return None
        for task in tasks:
            missing = tuple(record for record in needs(task) if not is_at(outlook, record, site))
            if missing:
                self._trials[site] = LinkProbe(missing, outlook.now)
                return task
        return None

    def learnt(self, outlook: PolicyView) -> int:
        """How many first transfers were measured."""
        return sum(self._is_known(outlook, site) for site in self._trials)

    def begin(self, outlook: PolicyView, task: Task, site: str) -> None:
        """Note that the task's missing files are in transfer from now on."""
        ends = self._ends(outlook, site)
        for record in needs(task):
            if record.digest not in ends and not is_at(outlook, record, site):
                self._free_at[site] += record.size / self.bandwidth(outlook, site)
                ends[record.digest] = self._free_at[site]
                self._coming.setdefault(site, {})[record.digest] = self._free_at[site], task, outlook.now

    def look(self, outlook: PolicyView) -> None:
        """Remove transfers that have ended."""
        contents = outlook.state.contents
        for site, coming in self._coming.items():
            here = [digest for digest in coming if digest not in contents or is_at(outlook, contents[digest], site)]
            for digest in {*here, *(coming.keys() - self._ends(outlook, site).keys())}:
                del coming[digest]
        self._seen = None
