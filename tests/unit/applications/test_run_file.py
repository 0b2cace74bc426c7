from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from pilotfish.applications.run_file import load
from pilotfish.errors import BadInput


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *sys.path])
    monkeypatch.setattr("sys.argv", ["test"])


def write(text: str) -> Path:
    path = Path("my_run.py")
    path.write_text(text)
    return path


def test_run_adds_tasks_in_a_loop_with_shared_defaults() -> None:
    Path("hello").write_text("#!/bin/sh\n")
    loaded = load(
        write(
            """
def run(tasks):
    tasks.defaults.outputs = ["message.out"]
    for i in range(20):
        tasks.add(["./hello", str(i)])
"""
        )
    )
    assert loaded.manager is None
    assert loaded.tasks is not None
    assert len(loaded.tasks) == 20
    ((spec, code),) = loaded.tasks.specs
    assert spec.launch["outputs"] == ["message.out"]
    assert spec.launch["inputs"][0][0] == "hello"
    assert b"#!/bin/sh" in code


def test_a_file_may_use_what_lies_beside_it_and_its_arguments() -> None:
    Path("neighbour_of_run_file.py").write_text("WORD = 'hi'\n")
    path = write("import sys, neighbour_of_run_file\ndef run(tasks):\n    tasks.add(['echo', neighbour_of_run_file.WORD, *sys.argv[1:]])\n")
    loaded = load(path, ["there"])
    assert loaded.tasks is not None
    assert b'"argv": ["echo", "hi", "there"]' in loaded.tasks.take()[0].payload


def test_a_manager_is_found() -> None:
    loaded = load(write("from pilotfish import ApplicationManager\nmanager = ApplicationManager()\n"))
    assert loaded.manager is not None
    assert loaded.tasks is None


@pytest.mark.parametrize(
    "text",
    [
        "from other import run\n",
        "from other import *\n",
        "from other import go as run\n",
        "try:\n    import other\nexcept ImportError:\n    raise\nelse:\n    run = other.run\n",
    ],
)
def test_run_may_come_from_elsewhere(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = types.ModuleType("other")
    other.run = other.go = lambda tasks: tasks.add(["echo"])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "other", other)
    loaded = load(write(text))
    assert loaded.tasks is not None
    assert len(loaded.tasks) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "defines neither run nor manager"),
        ("def main(tasks): pass\n", r"it has: main"),
        ("def run(): pass\n", r"run\(\) cannot be called"),
        ("def run(a, b): pass\n", r"run\(a, b\) cannot be called"),
        ("run = 5\n", "run = 5 cannot be called"),
        ("def run(tasks): pass\n", "added no task"),
        ("manager = 5\n", "manager = 5 is not an ApplicationManager"),
        ("def run(tasks)\n    pass\n", "line 1: "),
        ("import nonsense_module\ndef run(tasks): pass\n", "line 1: ModuleNotFoundError"),
        ("def run(tasks):\n    tasks.add('echo 1')\n", "line 2: argv: 'echo 1' is not a list"),
        ("def run(tasks):\n    tasks.defaults.output = ['x']\n", "line 2: defaults: there is no option 'output'"),
        ("def run(tasks):\n    tasks.add(['x'], inputs=['nope.dat'])\n", "line 2: inputs: 'nope.dat' does not exist"),
        ("def run(tasks):\n    1 / 0\n", "line 2: ZeroDivisionError"),
        ("import sys\nsys.exit(3)\ndef run(tasks): pass\n", "it called exit"),
    ],
)
def test_a_bad_run_file_is_answered_with_file_line_and_fix(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        load(write(text))
    assert "my_run.py" in str(caught.value)
    assert caught.value.hint


def test_a_missing_run_file_is_named() -> None:
    with pytest.raises(BadInput, match=r"'nope.py' does not exist"):
        load("nope.py")
