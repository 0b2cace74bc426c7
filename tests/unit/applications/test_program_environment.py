"""Tests what tasks get of the environment of their program."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pilotfish.applications.calls.python_call import CallEncoder
from pilotfish.applications.executables.executable_encoder import ExecutableDefaults, ExecutableEncoder
from pilotfish.applications.executables.program_environment import ProgramEnvironment, inherited_environment
from pilotfish.model.task import TaskSpec


class Register:
    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []

    def __call__(self, spec: TaskSpec, code: bytes) -> int:
        self.launches.append(spec.launch)
        return len(self.launches) - 1


def test_secrets_variables_of_pilotfish_shell_functions_and_other_encodings_are_left_out() -> None:
    kept = {"PATH": "/bin", "NAME": "Zoë"}
    dropped = {"API_TOKEN": "x", "PILOTFISH_TASK": "1.2", "BASH_FUNC_f%%": "() { :; }", "LATIN": os.fsdecode(b"Zo\xeb")}
    assert inherited_environment({**kept, **dropped}) == kept


def test_a_changed_variable_makes_a_new_spec_and_an_unchanged_environment_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLOUR", "red")
    calls, programs = CallEncoder(called := Register()), ExecutableEncoder(started := Register())
    for colour, spec in (("red", 0), ("red", 0), ("blue", 1), ("blue", 1)):
        monkeypatch.setenv("COLOUR", colour)
        assert calls.encode(abs, (1,), {})[0] == spec
        assert programs.encode(["true"], {}, ExecutableDefaults())[0] == spec
    assert [launch["env"]["COLOUR"] for launch in (*called.launches, *started.launches)] == ["red", "blue"] * 2
    assert called.launches[0]["surroundings"] != called.launches[1]["surroundings"]


def test_variables_of_a_terminal_do_not_keep_programs_from_sharing_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = ProgramEnvironment()
    before = environment.of_calls([])["surroundings"]
    monkeypatch.setenv("SSH_TTY", "/dev/pts/7")
    assert environment.of_calls([])["surroundings"] == before
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    assert environment.of_calls([])["surroundings"] != before


def test_an_executable_gets_its_own_variables_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLOUR", "red")
    ExecutableEncoder(started := Register()).encode(["true"], {"env": {"SIZE": "2"}}, ExecutableDefaults())
    assert started.launches[0]["env"]["COLOUR"] == "red" and started.launches[0]["whole_env"] is True


def test_calls_of_a_private_pool_carry_no_environment() -> None:
    calls = CallEncoder(called := Register())
    calls.inherits = False
    calls.encode(abs, (1,), {})
    assert called.launches[0]["env"] == {} and "whole_env" not in called.launches[0]
