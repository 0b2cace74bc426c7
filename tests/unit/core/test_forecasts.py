"""What is learnt about tasks, workers, links and queues: classes and workers are told apart, changes are followed, and nothing grows."""

from __future__ import annotations

import json
from math import exp, inf, log, nan
from random import Random
from statistics import mean, median

import pytest

from pilotfish.core.learning import forecasts as under_test
from pilotfish.core.learning.forecasts import Forecasts
from pilotfish.core.learning.predictors import Forecast

UNITS = [1.0, 3.0, 10.0, 30.0, 100.0]


class Hosts:
    """Workers of known slowness that run tasks of known classes."""

    def __init__(self, slowness: list[float], noise: float = 0.1, seed: int = 1) -> None:
        self.slowness, self.noise, self.dice = slowness, noise, Random(seed)
        self.forecasts = Forecasts()

    def run(self, kind: int, host: int, site: str = "reef") -> None:
        cost = self.dice.uniform(1, 20)
        seconds = cost * UNITS[kind] * self.slowness[host] * exp(self.dice.gauss(0, self.noise))
        self.forecasts.task_ended(f"c{kind}", f"w{host}", site, seconds, cost)

    def errors(self, kinds: int, site: str = "reef") -> list[float]:
        pairs = [(kind, host) for kind in range(kinds) for host in range(len(self.slowness))]
        return [abs(self.told(kind, host, site) / UNITS[kind] / self.slowness[host] - 1) for kind, host in pairs]

    def told(self, kind: int, host: int, site: str = "reef") -> float:
        return sure(self.forecasts.task(f"c{kind}", 1, f"w{host}", site)).value

    def geometric_mean(self) -> float:
        return exp(mean(log(self.forecasts.slowness(f"w{host}", "reef")) for host in range(len(self.slowness))))


def sure(forecast: Forecast | None) -> Forecast:
    assert forecast is not None
    return forecast


def unequal(count: int, dice: Random) -> list[float]:
    slowness = [0.5 * 8 ** (place / (count - 1)) for place in range(count)]
    dice.shuffle(slowness)
    return slowness


def snapshot(forecasts: Forecasts) -> Forecasts:
    again = Forecasts()
    for row in forecasts.rows():
        again.restore(json.loads(json.dumps(row)))
    return again


# --- tasks --------------------------------------------------------------------------------------------------------------------------


def test_nothing_is_told_of_what_was_never_seen() -> None:
    forecasts = Forecasts()
    assert forecasts.task("a", 1, "w", "reef") is None and forecasts.unit("a") is None and forecasts.guess() is None
    assert forecasts.slowness("w", "reef") == 1 and forecasts.ratios("a") == [] and forecasts.quality() is None
    assert forecasts.table() == [] and list(forecasts.rows()) == []


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_twenty_unequal_workers_are_known_after_three_tasks_each(seed: int, asked: bool) -> None:
    hosts = Hosts(unequal(20, Random(seed)), seed=seed)
    tasks = [(hosts.dice.randrange(5), host) for host in range(20) for _ in range(3)]
    hosts.dice.shuffle(tasks)
    for kind, host in tasks:
        hosts.run(kind, host)
        if asked:
            hosts.forecasts.task("c0", 1, "w0", "reef")
    assert median(hosts.errors(5)) < 0.15
    for kind, host in tasks * 5:
        hosts.run(kind, host)
    errors = hosts.errors(5)
    assert median(errors) < 0.05 and max(errors) < 0.2
    assert 0.7 < hosts.geometric_mean() < 1.4


def test_a_class_seen_at_one_worker_only_tells_nothing_about_that_worker() -> None:
    hosts = Hosts([4.0, 1.0], noise=0.0)
    for _ in range(10):
        hosts.run(2, 0)
    assert hosts.forecasts.slowness("w0", "reef") == 1 and sure(hosts.forecasts.unit("c2")).value == pytest.approx(40)
    assert hosts.told(2, 0) == pytest.approx(40)
    hosts.run(2, 1)
    ratio = hosts.forecasts.slowness("w0", "reef") / hosts.forecasts.slowness("w1", "reef")
    assert ratio == pytest.approx(4, rel=0.3) and hosts.told(2, 0) == pytest.approx(40, rel=0.1)


def test_when_tasks_of_a_class_change_workers_are_not_blamed() -> None:
    hosts = Hosts(unequal(50, Random(2)))
    for place in range(2_000):
        hosts.run(0, place % 50)
    before = [hosts.forecasts.slowness(f"w{host}", "reef") for host in range(50)]
    hosts.slowness = [3 * slowness for slowness in hosts.slowness]
    for place in range(100):
        hosts.run(0, place % 50)
    after = [hosts.forecasts.slowness(f"w{host}", "reef") for host in range(50)]
    assert median(hosts.errors(1)) < 0.1
    assert max(abs(log(now / then)) for now, then in zip(after, before, strict=True)) < 0.35


def test_a_worker_that_becomes_slow_is_noticed() -> None:
    hosts = Hosts([1.0] * 10)
    for place in range(500):
        hosts.run(0, place % 10)
    hosts.slowness[3] = 4.0
    for place in range(250):
        hosts.run(0, place % 10)
    assert hosts.told(0, 3) == pytest.approx(4, rel=0.25) and hosts.told(0, 4) == pytest.approx(1, rel=0.15)


def test_one_hanging_task_does_not_make_its_worker_a_slow_one() -> None:
    hosts = Hosts([1.0] * 4)
    for place in range(200):
        hosts.run(0, place % 4)
    hosts.forecasts.task_ended("c0", "w1", "reef", 1_000.0)
    hosts.run(0, 0)
    assert hosts.told(0, 1) == pytest.approx(1, rel=0.25)


def test_slownesses_stay_about_one_on_the_whole() -> None:
    hosts = Hosts([0.5, 1.0, 2.0, 4.0], noise=0.3)
    for place in range(10_000):
        hosts.run(place % 2, hosts.dice.randrange(4))
        if place == 3_000:
            hosts.slowness = [6.0, 1.0, 2.0, 4.0]
    assert 0.7 < hosts.geometric_mean() < 1.4 and median(hosts.errors(2)) < 0.2


def test_a_new_worker_is_thought_to_be_as_its_site() -> None:
    hosts = Hosts([0.5] * 5 + [2.0] * 5)
    for place in range(200):
        hosts.run(0, place % 10, "reef" if place % 10 < 5 else "pond")
    forecasts = hosts.forecasts
    known, new = sure(forecasts.task("c0", 1, "w0", "reef")), sure(forecasts.task("c0", 1, "new", "reef"))
    assert new.value == pytest.approx(0.5, rel=0.15) and sure(forecasts.task("c0", 1, "new", "pond")).value == pytest.approx(2, rel=0.15)
    assert known.error < new.error


def test_a_new_worker_of_an_unknown_site_is_judged_by_its_benchmark_against_the_others() -> None:
    hosts = Hosts([1.0, 2.0])
    hosts.forecasts.joined("w0", "reef", 200.0)
    hosts.forecasts.joined("w1", "pond", 100.0)
    assert hosts.forecasts.slowness("w1", "pond") / hosts.forecasts.slowness("w0", "reef") == pytest.approx(2, rel=0.01)
    for place in range(40):
        hosts.run(0, place % 2, ("reef", "pond")[place % 2])
    hosts.forecasts.joined("fast", "lake", 800.0)
    hosts.forecasts.joined("unknown", "lake", 0.0)
    assert sure(hosts.forecasts.task("c0", 1, "fast", "lake")).value == pytest.approx(0.25, rel=0.25)
    assert hosts.forecasts.slowness("unknown", "lake") == 1


def test_a_worker_that_left_is_remembered_by_its_site() -> None:
    hosts = Hosts([3.0, 1.0])
    for place in range(40):
        hosts.run(0, place % 2, ("pond", "reef")[place % 2])
    before = hosts.forecasts.slowness("w0", "pond")
    hosts.forecasts.left("w0")
    hosts.forecasts.left("w0")
    assert not [row for row in hosts.forecasts.rows() if row[:2] == ["worker", "w0"]]
    assert hosts.forecasts.slowness("another", "pond") == pytest.approx(before, rel=0.2)
    hosts.forecasts.left("w1")
    hosts.run(0, 0, "pond")
    assert hosts.told(0, 0, "pond") == pytest.approx(3, rel=0.3)


def test_one_that_joins_again_is_still_known() -> None:
    hosts = Hosts([3.0, 1.0])
    for place in range(40):
        hosts.run(0, place % 2)
    before = hosts.forecasts.slowness("w0", "reef")
    hosts.forecasts.joined("w0", "reef", 0.0)
    assert hosts.forecasts.slowness("w0", "reef") == before


def test_ratios_are_what_cost_and_worker_do_not_explain() -> None:
    hosts = Hosts(unequal(10, Random(3)), noise=0.3)
    for place in range(2_000):
        hosts.run(0, place % 10)
    ratios = hosts.forecasts.ratios("c0")
    assert len(ratios) == 64
    spread = mean(log(ratio) ** 2 for ratio in ratios) ** 0.5
    assert 0.2 < spread < 0.45
    assert 0.1 < (hosts.forecasts.quality() or 0) < 0.35


def test_an_unknown_class_is_guessed_from_the_others_and_vaguely() -> None:
    hosts = Hosts([1.0], noise=0.0)
    for kind in range(5):
        hosts.run(kind, 0)
    guess = sure(hosts.forecasts.guess())
    assert guess.value == pytest.approx(10) and guess.error >= 1 and guess.samples == 5


def test_nonsense_is_ignored() -> None:
    forecasts = Forecasts()
    for seconds, cost in ((nan, 1.0), (inf, 1.0), (-1.0, 1.0)):
        forecasts.task_ended("a", "w", "reef", seconds, cost)
    assert forecasts.unit("a") is None
    forecasts.task_ended("a", "w", "reef", 0.0, 0.0)
    assert sure(forecasts.unit("a")).value > 0


# --- how much is kept ---------------------------------------------------------------------------------------------------------------


def test_of_a_flood_of_short_tasks_not_each_is_kept_but_all_workers_are_learnt() -> None:
    forecasts = Forecasts()
    for place in range(20_000):
        forecasts.task_ended("a", f"w{place % 2}", "reef", 0.01 * (1 + place % 2))
        if place % 1_000 == 0:
            forecasts.slowness("w0", "reef")
    assert forecasts.slowness("w1", "reef") / forecasts.slowness("w0", "reef") == pytest.approx(2, rel=0.1)
    assert sure(forecasts.unit("a")).samples < 8_000


def test_a_rare_class_is_not_lost_in_a_flood_of_another() -> None:
    forecasts = Forecasts()
    for place in range(20_000):
        forecasts.task_ended("common", "w", "reef", 0.01)
        if place % 5_000 == 0:
            forecasts.task_ended("rare", "w", "reef", 100.0)
    rare = sure(forecasts.task("rare", 1, "w", "reef"))
    assert rare.value == pytest.approx(100) and rare.samples == 4


def test_classes_not_used_for_long_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MAX_CLASSES", 3)
    forecasts = Forecasts()
    for name in ("a", "b", "c", "a", "d"):
        forecasts.task_ended(name, "w", "reef", 1.0)
        forecasts.unit("a")
    assert [name for name in "abcd" if forecasts.unit(name)] == ["a", "c", "d"]


def test_workers_that_never_say_that_they_leave_are_forgotten_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MAX_WORKERS", 3)
    forecasts = Forecasts()
    for place in range(10):
        forecasts.task_ended("a", f"w{place}", "reef", 1.0 + place)
    assert sum(row[0] == "worker" for row in forecasts.rows()) == 3
    again = snapshot(forecasts)
    again.task_ended("a", "w9", "reef", 9.0)
    assert again.unit("a")


# --- links and queues ---------------------------------------------------------------------------------------------------------------


def test_links_are_learnt_by_site() -> None:
    forecasts = Forecasts()
    for place in range(20):
        size = 10.0 ** (3 + place % 6)
        forecasts.transferred("reef", size, 0.1 + size / 1e6)
        forecasts.transferred("lake", size, 0.01 + size / 1e8)
    assert sure(forecasts.bandwidth("reef")).value == pytest.approx(1e6, rel=0.05)
    assert forecasts.latency("reef") == pytest.approx(0.1, rel=0.05)
    assert sure(forecasts.transfer_s("lake", 1e9)).value == pytest.approx(10.01, rel=0.05)
    assert forecasts.transfer_s("pond", 1) is None and forecasts.bandwidth("pond") is None and forecasts.latency("pond") == 0


def test_waits_are_those_of_the_site() -> None:
    forecasts = Forecasts()
    for seconds in (60.0, 70.0, 65.0, 62.0, -5.0):
        forecasts.waited("reef", seconds)
    forecasts.waited("pond", 0.0)
    wait = sure(forecasts.wait("reef"))
    assert wait.value == pytest.approx(65, rel=0.1) and wait.samples == 4
    assert sure(forecasts.wait("pond")).value == 1 and forecasts.wait("lake") is None


# --- people and snapshots -----------------------------------------------------------------------------------------------------------


def everything() -> Hosts:
    hosts = Hosts(unequal(6, Random(4)))
    hosts.forecasts.joined("w0", "reef", 100.0)
    hosts.forecasts.joined("w1", "reef", 50.0)
    for place in range(150):
        hosts.run(place % 3, hosts.dice.randrange(6))
    hosts.run(4, 0)
    hosts.forecasts.left("w5")
    hosts.forecasts.waited("reef", 30.0)
    hosts.forecasts.transferred("reef", 1e6, 2.0)
    return hosts


def test_the_table_says_what_is_forecast_and_how_well() -> None:
    table = {row["what"]: row for row in everything().forecasts.table()}
    assert list(table) == ["task c0", "task c1", "task c2", "task c4", "wait reef", "link master -> reef"]
    assert table["task c1"]["samples"] == 50 and 0 < table["task c1"]["error"] < 0.5 and table["task c1"]["predictor"]
    assert table["link master -> reef"]["forecast"] == pytest.approx(5e5, rel=0.01)
    json.dumps(list(table.values()))


def test_a_snapshot_tells_the_same_and_learns_the_same_from_then_on() -> None:
    hosts = everything()
    again = snapshot(hosts.forecasts)
    same = Hosts(hosts.slowness)
    same.forecasts = again
    assert list(again.rows()) == list(hosts.forecasts.rows())
    for place in range(60):
        for each in (hosts, same):
            each.dice = Random(place)
            each.run(place % 5, place % 5)
        assert same.told(place % 5, place % 5) == pytest.approx(hosts.told(place % 5, place % 5), rel=1e-6)
        assert again.slowness("new", "reef") == pytest.approx(hosts.forecasts.slowness("new", "reef"), rel=1e-6)
    assert again.quality() == pytest.approx(hosts.forecasts.quality())
    assert again.transfer_s("reef", 5e6) == hosts.forecasts.transfer_s("reef", 5e6) and again.wait("reef") == hosts.forecasts.wait("reef")
