"""Engines for tests. Each is started when the first test asks for it, and lives as long as the process that runs the tests.

No two processes share an engine. With ``--dist loadgroup`` those tests that want the same one go to the same process: it starts once.
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

SomeEngine = TypeVar("SomeEngine", bound=Engine)
GROUPS = {
    "slurm": "slurm",
    "second_slurm": "slurm",
    "gridengine": "gridengine",
    "htcondor": "htcondor",
    "arc": "arc",
    "openssh": "openssh",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        wanted = [group for fixture, group in GROUPS.items() if fixture in getattr(item, "fixturenames", ())]
        if wanted:
            item.add_marker(pytest.mark.xdist_group(wanted[0]))


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
    """Somebody without any rights, who submits jobs."""
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
    """One with settings of its own, for one test: ``start_engine(Slurm(nodes=1))``."""
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
    """With a proxy of that person, who may use it."""
    for engine in run(ARC(person)):
        engine.make_proxy()
        yield engine


@pytest.fixture
def campus(pilotfish_home: Path, openssh: OpenSSH, person: Person) -> Iterator[Campus]:
    with campus_at(pilotfish_home, openssh, person) as made:
        yield made
