"""A command line whose master is a fake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pilotfish.cli.main import invoke
from tests.support.fake_session import FakeMaster


class Said(NamedTuple):
    status: int
    out: str
    err: str


CommandLine = Callable[..., Said]


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> FakeMaster:
    fake = FakeMaster()
    monkeypatch.setattr("pilotfish.client.session._connector", fake.connector)
    return fake


@pytest.fixture
def pilotfish(master: FakeMaster, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Type a command; the exit status and both outputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("PILOTFISH_HOME", str(tmp_path / ".pilotfish"))
    (tmp_path / ".pilotfish" / "pools" / "default").mkdir(parents=True)

    def type_in(*words: str) -> Said:
        capfd.readouterr()
        status = invoke(list(words))
        captured = capfd.readouterr()
        return Said(status, captured.out, captured.err)

    return type_in
