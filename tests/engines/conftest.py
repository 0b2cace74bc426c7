"""Fixtures for engines. Each engine starts at the first test that uses it and lives as long as the test process.

No two processes share an engine. With ``--dist loadgroup`` tests of the same engine go to the same process, which starts it once. Most
tests use Slurm. They form three groups of about equal length, each with a Slurm of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from tests.engines import people, places, requirements
from tests.engines.arc import ARC
from tests.engines.campus import Campus, campus_at
from tests.engines.daemons import Engine
from tests.engines.gridengine import GridEngine
from tests.engines.htcondor import HTCondor
from tests.engines.openssh import OpenSSH
from tests.engines.people import Person
from tests.engines.slurm import Slurm

HERE = Path(__file__).parent
SomeEngine = TypeVar("SomeEngine", bound=Engine)
GROUPS = {
    "slurm": "slurm",
    "second_slurm": "slurm",
    "gridengine": "gridengine",
    "htcondor": "htcondor",
    "arc": "arc",
    "openssh": "openssh",
}

INTERRUPTING = ("test_nat", "test_restart", "test_preemption", "test_walltime")
"""Modules in which masters, networks or pilots end early."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE and (group := group_of(item)):
            item.add_marker(pytest.mark.xdist_group(group))


def group_of(item: pytest.Item) -> str:
    """Return the group of a test; empty without an engine. Some tests take a fixture's name as a parameter and request it themselves."""
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    named = [*getattr(item, "fixturenames", ()), *(one for one in parameters if isinstance(one, str))]
    group = next((group for fixture, group in GROUPS.items() if fixture in named), "")
    if group != "slurm" or "openssh" not in named:
        return group
    return "slurm, interrupted" if item.path.stem in INTERRUPTING else "slurm through ssh"


def run(engine: SomeEngine) -> Iterator[SomeEngine]:
    requirements.require(engine.needs)
    engine.start()
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def clean_machine() -> None:
    places.clear_away_after_the_dead()


@pytest.fixture(scope="session")
def person(clean_machine: None) -> Iterator[Person]:
    """An ordinary user without privileges, who submits jobs."""
    requirements.require("people")
    somebody = people.new_person()
    yield somebody
    somebody.leave()


@pytest.fixture(scope="session")
def slurm(clean_machine: None) -> Iterator[Slurm]:
    yield from run(Slurm())


@pytest.fixture(scope="session")
def second_slurm(clean_machine: None) -> Iterator[Slurm]:
    yield from run(Slurm(name="lake", nodes=1, cpus=8))


@pytest.fixture
def start_engine(clean_machine: None) -> Iterator[Callable[[SomeEngine], SomeEngine]]:
    """Start an engine with special settings for one test: ``start_engine(Slurm(nodes=1))``."""
    with ExitStack() as stack:

        def start(engine: SomeEngine) -> SomeEngine:
            requirements.require(engine.needs)
            engine.start()
            stack.callback(engine.stop)
            return engine

        yield start


@pytest.fixture(scope="session")
def gridengine(clean_machine: None) -> Iterator[GridEngine]:
    yield from run(GridEngine())


@pytest.fixture(scope="session")
def htcondor(clean_machine: None) -> Iterator[HTCondor]:
    yield from run(HTCondor())


@pytest.fixture(scope="session")
def openssh(person: Person) -> Iterator[OpenSSH]:
    yield from run(OpenSSH(accounts=("root", person.name)))


@pytest.fixture(scope="session")
def arc(person: Person) -> Iterator[ARC]:
    """An ARC element with a proxy of the user."""
    for engine in run(ARC(person)):
        engine.make_proxy()
        yield engine


@pytest.fixture
def campus(pilotfish_home: Path, openssh: OpenSSH, person: Person) -> Iterator[Campus]:
    with campus_at(pilotfish_home, openssh, person) as made:
        yield made
