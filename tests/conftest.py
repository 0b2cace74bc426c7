"""What many tests share: a home of their own, and pools that must leave nothing behind."""

from __future__ import annotations

import gc
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pilotfish.client.master_client import MasterClient
from pilotfish.client.pools import PoolHandle
from pilotfish.store.pool_directory import PoolDirectory

# A busy machine is not a failure: how long an example takes says nothing about what it shows.
settings.register_profile("pilotfish", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pilotfish")

PATIENCE_S = 120.0
"""Long enough for the slowest machine: it is a limit for hangs, never a measure."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="replay this seed of the simulation (tests/simulation)")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What a test measured and a person wants to see, whichever process ran it."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, figure in getattr(report, "user_properties", ()):
            if name == "figure":
                terminalreporter.write_line(str(figure))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mixes the tests, in the same way each time: some of those that run at the same moment compute, and the others wait.

    Members of a group stay in their order.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: zlib.crc32(group_or_test(item).encode()))


def pytest_collection_finish() -> None:
    """Exempts thousands of collected tests from garbage collection. Tests that collect a hundred times would take a minute."""
    gc.collect()
    gc.freeze()


def group_or_test(item: pytest.Item) -> str:
    group = item.get_closest_marker("xdist_group")
    return str(group.args[0]) if group else item.nodeid


@pytest.fixture
def pilotfish_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("PILOTFISH_HOME", str(home))
    return home


@pytest.fixture
def pool(pilotfish_home: Path) -> Iterator[PoolHandle]:
    """A served pool without workers. At the end its master is stopped and nothing may be left of it."""
    made = PoolHandle(PoolDirectory(pilotfish_home / "pools" / "test").make().directory, {"linger_s": 600.0})
    made.revive()
    yield made
    made.revive()
    client = MasterClient.connect(made.directory)
    client.ask("stop", now=True)
    client.close()
    assert made.wait_until_stopped(PATIENCE_S) == []
