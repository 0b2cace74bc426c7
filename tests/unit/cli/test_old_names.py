"""Former names of options, commands and settings: they keep their effect and print the new name on standard error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from pilotfish.cli.main import invoke
from pilotfish.cli.main import pilotfish as command_group
from pilotfish.cli.predictions.whatif_command import read_variation
from pilotfish.cli.shared_options import OldOption
from pilotfish.client.session import state_of_run
from pilotfish.config import read_settings
from pilotfish.errors import BadInput
from tests.support.fake_session import FakeMaster, FakeRun
from tests.unit.cli.conftest import CommandLine

# Command, old option, new option, value (none for a flag), and other arguments that the command requires.
RENAMED: list[tuple[str, str, str, list[str], list[str]]] = [
    ("run", "--workers", "--local-cores", ["3"], ["--", "echo"]),
    ("run", "--warn", "--signal", ["USR1"], ["--", "echo"]),
    ("workers", "--set", "--local-cores", ["3"], []),
    ("bench", "--workers", "--cores", ["3"], []),
    ("predict", "--record", "--accuracy", [], []),
    ("predict", "--replicas", "--samples", ["3"], []),
    ("whatif", "--replicas", "--samples", ["3"], ["cores=1"]),
    ("replay", "--workers", "--total-cores", ["3"], ["1"]),
    ("doctor", "--patience", "--timeout", ["3s"], []),
    ("site test", "--patience", "--timeout", ["3s"], ["hpc"]),
    ("site add", "--period", "--poll-interval", ["3s"], ["hpc", "--backend", "slurm"]),
]


@pytest.fixture
def private_home(pilotfish: CommandLine, tmp_path: Path) -> None:
    """Make the directory of ``sites.toml`` private, as required."""
    (tmp_path / ".pilotfish").chmod(0o700)


def find_command(path: str) -> click.Command:
    found: click.Command = command_group
    for name in path.split():
        assert isinstance(found, click.Group)
        command = found.get_command(click.Context(found), name)
        assert command is not None
        found = command
    return found


def all_commands() -> dict[str, click.Command]:
    found = {name: find_command(name) for name in command_group.list_commands(click.Context(command_group))}
    groups = [(name, command) for name, command in found.items() if isinstance(command, click.Group)]
    return found | {f"{name} {part}": command for name, group in groups for part, command in group.commands.items()}


def test_the_table_has_all_old_options() -> None:
    declared = {
        (path, option.opts[0], option.new)
        for path, command in all_commands().items()
        for option in command.params
        if isinstance(option, OldOption)
    }
    assert declared == {(path, old, new) for path, old, new, _, _ in RENAMED}


@pytest.mark.parametrize(("path", "old", "new", "value", "others"), RENAMED, ids=lambda part: part if isinstance(part, str) else None)
def test_old_options_set_the_new_ones(
    capsys: pytest.CaptureFixture[str], path: str, old: str, new: str, value: list[str], others: list[str]
) -> None:
    command = find_command(path)
    with_old = command.make_context(path, [old, *value, *others])
    assert capsys.readouterr().err == f"note: {old} is now {new}\n"
    with_new = command.make_context(path, [new, *value, *others])
    assert capsys.readouterr().err == ""
    assert with_old.params == with_new.params
    assert with_old.params != command.make_context(path, [*others]).params
    with_both = command.make_context(path, [new, *value, old, *value, *others])
    assert with_both.params == with_new.params
    assert old not in command.get_help(with_new) and new in command.get_help(with_new)


@pytest.mark.usefixtures("private_home")
def test_workers_add_requests_pilots(pilotfish: CommandLine) -> None:
    pilotfish("site", "add", "hpc", "--backend", "slurm")
    said = pilotfish("workers", "add", "hpc", "2")
    assert said.err == "note: workers add is now pilots add\n"
    assert said.out == pilotfish("pilots", "add", "hpc", "2").out
    assert "add" not in pilotfish("workers", "--help").out


@pytest.mark.parametrize(
    ("old", "new"), [("+5 workers far", "+5 pilots far"), ("+5 workers", "+5 cores"), ("-1 worker at far", "-1 pilots far")]
)
def test_old_changes_of_whatif_mean_the_new_ones(capsys: pytest.CaptureFixture[str], old: str, new: str) -> None:
    more = read_variation(old, ["far"]).more
    assert capsys.readouterr().err == f'note: "{old}" is now "{new}"\n'
    assert more == read_variation(new, ["far"]).more
    assert capsys.readouterr().err == ""


def test_the_old_setting_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[pool]\nworkers = 3\n")
    assert read_settings(config).local_cores == 3
    assert capsys.readouterr().err == f"note: {config}: workers is now local_cores\n"
    config.write_text("[pool]\nlocal_cores = 3\n")
    assert read_settings(config).local_cores == 3
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("private_home")
def test_poll_interval_is_the_key_period(pilotfish: CommandLine) -> None:
    assert "poll_interval: '10x' is not" in pilotfish("site", "add", "hpc", "--backend", "slurm", "--poll-interval", "10x").err
    pilotfish("site", "add", "hpc", "--backend", "slurm", "--poll-interval", "5s")
    assert "period is now 7 s" in pilotfish("site", "set", "hpc", "poll-interval=7s").out


def test_a_misspelt_option_is_answered_with_the_new_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "--wokers", "2", "--", "echo"]) == 2
    assert "'--workers'" not in capsys.readouterr().err


def test_the_old_and_the_new_setting_together_are_an_error_that_says_which_one_to_remove(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[pool]\nworkers = 3\nlocal_cores = 4\n")
    with pytest.raises(BadInput, match="workers is now local_cores, and both are set") as caught:
        read_settings(config)
    assert caught.value.hint == "remove workers"


def test_the_note_about_an_old_setting_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[pool]\nworkers = 3\n")
    read_settings(config)
    read_settings(config)
    assert capsys.readouterr().err.count("workers is now local_cores") == 1


# --- masters of the previous version --------------------------------------------------------------------------------------------------


def old_row(run: FakeRun) -> dict[str, Any]:
    return {key: value for key, value in FakeRun.row(run).items() if key != "status"}


def test_why_refuses_the_answer_of_a_master_that_ignores_the_subject(
    pilotfish: CommandLine, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pilotfish("run", "--quiet", "--", "echo")
    monkeypatch.setattr(FakeMaster, "ask", _ask_old_master)
    said = pilotfish("why", "hpc")
    assert said.status == 4
    assert "error: the master of pool default runs an older version" in said.err
    assert "fix: restart it: pilotfish stop" in said.err
    assert pilotfish("why").out.startswith("run 1 is done")


def _ask_old_master(self: FakeMaster, kind: str, **arguments: Any) -> Any:
    if kind == "why":
        return {"subject": "run 1", "state": "done", "sentence": "run 1 is done: 1 done", "reasons": []}
    raise AssertionError(f"{kind}: one request is enough")


def test_the_state_of_a_run_is_derived_if_an_old_master_does_not_send_it(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--quiet", "--", "echo")
    pilotfish("run", "--quiet", "--", "false")
    master.stuck = True
    pilotfish("run", "--detach", "--", "echo")
    rows = [old_row(run) for run in master.runs.values()]
    assert [row["state"] for row in rows] == ["done", "done", "closed"]
    assert [state_of_run(row) for row in rows] == ["done", "failed", "waiting"]
    assert [state_of_run(run.row()) for run in master.runs.values()] == ["done", "failed", "waiting"]
