"""Forecasts task times, transfers and queue waits from history.

The model of a task is ``seconds = cost x unit x slowness``. The *slowness* of a worker is its time for a task divided by the time of an
average worker for the same task. The *unit* of a task class is the time of a task with cost 1 at a worker of slowness 1. The unit is
forecast as a time series: each ended task adds its time, divided by its cost and by the slowness of its worker.

Slownesses are learned as logarithms. The *level* of a class is the logarithm of its unit. Each ended task gives one value for its worker:
the logarithm of the task time divided by the cost, minus the level of the class. The log slowness of a worker is the weighted mean of these
values. Classes whose values vary less have more weight. The mean is moved a little towards the mean of the site. In a young class, with at
most about ``YOUNG_SAMPLES`` ended tasks, the level of the class and the slownesses of its workers are computed together, from all these
tasks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice
from math import exp, hypot, inf, log, sqrt
from typing import Any

from pilotfish.core.learning.predictors import Forecast, LinkSeries, Series, quantile

MAX_CLASSES, MAX_WORKERS = 1_000, 20_000
"""Maximum number of task classes and of workers. If there are more, the class that was not used for the longest time is dropped, or the
worker that joined first."""
MAX_LOG = 30.0
"""Maximum absolute logarithm of a benchmark. Values beyond this limit are clamped."""
MAX_PENDING = 256
THINNED = [place.bit_count() % 2 for place in range(MAX_PENDING + 1)]
"""Pattern for shortening a list of pending observations that is too long: for each position, whether to keep the observation. Half of the
observations are kept. The pattern is the Thue-Morse sequence. The pattern does not drop every second observation: a worker whose tasks end
at every second position would then lose all observations or none. The list can become too long, because tens of thousands of tasks can end
between two queries."""
YOUNG_SAMPLES = 64
"""Maximum observations that a young class keeps. A class with this number of observations is no longer young."""
MAX_WORKER_SAMPLES, MAX_LEVEL_SAMPLES = 8, 16
"""Maximum number of past observations that count for a worker's mean and for a class level, so that both follow a change."""
RECENTRING, YOUNG_RECENTRING = 0.03, 0.1
"""These fractions keep the mean slowness of all workers near 1, that is, the mean log slowness near 0. At each observation, the first
fraction of the mean log slowness is subtracted from the new value of the worker. At each fit of a young class, the second fraction is
subtracted from the values of all its workers. The fractions are small, because the class levels must shift by the same amount as the log
slownesses, and a level changes only a little with each ended task."""
MAX_CLASSES_PER_WORKER = 16
"""Maximum classes from which the slowness of a worker is computed."""
SPREAD = 0.5
"""Assumed standard deviation of log slowness before the first observation."""
PRIOR = 1 / SPREAD**2
NEUTRAL = 0.25
"""Weight of the neutral estimate (from the benchmark, or slowness 1) in the expected slowness of a new worker. Each other worker of the
site has a weight of at most 1, if some of its tasks have ended."""
MAX_LEFT_WEIGHT = 8.0
"""Maximum weight of all ended workers together in the mean of their site."""
MIN_SCATTER, FIRST_SCATTER, OUTLIER = 0.0025, 0.05, 4.0
MIN_S = 1e-6
MIN_WAIT_S = 1.0
"""Minimum seconds of a queue wait. A shorter wait counts as this minimum."""
VAGUE_ERROR = 1.0
"""Relative error of a forecast that comes from other classes."""
LATEST_CLASSES = 16
"""Number of recently used classes from which the forecast quality and the typical task are computed."""


@dataclass(slots=True, eq=False)
class _Site:
    """Sums over the workers of a site: weights, and weighted logarithms of slowness."""

    weight: float = 0.0
    total: float = 0.0
    left_weight: float = 0.0
    left_total: float = 0.0
    wait: Series | None = None


@dataclass(slots=True, eq=False)
class _Class:
    """A task class. ``level``: logarithm of the unit of the class. Each ended task gives one value: the logarithm of its time divided by
    its cost and by the slowness of its worker. ``scatter``: variance of these values around the level."""

    name: str
    pending: list[tuple[str, str, float]] = field(default_factory=list)
    series: Series = field(default_factory=Series)
    level: float = 0.0
    scatter: float = FIRST_SCATTER
    learnt: int = 0
    settled: int = 0
    """Number of observations when the level and the slownesses were last fitted together."""
    shared: bool = False
    """Whether tasks of the class ran at several workers. With one worker, unit and slowness cannot be separated."""
    early: deque[tuple[_Host, float]] | None = field(default_factory=lambda: deque(maxlen=YOUNG_SAMPLES))


class _Host:
    """A worker. ``class_means``: for each class, the number of tasks, and the mean of their log times minus the level of the class."""

    __slots__ = ("benchmark", "class_means", "log", "present", "raw", "site", "weight")

    def __init__(self, site: _Site, benchmark: float) -> None:
        self.site = site
        self.benchmark = max(-MAX_LOG, min(MAX_LOG, log(benchmark))) if 0.0 < benchmark < inf else None
        self.class_means: OrderedDict[_Class, list[float]] = OrderedDict()
        self.log = self.raw = self.weight = 0.0
        self.present = True


class Forecasts:
    """Learns from ended tasks, transfers and queue waits, and answers queries of policies, users and the simulator."""

    def __init__(self) -> None:
        self._classes: OrderedDict[str, _Class] = OrderedDict()
        self._changed: list[_Class] = []
        self._hosts: OrderedDict[str, _Host] = OrderedDict()
        self._sites: dict[str, _Site] = {}
        self._links: dict[str, LinkSeries] = {}
        """For each site: the link from the master to the site."""
        self._benchmarks = [0.0, 0.0]
        """Sum of the logarithms of all known benchmarks, and number of these benchmarks."""
        self._benchmark_ratio = [0.0, 0.0]
        """For the workers whose slowness is learned: the sum of the logarithms of their benchmarks and slownesses, and the number of these
        workers."""
        self._all = _Site()
        """Present workers of all sites together."""
        self._quality: float | None = None

    # --- observations ----------------------------------------------------------------------------------------------------------------

    def joined(self, worker: str, site: str, benchmark: float = 0.0) -> None:
        """Adds a worker. If the worker is already known at this site, the learned slowness is kept. ``benchmark``: speed of the worker; a
        larger value means a faster worker, and 0 means unknown."""
        known = self._hosts.get(worker)
        if known is not None and known.site is self._site(site):
            return
        self.left(worker)
        if len(self._hosts) >= MAX_WORKERS:
            self.left(next(iter(self._hosts)))
        host = self._hosts[worker] = _Host(self._site(site), benchmark)
        _add(self._benchmarks, host.benchmark, 1)

    def left(self, worker: str) -> None:
        self._process_pending()
        host = self._hosts.get(worker)
        if host is None:
            return
        site, host.log, host.present = host.site, self._log(host), False
        del self._hosts[worker]
        for place in (site, self._all):
            place.weight -= host.weight
            place.total -= host.weight * host.raw
        keep = min(1.0, MAX_LEFT_WEIGHT / (site.left_weight + host.weight)) if host.weight else 1.0
        site.left_weight = (site.left_weight + host.weight) * keep
        site.left_total = (site.left_total + host.weight * host.raw) * keep
        _add(self._benchmarks, host.benchmark, -1)
        if host.weight:
            _add(self._benchmark_ratio, host.benchmark, -1, host.log)

    def task_ended(self, name: str, worker: str, site: str, seconds: float, cost: float = 1.0) -> None:
        kind = self._classes.get(name) or self._class(name)
        pending = kind.pending
        if not pending:
            self._changed.append(kind)
        pending.append((worker, site, seconds / cost if cost > 0.0 else seconds))
        if len(pending) > MAX_PENDING:
            pending[:] = compress(pending, THINNED)

    def transferred(self, site: str, size: float, seconds: float) -> None:
        """Records a transfer from the master to a site."""
        self._links.setdefault(site, LinkSeries()).observe(size, seconds)

    def waited(self, site: str, seconds: float) -> None:
        record = self._site(site)
        if record.wait is None:
            record.wait = Series()
        record.wait.observe(max(MIN_WAIT_S, seconds) if seconds >= 0.0 else seconds)

    # --- queries ---------------------------------------------------------------------------------------------------------------------

    def task(self, name: str, cost: float, worker: str, site: str) -> Forecast | None:
        """Forecasts the seconds of a task at this worker; None if no task of the class has ended."""
        unit = self.unit(name)
        if unit is None:
            return None
        host = self._hosts.get(worker)
        precision = PRIOR / (1 - host.weight) if host is not None else PRIOR
        # Half of a normal distribution lies within 0.67 standard deviations.
        error = hypot(unit.error, 0.67 / sqrt(precision))
        return unit._replace(value=cost * unit.value * self.slowness(worker, site), error=error)

    def guess(self) -> Forecast | None:
        """Forecasts the unit of an unknown class as the median unit of the latest known classes; None if no class is known."""
        self._process_pending()
        forecasts = [forecast for kind in self._latest() if (forecast := kind.series.forecast()) is not None]
        middle = quantile(sorted(forecast.value for forecast in forecasts), 0.5)
        return Forecast(middle, VAGUE_ERROR, "", sum(forecast.samples for forecast in forecasts)) if forecasts else None

    def unit(self, name: str) -> Forecast | None:
        """Forecasts the seconds of a task with cost 1 at a worker with slowness 1."""
        self._process_pending()
        kind = self._classes.get(name)
        return kind.series.forecast() if kind is not None else None

    def slowness(self, worker: str, site: str) -> float:
        """Returns the slowness of a worker. The mean of all workers is about 1."""
        self._process_pending()
        host = self._hosts.get(worker)
        return exp(self._log(host) if host is not None else self._prior(self._sites.get(site), None))

    def ratios(self, name: str) -> list[float]:
        """Returns, for recent tasks of a class, the actual time divided by the forecast. The ratios show how much the times of equal tasks
        differ at one worker."""
        self._process_pending()
        kind = self._classes.get(name)
        return kind.series.ratios() if kind is not None else []

    def transfer_s(self, site: str, size: float) -> Forecast | None:
        """Forecasts the seconds of one transfer while the usual number of other transfers is active."""
        link = self._links.get(site)
        return link.forecast(size) if link is not None else None

    def bandwidth(self, site: str) -> Forecast | None:
        """Forecasts bytes per second, without the latency."""
        empty, large = self.transfer_s(site, 0), self.transfer_s(site, 1e9)
        return large._replace(value=1e9 / (large.value - empty.value)) if empty is not None and large is not None else None

    def latency(self, site: str) -> float:
        """Returns the seconds of an empty transfer; 0 or nearly 0 if no latency is known."""
        empty = self.transfer_s(site, 0)
        return empty.value if empty is not None else 0.0

    def wait(self, site: str) -> Forecast | None:
        """Forecasts how many seconds a pilot waits in the queue of the site."""
        record = self._sites.get(site)
        return record.wait.forecast() if record is not None and record.wait is not None else None

    def quality(self) -> float | None:
        """Returns the median relative error of recent task forecasts; None if there are none."""
        self._process_pending()
        if self._quality is None:
            wrong = sorted(abs(ratio - 1.0) for kind in self._latest() for ratio in kind.series.ratios())
            self._quality = quantile(wrong, 0.5) if wrong else None
        return self._quality

    def table(self) -> list[dict[str, Any]]:
        self._process_pending()
        series = [(f"task {name}", kind.series, "s") for name, kind in self._classes.items()]
        series += [(f"wait {name}", site.wait, "s") for name, site in self._sites.items() if site.wait is not None]
        rows = [_forecast_row(what, each, unit) for what, each, unit in series]
        for to, link in self._links.items():
            bandwidth = self.bandwidth(to)
            row = _forecast_row(f"link master -> {to}", link.series, "bytes/s")
            rows.append({**row, "forecast": bandwidth and bandwidth.value, "latency_s": self.latency(to)})
        return rows

    # --- learning -------------------------------------------------------------------------------------------------------------------

    def _class(self, name: str) -> _Class:
        if len(self._classes) >= MAX_CLASSES:
            self._process_pending()
            self._classes.popitem(last=False)
        kind = self._classes[name] = _Class(name)
        return kind

    def _site(self, name: str) -> _Site:
        return self._sites.get(name) or self._sites.setdefault(name, _Site())

    def _latest(self) -> Iterator[_Class]:
        return islice(reversed(self._classes.values()), LATEST_CLASSES)

    def _log(self, host: _Host) -> float:
        return host.log if host.weight else self._prior(host.site, host.benchmark)

    def _prior(self, site: _Site | None, benchmark: float | None) -> float:
        """Estimates the log slowness of a worker of which no task has ended yet."""
        neutral = 0.0
        if benchmark is not None:
            total, count = self._benchmarks
            known, learnt = self._benchmark_ratio
            neutral = (known + total / count) / (learnt + 1) - benchmark
        if site is None:
            return neutral
        return (site.total + site.left_total + NEUTRAL * neutral) / (site.weight + site.left_weight + NEUTRAL)

    def _process_pending(self) -> None:
        if not self._changed:
            return
        changed, self._changed, self._quality = self._changed, [], None
        for kind in changed:
            pending, kind.pending = kind.pending, []
            if kind.name in self._classes:
                self._classes.move_to_end(kind.name)
            for worker, site, seconds in pending:
                if 0.0 <= seconds < inf:
                    host = self._hosts.get(worker)
                    if host is None:
                        self.joined(worker, site)
                        host = self._hosts[worker]
                    self._learn(kind, host, max(seconds, MIN_S))
        young = [kind for kind in changed if kind.early and kind.shared]
        for kind in young * 2:
            # Each class is fitted twice, because each fit changes the slownesses that the other classes use.
            self._settle(kind)
        for kind in young:
            self._remeasure(kind)

    def _learn(self, kind: _Class, host: _Host, seconds: float) -> None:
        before, log_s = self._log(host), log(seconds)
        kind.series.observe(seconds / exp(before))
        kind.learnt += 1
        if kind.early is not None:
            kind.shared = kind.shared or bool(kind.early and kind.early[0][0] is not host)
            kind.early.append((host, log_s))
            if kind.shared and kind.learnt * 4 > kind.settled * 5:
                self._settle(kind)
                self._remeasure(kind)
                return
        count = min(kind.learnt, MAX_LEVEL_SAMPLES)
        if kind.shared:
            limit = OUTLIER * sqrt(kind.scatter)
            wrong = max(-limit, min(limit, log_s - kind.level - before))
            kind.scatter = max(MIN_SCATTER, kind.scatter + (wrong * wrong - kind.scatter) / (2 * MAX_LEVEL_SAMPLES))
            class_mean = host.class_means.get(kind)
            if class_mean is None:
                host.class_means[kind] = [1.0, log_s - kind.level]
            else:
                class_mean[0] = min(class_mean[0] + 1.0, MAX_WORKER_SAMPLES)
                class_mean[1] += (max(-limit, min(limit, log_s - kind.level - class_mean[1])) - RECENTRING * self._centre()) / class_mean[0]
            self._weigh(host)
        kind.level += (log_s - self._log(host) - kind.level) / count

    def _settle(self, kind: _Class) -> None:
        """Computes the level of a young class. In this step, the slowness of each worker comes only from its tasks of other classes. After
        that, computes the slownesses of the workers with the new level."""
        early = kind.early or ()
        sums: dict[_Host, list[float]] = {}
        for host, log_s in early:
            count_total = sums.setdefault(host, [0.0, 0.0])
            count_total[0] += 1.0
            count_total[1] += log_s
        above = below = 0.0
        for host, (count, total) in sums.items():
            precision, value = self._elsewhere(host, kind)
            weight = 1 / (kind.scatter / count + 1 / precision)
            above += weight * (total / count - value)
            below += weight
        kind.level = above / below + YOUNG_RECENTRING * self._centre()
        for host, (count, total) in sums.items():
            if host.present:
                host.class_means[kind] = [min(count, MAX_WORKER_SAMPLES), total / count - kind.level]
                self._weigh(host)
        squares = sum((log_s - kind.level - host.log) ** 2 for host, log_s in early)
        freedom = max(0, len(early) - len(sums))
        kind.scatter = max(MIN_SCATTER, (2 * FIRST_SCATTER + squares) / (2 + freedom))
        kind.settled = kind.learnt

    def _remeasure(self, kind: _Class) -> None:
        """Replaces the observed units of a young class. The new units are the times of its tasks, divided by the current slownesses of the
        workers."""
        kind.series.relearn([exp(log_s - host.log) for host, log_s in kind.early or ()])
        if kind.learnt >= YOUNG_SAMPLES:
            kind.early = None

    def _centre(self) -> float:
        return self._all.total / (self._all.weight + 1.0)

    def _elsewhere(self, host: _Host, kind: _Class) -> tuple[float, float]:
        """Returns the precision and the value of a worker's log slowness, without the worker's tasks of this class. For a worker that has
        left the pool, returns the last precision and value; they include these tasks."""
        if not host.present:
            return PRIOR / (1 - host.weight), host.log
        precision, weighted_sum = self._evidence(host, kind)
        return precision + PRIOR, (weighted_sum + PRIOR * self._prior(host.site, host.benchmark)) / (precision + PRIOR)

    def _evidence(self, host: _Host, without: _Class | None = None) -> tuple[float, float]:
        """Returns the sum of the precisions of a worker's class means, and the sum of precision x mean, both without class ``without``."""
        precision = weighted_sum = 0.0
        for kind, (count, mean) in host.class_means.items():
            if kind is not without:
                precision += count / kind.scatter
                weighted_sum += count / kind.scatter * mean
        return precision, weighted_sum

    def _weigh(self, host: _Host) -> None:
        """Computes the slowness of a worker from its mean of each task class. Updates the sums of slownesses of its site."""
        if len(host.class_means) > MAX_CLASSES_PER_WORKER:
            host.class_means.popitem(last=False)
        precision, weighted_sum = self._evidence(host)
        value = (weighted_sum + PRIOR * self._prior(host.site, host.benchmark)) / (precision + PRIOR)
        raw, weight = weighted_sum / precision, precision / (precision + PRIOR)
        if host.weight:
            _add(self._benchmark_ratio, host.benchmark, -1, host.log)
        _add(self._benchmark_ratio, host.benchmark, 1, value)
        for place in (host.site, self._all):
            place.weight += weight - host.weight
            place.total += weight * raw - host.weight * host.raw
        host.log, host.raw, host.weight = value, raw, weight

    # --- snapshots ------------------------------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[list[Any]]:
        """Yields everything that was learned, as rows. To restore it, call :meth:`restore` with each row, in the same order."""
        self._process_pending()
        names = {id(host): worker for worker, host in self._hosts.items()}
        sites = {id(site): name for name, site in self._sites.items()}
        for name, kind in self._classes.items():
            plain = [kind.level, kind.scatter, kind.learnt, kind.settled, kind.shared, kind.early is None]
            yield ["class", name, plain, kind.series.row()]
        for name, site in self._sites.items():
            yield ["site", name, site.left_weight, site.left_total, site.wait and site.wait.row()]
        for worker, host in self._hosts.items():
            means = [[kind.name, *mean] for kind, mean in host.class_means.items() if self._classes.get(kind.name) is kind]
            yield ["worker", worker, sites[id(host.site)], host.benchmark, [host.log, host.raw, host.weight], means]
        for name, kind in self._classes.items():
            if kind.early:
                yield ["early", name, [[names.get(id(host)) or [host.log, host.weight], log_s] for host, log_s in kind.early]]
        for to, link in self._links.items():
            yield ["link", to, "", link.row()]  # the empty string stands for the master

    def restore(self, row: Sequence[Any]) -> None:
        kind, name, *rest = row
        getattr(self, f"_restore_{kind}")(name, *rest)

    def _restore_class(self, name: str, plain: Sequence[Any], series: Sequence[Any]) -> None:
        kind = self._classes[name] = _Class(name)
        kind.level, kind.scatter, kind.learnt, kind.settled, kind.shared, grown = plain
        kind.series = Series.from_row(series)
        if grown:
            kind.early = None

    def _restore_site(self, name: str, left_weight: float, left_total: float, wait: Sequence[Any] | None) -> None:
        site = self._site(name)
        site.left_weight, site.left_total, site.wait = left_weight, left_total, Series.from_row(wait) if wait else None

    def _restore_worker(self, worker: str, site: str, benchmark: float | None, learnt: Sequence[float], class_means: Sequence[Any]) -> None:
        self.joined(worker, site)
        host = self._hosts[worker]
        host.benchmark = benchmark
        host.log, host.raw, host.weight = learnt
        host.class_means.update((self._classes[name], [count, mean]) for name, count, mean in class_means)
        _add(self._benchmarks, benchmark, 1)
        if host.weight:
            _add(self._benchmark_ratio, benchmark, 1, host.log)
        for place in (host.site, self._all):
            place.weight += host.weight
            place.total += host.weight * host.raw

    def _restore_early(self, name: str, early: Sequence[Any]) -> None:
        """Restores the task times of a young class. ``early`` has one pair per task. The first element is the name of the worker or, if the
        worker has left the pool, its log slowness and weight. The second element is the logarithm of the task time."""
        left: dict[tuple[float, float], _Host] = {}
        kept = self._classes[name].early = deque(maxlen=YOUNG_SAMPLES)
        for key, log_s in early:
            host = self._hosts[key] if isinstance(key, str) else left.setdefault(tuple(key), _Host(_Site(), 0.0))
            if not isinstance(key, str):
                (host.log, host.weight), host.present = key, False
            kept.append((host, log_s))

    def _restore_link(self, site: str, source: str, row: Sequence[Any]) -> None:
        self._links[site] = LinkSeries.from_row(row)


def _add(sums: list[float], benchmark: float | None, sign: int, more: float = 0.0) -> None:
    if benchmark is not None:
        sums[0] += sign * (benchmark + more)
        sums[1] += sign


def _forecast_row(what: str, series: Series, unit: str) -> dict[str, Any]:
    forecast = series.forecast()
    value, error, predictor, samples = forecast or (None, None, "", 0)
    return {"what": what, "forecast": value, "unit": unit, "error": error, "predictor": predictor, "samples": samples}
