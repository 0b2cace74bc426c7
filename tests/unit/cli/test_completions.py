"""What a shell offers when Tab is pressed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from pilotfish.cli.completions import MAX_TASKS, _numbers_like
from pilotfish.cli.main import pilotfish as group
from tests.support.fake_session import FakeMaster
from tests.unit.cli.conftest import CommandLine


def offered(*words: str) -> list[str]:
    """What is offered for the last word."""
    *before, incomplete = words
    return [item.value for item in ShellComplete(group, {}, "pilotfish", "_X").get_completions(before, incomplete)]


@pytest.fixture
def runs(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--name", "first", "--param", "x=1..12", "--", "echo", "{x}")
    pilotfish("run", "--name", "two words", "--param", "x=1..2", "--", "false", "{x}")
    master.stuck = True
    pilotfish("run", "--detach", "--name", "third", "--param", "x=1..2", "--", "echo", "{x}")
    master.runs[3].tasks[1].state = "running"


@pytest.mark.usefixtures("runs")
def test_runs_are_offered_by_number_and_name_to_the_commands_that_can_use_them() -> None:
    assert offered("results", "") == ["3", "third", "2", "1", "first"]
    assert offered("attach", "f") == ["first"]
    assert offered("pause", "") == offered("cancel", "") == ["3", "third"]
    assert offered("rerun", "") == ["2"]


@pytest.mark.usefixtures("runs")
def test_tasks_are_offered_behind_a_run_and_a_dot() -> None:
    assert offered("logs", "2.") == ["2.0", "2.1"]
    assert offered("why", "1.1") == ["1.1", "1.10", "1.11"]
    assert offered("tail", "") == ["3.1"], "those that run"
    assert offered("tail", "1.0") == ["1.0"]
    assert offered("why", "local") == ["local-1"]
    assert offered("logs", "99.") == offered("logs", "1.x") == []


def test_pools_codes_and_commands_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTFISH_HOME", str(tmp_path))
    for name in ("default", "night", "private-1-2"):
        (tmp_path / "pools" / name).mkdir(parents=True)
    assert offered("status", "--pool", "") == ["default", "night"]
    assert offered("explain", "p31") == ["P3100", "P3101", "P3102"]
    assert offered("help", "re") == ["results", "rerun", "report", "resume", "replay"]


def test_without_a_master_nothing_is_offered_and_none_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotfish.client.session._connector", None)
    monkeypatch.setenv("PILOTFISH_HOME", str(tmp_path))
    (tmp_path / "pools" / "default").mkdir(parents=True)
    assert offered("results", "") == []
    assert list((tmp_path / "pools" / "default").iterdir()) == []


def test_of_a_million_tasks_only_some_are_offered() -> None:
    assert _numbers_like("", 1_000_000) == list(range(MAX_TASKS))
    assert _numbers_like("7", 1_000)[:12] == [7, *range(70, 80), 700]
    assert len(_numbers_like("7", 1_000_000)) == MAX_TASKS
    assert _numbers_like("0", 1_000_000) == [0]
    assert _numbers_like("12", 12) == []
