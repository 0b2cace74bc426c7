"""Tests every factory with real sites of which only one works: the tasks run there, and the failing sites get few pilots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines import places, processes
from tests.engines.slurm import Slurm
from tests.support.remedy_follower import Obedient

TASKS = 60
LEARNING = ("heuristic", "swift")
"""Factories that run a second time, after they have learned. The hybrid one learns as the heuristic one does."""
BAD = ("mire", "wall")
MOST_TRIES = 3
"""Maximum submissions to a site where all pilots fail; after that a user must fix it."""


@pytest.fixture
def root(slurm: Slurm) -> Iterator[Obedient]:
    place = places.new_place("factory")
    somebody = Obedient(place, slurm.environment)
    yield somebody
    somebody.leave()
    processes.wait_until(lambda: not slurm.leftovers(), "the queue is empty")
    places.clear_away(place)


def add_sites(root: Obedient) -> None:
    """Add three sites: agents fail to start at the first, the batch system refuses the second, the third works."""
    common = ("--backend", "slurm", "--poll-interval", "1s")
    root.do("site", "add", "mire", *common, "--setup", "echo no such module; exit 7", "--max-pilots", "1")
    root.do("site", "add", "wall", *common, "--queue", "nowhere", "--max-pilots", "1")
    root.do("site", "add", "pond", *common, "--max-pilots", "6")


def count_submissions(root: Obedient, site: str) -> int:
    return sum(" sbatch " in line for line in root.do("site", "log", site, "--lines", "1000").splitlines())


def begin(root: Obedient, cores: int, tasks: int) -> int:
    """Start a run whose tasks need more cores than existing workers have."""
    places = ("--site", "mire", "--site", "wall", "--site", "pond")
    return root.begin(*places, "--cores", str(cores), "--param", f"i=1..{tasks}", "--", "sleep", "0.1{i}")


def check_opinion(factory: str, rows: dict[str, dict[str, Any]]) -> None:
    """Check what a learning factory recorded about the sites; held sites are not considered."""
    asked = [row for name, row in rows.items() if name in BAD and row["state"] == "ready" and row["failures"]]
    if factory in ("heuristic", "hybrid"):
        assert rows["pond"]["fitness"] > 0 and all(row["fitness"] == 0 for row in asked), rows
    elif factory == "swift":
        assert rows["pond"]["set"] != "hibernated" and all(row["set"] == "hibernated" for row in asked), rows
        assert all(row["score"] < min(0.0, rows["pond"]["score"]) for row in asked), rows


@pytest.mark.parametrize(
    "factory", ["simple", "swift", *(pytest.param(one, marks=pytest.mark.campaign) for one in ("heuristic", "hybrid"))]
)
def test_the_work_is_done_where_pilots_live(root: Obedient, factory: str) -> None:
    (root.home / "config.toml").write_text(f'[pool]\nfactory = "{factory}"\npilots = 30\n')
    add_sites(root)
    root.finish(begin(root, 1, TASKS))
    processes.wait_until(lambda: all(row["failures"] for row in root.ask("sites") if row["site"] in BAD), "all of them were tried")
    if factory in LEARNING:
        root.do("site", "set", "pond", "max_pilots=20")
        root.finish(begin(root, 2, 10))
    rows = {row["site"]: row for row in root.ask("sites")}
    assert rows["pond"]["failures"] == {} and rows["pond"]["active"] >= 1
    assert all(rows[site]["queue_wait_median_s"] is None for site in BAD), "nobody ever came from there"
    check_opinion(factory, rows)
    counts = {site: count_submissions(root, site) for site in (*BAD, "pond")}
    assert all(counts[site] <= (1 if factory == "swift" else MOST_TRIES) for site in BAD) and counts["pond"] >= 1, counts
