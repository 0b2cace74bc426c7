"""Tests a master that is killed while pilots wait and run at real sites: the next one takes them over and requests none twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines import processes
from tests.engines.campus import Campus
from tests.engines.daemons import Engine
from tests.engines.gridengine import GridEngine
from tests.engines.people import Person
from tests.engines.slurm import Slurm

TASKS = 60
SAY = "echo $PILOTFISH_WORKER; sleep 0.3"


def jobs_so_far(engine: Engine, person: Person) -> int:
    """Count submissions: Slurm lists jobs that ended, Grid Engine counts them."""
    if isinstance(engine, Slurm):
        return len(set(engine.ask("squeue", "--noheader", "--states=all", "--format=%F").split()))
    said = person.run("qsub", "-terse", "-b", "y", "-o", "/dev/null", "-j", "y", "true", environment=engine.environment)
    return int(said.stdout)


def since(engine: Engine, person: Person, before: int) -> int:
    return jobs_so_far(engine, person) - before - isinstance(engine, GridEngine)


@pytest.mark.parametrize(
    ("backend", "fixture", "cores"),
    [("slurm", "slurm", 4), pytest.param("sge", "gridengine", 3, marks=pytest.mark.campaign), ("ssh", "", 1)],
)
def test_pilots_that_wait_and_that_run_are_taken_over(
    campus: Campus, backend: str, fixture: str, cores: int, request: pytest.FixtureRequest
) -> None:
    """The batch systems have room for two pilots; the third waits."""
    engine: Engine | None = request.getfixturevalue(fixture) if fixture else None
    site = campus.add("here", backend, engine, cores=cores)
    before = jobs_so_far(engine, campus.person) if engine else 0
    with campus.run(f"{site}:3") as run:
        long_one = run.executable(["sh", "-c", "echo once; sleep 6"])
        futures = [run.executable(["sh", "-c", SAY], cores=cores) for _ in range(TASKS)]
        campus.wait_for_workers(site, 2)
        processes.wait_until(lambda: len([p for p in campus.pilots(site) if p["job"]]) == 3, "three are accepted")
        pilots = {pilot["pilot"]: pilot["job"] for pilot in campus.pilots(site)}
        campus.kill_master()
        assert {pilot["pilot"]: pilot["job"] for pilot in campus.pilots(site)} == pilots
        said = Counter(future.result(timeout=processes.PATIENCE_S).stdout.decode().strip() for future in futures)
        assert long_one.result(timeout=processes.PATIENCE_S).stdout == b"once\n"
        workers = Counter(name.split(".")[0] for name in said)
        assert max(workers.values()) == 1, f"a pilot ran twice: {sorted(said)}"
        assert set(workers) <= set(pilots)
        if engine is not None:
            assert since(engine, campus.person, before) == 1
    row = campus.ask("run", run=run.id)
    assert row["counts"]["done"] == TASKS + 1 and row["counts"].get("failed", 0) == 0


@dataclass
class Sluggish:
    """A Slurm whose sbatch is slow for the first pilot batch only."""

    slurm: Slurm
    folder: Path
    before_s: float = 0.0
    after_s: float = 0.0

    def __post_init__(self) -> None:
        self.folder.mkdir()
        sbatch = self.folder / "sbatch"
        sbatch.write_text(
            "#!/bin/sh\n"
            f'mkdir {self.folder}/called 2>/dev/null || exec /usr/bin/sbatch "$@"\n'
            f'sleep {self.before_s}; /usr/bin/sbatch "$@"; sleep {self.after_s}; mkdir {self.folder}/over\n'
        )
        sbatch.chmod(0o755)
        self.folder.chmod(0o777)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.slurm.environment, "PATH": f"{self.folder}:{self.slurm.environment['PATH']}"}

    def was_called(self) -> bool:
        return (self.folder / "called").exists()

    def is_over(self) -> bool:
        return (self.folder / "over").exists()

    def leftovers(self) -> list[str]:
        return self.slurm.leftovers()


def run_with_a_death(campus: Campus, slurm: Slurm, sluggish: Sluggish, moment: Callable[[], bool]) -> None:
    """The master dies at that moment; both pilots of the only pilot batch join, and it is submitted once."""
    site = campus.add("here", "slurm", sluggish, cores=2)  # type: ignore[arg-type]
    before = jobs_so_far(slurm, campus.person)
    with campus.run(f"{site}:2") as run:
        futures = [run.executable(["sh", "-c", SAY]) for _ in range(20)]
        processes.wait_until(moment, "the moment for the master to die")
        campus.kill_master()
        campus.wait_for_workers(site, 2)
        assert [future.result(timeout=2 * processes.PATIENCE_S).exit for future in futures] == [0] * 20
        processes.wait_until(sluggish.is_over, "the first sbatch has ended")
        assert jobs_so_far(slurm, campus.person) - before == 1
        assert len(campus.pilots(site)) == 2
    assert campus.ask("run", run=run.id)["attempts"] == 20


def test_a_master_that_dies_before_it_has_submitted_leaves_one_order(campus: Campus, slurm: Slurm) -> None:
    sluggish = Sluggish(slurm, campus.person.home / "before")
    run_with_a_death(campus, slurm, sluggish, lambda: bool(campus.pilots("here")))


def test_a_master_that_dies_before_it_has_heard_the_answer_leaves_one_order(campus: Campus, slurm: Slurm) -> None:
    sluggish = Sluggish(slurm, campus.person.home / "answer", after_s=5.0)
    run_with_a_death(campus, slurm, sluggish, lambda: sluggish.was_called() and bool(slurm.leftovers()))


def test_a_master_that_dies_while_its_order_is_on_the_way_leaves_one_order(campus: Campus, slurm: Slurm) -> None:
    """The next master does not find the pilot batch at first, because it has not arrived."""
    sluggish = Sluggish(slurm, campus.person.home / "late", before_s=8.0)
    run_with_a_death(campus, slurm, sluggish, sluggish.was_called)
