"""The record of an executable names what it does, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pilotfish.applications.executables.executable import Executable, LaunchSpec, executable_payload, executable_spec
from pilotfish.applications.reuse import file_changes, task_keys
from pilotfish.applications.reuse.session_variables import stable_environment
from pilotfish.applications.reuse.task_keys import ExecutableKeys, RepeatCounter, files_hash, parents_hash
from pilotfish.applications.task_options import read_task_options
from pilotfish.model.contents import KEY_PARTS

PARTS = dict(zip(KEY_PARTS, (slice(16, 20), slice(20, 24), slice(24, 28), slice(28, 32)), strict=True))


def record(argv: tuple[str, ...] = ("./sim", "1"), own: Any = None, options: Any = None, parents: bytes = b"", **launch: Any) -> bytes:
    keys = ExecutableKeys()
    spec, code = executable_spec("sim", LaunchSpec(**launch), read_task_options(options or {}))
    keys.add_spec(0, spec, code)
    payload, _ = executable_payload(Executable(argv, **(own or {})))
    return keys.record(0, argv, payload, bool(set(own or ()) & {"inputs", "stdin_path"}), parents)


def different(first: bytes, second: bytes) -> set[str]:
    assert (first == second) == (first[:16] == second[:16])
    return {name for name, place in PARTS.items() if first[place] != second[place]}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sim").write_text("#!/bin/sh\necho 1\n")
    Path("sim").chmod(0o755)
    Path("script.py").write_text("print(1)\n")
    Path("a.dat").write_text("a")
    Path("large.dat").write_bytes(b"x" * 100_000)


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"argv": ("./sim", "2")}, {"arguments"}),
        ({"own": {"stdin": b"x"}}, {"arguments"}),
        ({"own": {"env": {"X": "1"}}}, {"arguments"}),
        ({"own": {"inputs": {"a.dat": "a.dat"}}}, {"inputs"}),
        ({"inputs": {"a.dat": "a.dat"}}, {"inputs"}),
        ({"env": {"OMP_NUM_THREADS": "2"}}, {"environment"}),
        ({"env": {"SSH_TTY": "/dev/pts/1", "WINDOWID": "7", "TMUX": "x", "PWD": "/"}}, set()),
        ({"options": {"cores": 4, "memory": "2G", "retries": 3, "time": "1h", "priority": 2}}, set()),
    ],
    ids=str,
)
def test_each_part_of_a_task_counts_and_how_it_runs_does_not(fields: dict[str, Any], parts: set[str]) -> None:
    found = different(record(), record(**fields))
    if "inputs" in fields.get("own", {}):
        found -= {"arguments"}  # they are hashed in another way if a task has inputs of its own
    assert found == parts


def test_other_outputs_another_directory_and_other_parents_make_another_key() -> None:
    os.mkdir("other")
    other = record(cwd=os.path.abspath("other"))
    made = {record(), record(outputs=("x",)), record(keep=("x",)), other, record(parents=parents_hash([b"1" * 32]))}
    assert len(made) == 5
    echo = ("echo", "1")
    assert record(echo, sandbox=True, cwd="/a") == record(echo, sandbox=True, cwd="/b"), "a sandbox is the same everywhere"


def test_the_program_and_the_script_of_an_interpreter_count_by_their_content() -> None:
    words = {program: record((program, "a.dat")) for program in ("./sim", "python3")}
    os.utime("sim", (1, 1))
    assert record(("./sim", "a.dat")) == words["./sim"]
    Path("a.dat").write_text("b")
    assert record(("./sim", "a.dat")) == words["./sim"], "an argument is a name; only an interpreter reads it for sure"
    assert different(record(("python3", "a.dat")), words["python3"]) == {"code"}
    Path("sim").write_text("#!/bin/sh\necho 2\n")
    assert different(record(("./sim", "a.dat")), words["./sim"]) == {"code"}
    assert record(("no-such-program",)) == record(("no-such-program",))


@pytest.mark.parametrize(
    "command",
    ["python -u script.py", "env X=1 python3 -W error script.py", "bash -e script.py", "mpirun -n 4 ./script.py 7"],
)
def test_a_script_behind_options_and_other_programs_counts(command: str) -> None:
    Path("script.py").chmod(0o755)
    argv = tuple(command.split())
    os.mkdir("results")
    before = record(argv), record(("./sim", "results/"))
    Path("script.py").write_text("print(2)\n")
    Path("results/1").touch()
    assert different(record(argv), before[0]) == {"code"} and record(("./sim", "results/")) == before[1]


def test_a_program_that_changes_between_two_tasks_of_a_run_gives_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ExecutableKeys()
    spec, code = executable_spec("sim", LaunchSpec(), read_task_options({}))
    keys.add_spec(0, spec, code)
    payload, _ = executable_payload(Executable(("./sim",)))
    before = keys.record(0, ["./sim"], payload)
    assert keys.record(0, ["./sim"], payload) == before
    monkeypatch.setattr(task_keys, "RECHECK_S", 0.0)
    monkeypatch.setattr(file_changes, "RECHECK_S", 0.0)
    Path("sim").write_text("#!/bin/sh\necho 22\n")
    assert different(keys.record(0, ["./sim"], payload), before) == {"code"}


def test_the_places_of_files_do_not_count(tmp_path: Path) -> None:
    os.makedirs("other")
    Path("other/a.dat").write_text("a")
    Path("other/text").write_text("x")
    Path("text").write_text("x")
    first = {"inputs": {"a.dat": "a.dat"}, "stdin": b"x", "stdin_path": "text"}
    second = {"inputs": {"a.dat": "other/a.dat"}, "stdin": b"x", "stdin_path": "other/text"}
    assert record(own=first, sandbox=True) == record(own=second, sandbox=True)
    assert different(record(own=first), record(("./sim", "2"), own=first)) == {"arguments"}


@pytest.mark.parametrize("name", ["a.dat", "large.dat"])
def test_inputs_count_by_name_and_content_and_not_by_time(name: str) -> None:
    before = record(inputs={name: name}), files_hash({name: name})
    os.utime(name, (1, 1))
    assert (record(inputs={name: name}), files_hash({name: name})) == before
    assert record(inputs={"other": name}) != before[0]
    Path(name).write_bytes(b"y" * Path(name).stat().st_size)
    assert different(record(inputs={name: name}), before[0]) == {"inputs"}
    assert files_hash({name: name}) != before[1]


def test_equal_tasks_of_one_run_have_keys_of_their_own() -> None:
    first, second = RepeatCounter(), RepeatCounter()
    keys = [first.count(record()) for _ in range(3)]
    assert len(set(keys)) == 3 and keys == [second.count(record()) for _ in range(3)]


def test_what_belongs_to_a_session_is_left_out() -> None:
    session = {"SSH_CONNECTION": "", "XDG_SESSION_ID": "4", "SLURM_JOB_ID": "7", "DISPLAY": ":0", "_": "/bin/x", "TERM_PROGRAM": "x"}
    kept = {"MODEL": "big", "PATH": "/bin", "TERMINAL_VELOCITY": "9"}
    assert stable_environment({**session, **kept}) == kept


@pytest.mark.parametrize("command", ["python3 scripts/script.py 1", "./scripts/script.py", "mpirun scripts/script"])
def test_the_modules_that_a_script_imports_count(command: str) -> None:
    os.makedirs("scripts/parts")
    for name in ("script.py", "script"):
        path = Path("scripts", name)
        path.write_text("#!/usr/bin/env python3\nimport numpy, model\n")
        path.chmod(0o755)
    Path("scripts/model.py").write_text("def f():\n    from parts import inner\n")
    Path("scripts/unused.py").touch()
    for name in ("__init__.py", "inner.py"):
        Path("scripts/parts", name).write_text("x = 1\n")
    argv = tuple(command.split())
    before = record(argv)
    Path("scripts/unused.py").write_text("x = 2\n")
    os.utime("scripts/model.py", (1, 1))
    assert record(argv) == before
    Path("scripts/parts/inner.py").write_text("x = 2\n")
    assert different(record(argv), before) == {"code"}
