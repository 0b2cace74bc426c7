"""Tests sites with delegated tasks while site masters are killed, agents come and go, and the master dies.

All tasks are done, each is counted once, no attempt runs twice, results are right, every worker gets tasks, and sites continue with their
delegated tasks while the master is down.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

import pilotfish
from pilotfish.errors import TaskFailed
from pilotfish.model import facts as f
from tests.chaos.scene import wait_until
from tests.chaos.three_sites import CAN_HIDE, ThreeSites, three_sites

INPUT_BYTES = 500_000
KEPT_BYTES = 100_000
LOSSES = 1000
"""Maximum losses per task, because kills are not the task's fault."""
FEW_LOSSES = 12
"""Maximum losses of tasks whose input may be lost for good, so that they fail in the end."""
GONE = "was kept where it was made, and no present worker has it"
UNLUCKY = "workers died while they ran task"
"""Accepted failures: the only node with the input died, or the task's workers were killed three times. In both cases the user must retry.
"""
SCRIPT = (
    "echo start $PILOTFISH_TASK $PILOTFISH_ATTEMPT >> {log}; {act}; sleep {seconds}; echo end $PILOTFISH_TASK $PILOTFISH_ATTEMPT >> {log}"
)


class Size(NamedTuple):
    pilots: int
    """Number of pilots at each site."""
    tasks: int
    seconds: float
    every_s: float
    """Seconds between two kills."""
    away_s: float
    masters_killed: int
    patience_s: float


SMALL = Size(4, 240, 0.3, 2.0, 3.0, 1, 120.0)
LARGE = Size(20, 4000, 1.5, 1.0, 8.0, 2, 900.0)


class Work:
    """Tasks of four kinds with their expected output. If a kept file is lost with its node, its task runs again."""

    def __init__(self, sites: ThreeSites, run: pilotfish.Run, size: Size) -> None:
        self.sites = sites
        self.run = run
        self.size = size
        self.futures: dict[Any, tuple[str, str, dict[str, Any]]] = {}
        """Script, expected output and options of each task."""
        self.made: list[tuple[Any, str]] = []
        self.made_again = self.unlucky = 0
        self.inputs = []
        for number in range(4):
            path = sites.hidden / f"input{number}"
            path.write_bytes(os.urandom(INPUT_BYTES))
            self.inputs.append((path, hashlib.sha256(path.read_bytes()).hexdigest()))

    def submit_all(self) -> None:
        for number in range(self.size.tasks):
            path, digest = self.inputs[number % len(self.inputs)]
            if number % 10 == 1:
                self.add("sha256sum < in", digest, inputs={"in": path})
            elif number % 50 == 2:
                self.make(str(number))
            else:
                self.add(f"echo {number}", str(number))

    def submit_more(self) -> None:
        """Keep enough tasks for the sites while the master is down, even on a slow machine."""
        for _ in range(self.size.tasks // 4 - self.unfinished()):
            self.add("echo more", "more")

    def add(self, act: str, expected: str, **options: Any) -> Any:
        script = SCRIPT.format(log=self.sites.effects, act=act, seconds=self.size.seconds)
        future = self.run.executable(["sh", "-c", script], **{"sandbox": True, "losses": LOSSES, **options})
        self.futures[future] = (act, expected, options)
        return future

    def make(self, word: str) -> None:
        future = self.add(f"yes {word} | head -c {KEPT_BYTES} > kept; echo {word}", word, keep=["kept"])
        self.made.append((future, word))

    def use_what_was_made(self) -> None:
        """Submit a task for each kept file that exists by now; called repeatedly."""
        made, self.made = self.made, []
        for future, word in made:
            if future.done():
                kept = future.result().files["kept"]
                self.add(
                    "tail -c 4096 in | sort | uniq | grep -cx . > /dev/null; head -n 1 in", word, inputs={"in": kept}, losses=FEW_LOSSES
                )
            else:
                self.made.append((future, word))

    def unfinished(self) -> int:
        self.use_what_was_made()
        return sum(not future.done() for future in self.futures) + len(self.made)

    def check_results(self) -> None:
        for future, (act, expected, options) in list(self.futures.items()):
            try:
                said = future.result(timeout=0).text.split()[0]
            except TaskFailed as error:
                del self.futures[future]
                if GONE in str(error):
                    self.made_again += 1
                    self.make(expected)
                else:
                    assert UNLUCKY in str(error), error
                    self.unlucky += 1
                    self.add(act, expected, **options)
            else:
                assert said == expected

    def finish(self) -> None:
        deadline = time.monotonic() + self.size.patience_s
        while True:
            while left := self.unfinished():
                assert time.monotonic() < deadline, f"{left} tasks never ended: {stuck(self.sites)}"
                time.sleep(0.05)
            self.check_results()
            if not self.unfinished():
                return


def stuck(sites: ThreeSites) -> dict[str, Any]:
    """Collect information about tasks that never ended."""
    (run,) = sites.ask("runs")
    unfinished = [row for state in ("ready", "assigned", "running") for row in sites.ask("tasks", run=run["run"], state=state)][:5]
    facts = sites.facts()
    stories = {row["id"]: sites.story(row["index"], facts) for row in unfinished}
    return {"counts": run["counts"], "tasks": unfinished, "stories": stories, "workers": sites.workers()}


class Storm:
    """Kills at a steady rate, mostly site masters."""

    KINDS = ("agent", "site master", "power", "site master", "leave")

    def __init__(self, sites: ThreeSites, random: Random, every_s: float) -> None:
        self.sites = sites
        self.random = random
        self.every_s = every_s
        self.next_at = time.monotonic()
        self.count = 0

    def blow(self) -> None:
        if time.monotonic() < self.next_at:
            return
        self.next_at = time.monotonic() + self.every_s * self.random.uniform(0.5, 1.5)
        kind = self.KINDS[self.count % len(self.KINDS)]
        self.count += 1
        site = self.random.choice(self.sites.names)
        if kind != "site master":
            if there := self.sites.workers(site):
                self.sites.strike(kind, self.random.choice(there))
        elif master := self.sites.master_of(site):
            self.sites.strike(self.random.choice(("agent", "power")), master)
            self.sites.kills["site masters among them"] += 1


def until(condition: Callable[[], bool], each_time: Callable[[], None], patience_s: float, sites: ThreeSites) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, stuck(sites)
        each_time()
        time.sleep(0.05)


def be_away(sites: ThreeSites, work: Work, size: Size) -> dict[str, int]:
    """Kill the master, let the sites work alone for a while, restart it, and return what they did.

    The master dies just after a worker has joined. Peers learn of that worker while no master can, and it must get tasks all the same.
    """
    before = set(sites.workers())
    sites.strike("agent", max(before))
    until(lambda: not before.issuperset(sites.workers()), work.submit_more, size.patience_s, sites)
    until(lambda: any(row["lent"] > 1 for row in sites.ask("workers")), work.submit_more, size.patience_s, sites)
    sites.kill_master()
    began, ended = set(sites.logged("start")), set(sites.logged("end"))
    back_at = time.monotonic() + size.away_s
    wait_until(
        lambda: set(sites.logged("start")) != began and set(sites.logged("end")) != ended, "sites to begin and end tasks by themselves"
    )
    wait_until(lambda: time.monotonic() > back_at, "time to pass")
    did = {"began": len(set(sites.logged("start")) - began), "ended": len(set(sites.logged("end")) - ended)}
    sites.restart_master()
    return did


def assert_nobody_is_wedged(sites: ThreeSites, run: pilotfish.Run, patience_s: float) -> None:
    """Check that every worker gets a task once the kills have stopped."""
    deadline = time.monotonic() + patience_s
    served: set[str] = set()
    while idle := set(sites.workers()) - served:
        assert time.monotonic() < deadline, f"nobody gives work to {idle}: {sites.ask('workers')}"
        script = ["sh", "-c", "sleep 0.5; echo $PILOTFISH_WORKER"]
        futures = [run.executable(script, sandbox=True, losses=LOSSES, priority=1) for _ in range(2 * len(sites.workers()))]
        served |= {future.result(timeout=patience_s).text.strip() for future in futures}


def assert_each_was_counted_once(sites: ThreeSites, run: pilotfish.Run) -> Counter[str]:
    facts = sites.facts()
    done = Counter(task for fact in facts if isinstance(fact, f.TasksDone) for task in fact.tasks)
    assert max(done.values()) == 1, done.most_common(3)
    assert sites.ask("run", run=run.id)["counts"]["done"] == len(done)
    began = Counter(sites.logged("start"))
    assert max(began.values()) == 1, f"an attempt ran twice: {began.most_common(3)}"
    moved: Counter[str] = Counter()
    for fact in facts:
        if isinstance(fact, f.TasksAssigned | f.TasksDelegated | f.TasksClaimed | f.TasksReturned | f.TasksDone):
            moved[type(fact).__name__.removeprefix("Tasks").lower()] += len(fact.tasks)
    lenders = {
        site: [x.worker for x in facts if isinstance(x, f.TasksDelegated) and x.worker.startswith(f"{site}-")] for site in sites.names
    }
    moved["masters of sites"] = sum(len(set(names)) for names in lenders.values())
    moved["pilots"] = sum(isinstance(fact, f.PilotRequested) for fact in facts)
    moved["workers lost or left"] = sum(isinstance(fact, f.WorkerEnded) for fact in facts)
    moved["attempts begun"], moved["attempts ended"] = len(began), len(set(sites.logged("end")))
    return moved


def contents_by_source(sites: ThreeSites) -> dict[str, int]:
    """Count fetched contents by source, as reported by the workers present at the end."""
    return {source: row["contents"] for source, row in sites.ask("data")["got"].items()}


def weather(sites: ThreeSites, size: Size, seed: int) -> str:
    """Run the whole scenario and return a report."""
    began = time.monotonic()
    places = [f"{name}:{size.pilots}" for name in sites.names]
    with pilotfish.Run(pool=sites.pool, sites=places) as run:
        work = Work(sites, run, size)
        work.submit_all()
        until(lambda: all(sites.master_of(site) for site in sites.names), lambda: None, size.patience_s, sites)
        storm = Storm(sites, Random(seed), size.every_s)
        away = []
        for number in range(1, size.masters_killed + 1):
            ended = number * size.tasks // (size.masters_killed + 1)
            until(lambda ended=ended: len(sites.logged("end")) > ended, storm.blow, size.patience_s, sites)  # type: ignore[misc]
            away.append(be_away(sites, work, size))
            assert_nobody_is_wedged(sites, run, size.patience_s)  # before another site master dies, which would hide an error of this one
            work.submit_more()
        until(lambda: work.unfinished() < size.tasks // 10, storm.blow, size.patience_s, sites)
        work.finish()
        stormy_s = time.monotonic() - began
        assert_nobody_is_wedged(sites, run, size.patience_s)
    moved = assert_each_was_counted_once(sites, run)
    assert moved["claimed"] > 0, "sites matched nothing by themselves"
    assert sites.complaints() == []
    kills = ", ".join(f"{count} {kind}" for kind, count in sites.kills.items())
    rows = sorted(moved.items())
    return (
        f"{len(sites.names)} sites of {size.pilots} agents: {len(work.futures)} tasks in {stormy_s:.0f} s; kills: {kills}; "
        f"without the master: {away}; made again: {work.made_again}, unlucky: {work.unlucky}; "
        f"{', '.join(f'{name} {count}' for name, count in rows)}; "
        f"contents of those that are left: {contents_by_source(sites)}"
    )


@pytest.mark.campaign
@pytest.mark.xdist_group("storm")  # one at a time
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", [pytest.param(SMALL, id="small"), pytest.param(LARGE, id="large")])
def test_sites_in_a_storm(
    pilotfish_home: Path, tmp_path: Path, size: Size, record_property: Callable[[str, object], None], request: pytest.FixtureRequest
) -> None:
    assert CAN_HIDE or os.geteuid() != 0
    seed = request.config.getoption("--seed") or 1
    with three_sites(pilotfish_home, tmp_path / "place", size.pilots) as sites:
        record_property("figure", weather(sites, size, seed))
