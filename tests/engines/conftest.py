"""Engines for tests. Each is started when the first test asks for it, and lives as long as the process that runs the tests.

No two processes share an engine. With ``--dist loadgroup`` tests that want the same engine go to the same process, which starts it once.
Most tests want Slurm. They make three groups of about the same length, each with a Slurm of its own.
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
    """Empty for a test without an engine. Some tests have the name of a fixture as a parameter and request it themselves."""
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
