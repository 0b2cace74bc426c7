"""What a person is told to type is meant for the pool that the person works with."""

from __future__ import annotations

import json

import click
import pytest

from pilotfish.cli.main import pilotfish as command_line
from pilotfish.cli.terminal.pool_hints import commands_with_pool, set_hint_pool, with_pool
from tests.support.fake_session import FakeMaster
from tests.unit.cli.conftest import CommandLine


def with_pool_option(group: click.Group, before: str = "") -> set[str]:
    found: set[str] = set()
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                found |= with_pool_option(command, f"{before}{name} ")
            elif command is not None and any(parameter.name == "pool" for parameter in command.params):
                found.add(before + name)
    return found


def test_all_commands_of_a_pool_are_known() -> None:
    assert with_pool_option(command_line) == set(commands_with_pool())


def test_hints_name_a_pool_that_a_bare_command_would_not_mean(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.stuck = True
    words = ("run", "--detach", "--param", "x=1..3", "--", "echo", "{x}")
    assert pilotfish(*words).out == "Run 1: 3 tasks submitted. Follow it: pilotfish attach 1\n"
    assert pilotfish(words[0], "--pool", "b", *words[1:]).out == "Run 2: 3 tasks submitted. Follow it: pilotfish attach --pool b 2\n"
    assert pilotfish("pause", "--pool", "b", "2").out == "Run 2 is paused. Resume it: pilotfish resume --pool b 2\n"
    assert pilotfish("why", "--pool", "b").out.endswith("  see:    pilotfish workers --pool b\n")
    assert json.loads(pilotfish("why", "--pool", "b", "--json").out)["reasons"][0]["commands"] == ["pilotfish workers --pool b"]
    assert "  fix: See the runs there are: pilotfish status --pool b\n" in pilotfish("tasks", "--pool", "b", "99").err
    told = json.loads(pilotfish("results", "--pool", "b", "99", "--json").err)
    assert told["error"]["hint"] == "See the runs there are: pilotfish status --pool b"
    assert "pilotfish status\n" in pilotfish("tasks", "99").err, "and the next command means the default pool again"


def test_the_pool_of_the_environment_is_named_too(pilotfish: CommandLine, master: FakeMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    master.stuck = True
    monkeypatch.setenv("PILOTFISH_POOL", "b")
    assert pilotfish("run", "--detach", "--", "echo").out.endswith("pilotfish attach --pool b 1\n")
    assert pilotfish("run", "--detach", "--pool", "default", "--", "echo").out.endswith("pilotfish attach --pool default 2\n")


def test_only_commands_of_a_pool_get_it_and_only_once() -> None:
    set_hint_pool("b")
    assert with_pool("Try: pilotfish site add x --backend slurm; then pilotfish site test x") == (
        "Try: pilotfish site add x --backend slurm; then pilotfish site test --pool b x"
    )
    assert with_pool("Again: pilotfish run --pool c -- x") == "Again: pilotfish run --pool c -- x"
    assert with_pool("pilotfish runs, pilotfish site-x") == "pilotfish runs, pilotfish site-x"
    set_hint_pool("my pool")
    assert with_pool("pilotfish status") == "pilotfish status --pool 'my pool'"
    set_hint_pool(None)
    assert with_pool("pilotfish status") == "pilotfish status"


def test_what_people_run_is_shown_as_they_wrote_it(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--quiet", "--param", "x=1..2", "--pool", "b", "--", "echo", "pilotfish status", "{x}")
    assert "echo 'pilotfish status' 2" in pilotfish("tasks", "--pool", "b").out
