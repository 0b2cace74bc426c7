"""Estimates which files are at each site, which files are in transfer, and how fast the links are."""

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
"""Assumed bytes per second of a link without measurements. Small files are sent first, to measure the link."""
DISK = 500e6
"""Assumed bytes per second of copies on this machine. Such copies go from disk to disk and are not measured."""
MAX_SIDE_PART = 0.1
"""A small file can share the link with other transfers: its transfer must take at most this fraction of their remaining time."""
MAX_WAIT_S = 0.5
"""Maximum seconds for which a core is allowed to wait for files."""
OVERDUE_S = 1.0
"""A file that has not arrived at its expected time is expected this many seconds from now."""
PROBE_S = 5.0
"""After the first small files, a link without measurements gets no more files until it is measured, but at most for this many seconds."""
MIN_PROBE_BYTES, MIN_PROBE_S = 100_000, 0.01
MAX_PROBES, MAX_TASKS_PER_PROBE = 32, 16
"""Limits for ``probe_tasks``: maximum number of different sets of inputs, and maximum number of tasks with the same set of inputs."""
NEVER = float("inf")


def is_at(view: PolicyView, record: ContentRecord, site: str) -> bool:
    workers = view.state.workers
    return any(workers[name].site == site for name in record.holders)


def probe_tasks(tasks: Iterable[Task]) -> list[Task]:
    """Returns tasks whose inputs are small, but large enough to measure a link."""
    by_files: dict[tuple[ContentRecord, ...], list[Task]] = {}
    for task in tasks:
        if (wanted := needs(task)) and not task.suspect and len(group := by_files.setdefault(wanted, [])) < MAX_TASKS_PER_PROBE:
            group.append(task)
    sizes = {wanted: size for wanted in by_files if (size := sum(record.size for record in wanted)) >= MIN_PROBE_BYTES}
    return [task for wanted in nsmallest(MAX_PROBES, sizes, key=lambda wanted: sizes[wanted]) for task in by_files[wanted]]


class LinkProbe(NamedTuple):
    """The files that were sent first over a link to measure it, and when they were sent."""

    files: tuple[ContentRecord, ...]
    since: float


class LinkEstimates:
    """Keeps track of the transfers of files for assigned tasks. It assumes that the files arrive one after the other over the link of a
    site."""

    def __init__(self) -> None:
        self._in_transfer: dict[str, dict[str, tuple[float, Task, float]]] = {}
        """For each site and digest: when the content is expected, which task needs it, and when this task was assigned."""
        self._seen_view: PolicyView | None = None
        self._arrivals: dict[str, dict[str, float]] = {}
        self._free_at: dict[str, float] = {}
        """``_arrivals``: for the current view, the expected arrivals at each site, by digest. ``_free_at``: for each site, the time of the
        last of these arrivals."""
        self._probes: dict[str, LinkProbe] = {}
        self._rates: dict[str, float] = {}
        """For each site: bytes per second of the first transfer, used until the link is measured."""

    def bandwidth(self, view: PolicyView, site: str) -> float:
        """Returns the estimated bytes per second from the master to a site. A large error of the forecast reduces the estimate. The
        estimate must not be too high: the first bytes over an idle link are often fast, and a useless transfer cannot be undone."""
        measured = view.state.forecasts.bandwidth(site)
        if measured is not None:
            return max(1.0, measured.value / (1 + min(1.0, measured.error)))
        return DISK if site == LOCAL else self._rates.get(site, BANDWIDTH)

    def _is_known(self, view: PolicyView, site: str) -> bool:
        """Returns True if the speed of the site's link is known. The master measures only its own transfers. So this method measures the
        first transfer to the site in addition: when all files of this transfer have arrived, it divides their bytes by the elapsed time and
        stores the result as the speed of the link."""
        probe = self._probes.get(site)
        if probe is not None and site not in self._rates and all(is_at(view, record, site) for record in probe.files):
            self._rates[site] = sum(record.size for record in probe.files) / max(view.now - probe.since, MIN_PROBE_S)
        return site == LOCAL or site in self._rates or view.state.forecasts.bandwidth(site) is not None

    def arrival(self, view: PolicyView, record: ContentRecord, site: str) -> float:
        """Returns when a content is at the site: now if a worker of the site has it, the expected arrival if it is in transfer, and
        infinity in all other cases."""
        return view.now if is_at(view, record, site) else self._expected_arrivals(view, site).get(record.digest, NEVER)

    def link_free_at(self, view: PolicyView, site: str) -> float:
        self._expected_arrivals(view, site)
        return self._free_at[site]

    def _expected_arrivals(self, view: PolicyView, site: str) -> dict[str, float]:
        """Returns the expected arrival times at a site, by digest. A transfer counts as ended when the task that needs it runs or has left
        the site."""
        if self._seen_view is not view:
            self._seen_view, self._arrivals, self._free_at = view, {}, {}
        found = self._arrivals.get(site)
        if found is None:
            found = self._arrivals[site] = {}
            for digest, (end, task, since) in self._in_transfer.get(site, {}).items():
                waits = task.state == ASSIGNED and task.worker is not None and task.worker.site == site
                if waits or since == view.now:
                    found[digest] = end if end > view.now else view.now + OVERDUE_S
            self._free_at[site] = max(found.values(), default=view.now)
        return found

    def must_wait(self, view: PolicyView, task: Task, site: str) -> bool:
        """Returns True if a core with this task would only wait for files, because the files are in transfer, or because the link is busy
        with other files."""
        missing = [record for record in needs(task) if not is_at(view, record, site)]
        if not missing:
            return False
        probe = self._probes.get(site)
        if probe is not None and view.now < probe.since + PROBE_S and not self._is_known(view, site):
            return True
        busy_s = self.link_free_at(view, site) - view.now
        if busy_s < MAX_WAIT_S:
            return False
        if any(record.digest in self._expected_arrivals(view, site) for record in missing):
            return True
        return sum(record.size for record in missing) / self.bandwidth(view, site) > MAX_SIDE_PART * busy_s > 0

    def all_in_transfer(self, view: PolicyView, task: Task, site: str) -> bool:
        """Returns True if files of the task are missing at the site and all missing files are in transfer."""
        missing = [record.digest for record in needs(task) if not is_at(view, record, site)]
        return bool(missing) and all(digest in self._expected_arrivals(view, site) for digest in missing)

    def start_probe(self, view: PolicyView, tasks: Iterable[Task], site: str) -> Task | None:
        """Chooses the task whose files are sent first, to measure the link of the site. This is the first task in ``tasks`` that needs
        files which the site lacks. ``tasks`` should contain tasks with small files, because a transfer cannot be stopped. Returns None if
        there is no such task, if the speed of the link is known, or if a task was chosen before."""
        if site in self._probes or self._is_known(view, site):
            return None
        for task in tasks:
            missing = tuple(record for record in needs(task) if not is_at(view, record, site))
            if missing:
                self._probes[site] = LinkProbe(missing, view.now)
                return task
        return None

    def measured_probes(self, view: PolicyView) -> int:
        """Returns the number of links whose first transfer was measured."""
        return sum(self._is_known(view, site) for site in self._probes)

    def note_started(self, view: PolicyView, task: Task, site: str) -> None:
        """Records that the missing files of a task are in transfer from now on."""
        ends = self._expected_arrivals(view, site)
        for record in needs(task):
            if record.digest not in ends and not is_at(view, record, site):
                self._free_at[site] += record.size / self.bandwidth(view, site)
                ends[record.digest] = self._free_at[site]
                self._in_transfer.setdefault(site, {})[record.digest] = self._free_at[site], task, view.now

    def remove_ended(self, view: PolicyView) -> None:
        """Removes transfers that have ended."""
        contents = view.state.contents
        for site, in_transfer in self._in_transfer.items():
            arrived = [digest for digest in in_transfer if digest not in contents or is_at(view, contents[digest], site)]
            for digest in {*arrived, *(in_transfer.keys() - self._expected_arrivals(view, site).keys())}:
                del in_transfer[digest]
        self._seen_view = None
