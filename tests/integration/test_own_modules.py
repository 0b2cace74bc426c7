"""Python calls in a shared pool run with the user's own modules as they were at submission, in slots that are never mixed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.client.session import connect_if_served
from tests.support.scripted_master import PATIENCE_S, eventually

PROGRAM = """
import json, sys
import pilotfish, model
with pilotfish.Executor(pool="shared") as executor:
    print(json.dumps([future.result() for future in [executor.submit(model.run, number) for number in range(8)]]))
"""


@pytest.fixture(autouse=True)
def stopped(pilotfish_home: Path) -> Iterator[None]:
    yield
    master = connect_if_served("shared")
    if master is not None:
        master.ask("stop", now=True)
        master.close()


def project(place: Path, **modules: str) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in modules.items():
        (place / f"{name}.py").write_text(text)
    return place


def run(place: Path, program: str = PROGRAM) -> Any:
    return finish(start(place, program))


def start(place: Path, program: str = PROGRAM) -> subprocess.Popen[str]:
    (place / "program.py").write_text(program)
    # -B: two edits within a second that keep the size of a module leave its cached bytecode valid for Python.
    command = [sys.executable, "-B", "program.py"]
    return subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> Any:
    out, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, error
    return json.loads(out)


def slots(place: str) -> str:
    return f"import helper\ndef run(number):\n    return [helper.NAME, {place!r}]\n"


def test_an_edited_module_is_used_at_the_next_run_without_a_restart(tmp_path: Path) -> None:
    place = project(tmp_path / "one", model=slots("first"), helper='NAME = "old"\n')
    assert run(place) == [["old", "first"]] * 8
    project(place, model=slots("second"), helper='NAME = "new"\n')
    assert run(place) == [["new", "second"]] * 8


def test_two_projects_with_modules_of_the_same_names_run_at_once_and_each_gets_its_own(tmp_path: Path) -> None:
    places = [project(tmp_path / name, model=slots(name), helper=f'NAME = "helper of {name}"\n') for name in ("a", "b", "c")]
    running = [start(place) for place in places for _ in range(2)]
    found = [finish(process) for process in running]
    assert found == [[[f"helper of {name}", name]] * 8 for name in ("a", "b", "c") for _ in range(2)]


def test_modules_arrive_with_the_call_where_their_files_do_not_exist(tmp_path: Path) -> None:
    place = project(tmp_path / "gone", model="def run(number):\n    import lazily\n    return lazily.half(number)\n")
    project(place, lazily="def half(number):\n    if number == 7:\n        raise ValueError('seven is odd')\n    return number / 2\n")
    program = """
import json, os, traceback
import pilotfish, model
with pilotfish.Executor(pool="shared") as executor:
    executor.submit(int).result()  # the slots are warm
    os.rename(os.getcwd(), os.getcwd() + "-elsewhere")
    values = [executor.submit(model.run, number).result() for number in range(3)]
    try:
        executor.submit(model.run, 7).result()
    except ValueError as error:
        text = "".join(traceback.format_exception(error))
print(json.dumps([values, text]))
"""
    values, text = run(place, program)
    assert values == [0.0, 0.5, 1.0]
    assert "raise ValueError('seven is odd')" in text and "lazily.py" in text


def test_an_argument_of_a_class_that_was_imported_after_the_first_call_arrives(tmp_path: Path) -> None:
    place = project(tmp_path / "later", model="def run(thing):\n    return thing.double()\n")
    project(place, late="class Late:\n    value = 21\n    def double(self):\n        return 2 * self.value\n")
    program = """
import json
import pilotfish, model
class Early:
    def double(self):
        return 0
with pilotfish.Executor(pool="shared") as executor:
    first = executor.submit(model.run, Early()).result()
    import importlib
    late = importlib.import_module("la" + "te")
    print(json.dumps([first, executor.submit(model.run, late.Late()).result(), executor.submit(max, 1, 2).result()]))
"""
    assert run(place, program) == [0, 42, 2]


def test_modules_find_files_beside_them_where_these_exist(tmp_path: Path) -> None:
    place = project(
        tmp_path / "data",
        model="from pathlib import Path\ndef run(number):\n    return (Path(__file__).parent / 'table.txt').read_text()\n",
    )
    (place / "table.txt").write_text("beside")
    assert run(place) == ["beside"] * 8


def test_slots_whose_modules_are_not_wanted_any_more_end(tmp_path: Path) -> None:
    text = "import os\ndef run(number):\n    return os.getpid()\n"
    place = project(tmp_path / "pids", model=text)
    before = set(run(place))
    project(place, model=text + "# changed\n")
    after = set(run(place))
    assert not before & after
    for _ in range(2):
        run(place)  # slots of earlier starts end when slots of later ones need their room
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in before))


KINDS = """
import functools, json
import pilotfish
def wrap(function):
    @functools.wraps(function)
    def inner(*args): return function(*args)
    return inner
@wrap
def decorated():
    import one
    return one.V
class Tool:
    @staticmethod
    def static():
        import two
        return two.V
    @classmethod
    def of_class(cls):
        import three
        return three.V
def make():
    def nested():
        from spread import four
        return four.V
    return {"nested": nested}
def relative():
    from .near import V
    return V
def beside():
    from . import beside
    return beside.V
functions = [decorated, Tool.static, Tool.of_class, make()["nested"], relative, beside]
with pilotfish.Run(pool="shared") as run:
    print(json.dumps([[place.submit(function).result() for function in functions] for place in (run, run.options(cache=True))]))
"""


def test_modules_that_any_kind_of_function_imports_are_used_as_edited(tmp_path: Path) -> None:
    place = project(tmp_path / "kinds")
    for version in ("old", "new"):
        project(place, **dict.fromkeys(("one", "two", "three"), f"V = {version!r}\n"))
        project(place / "spread", four=f"V = {version!r}\n")
        project(place / "pack", __init__="", program=KINDS, near=f"V = {version!r}\n", beside=f"V = {version!r}\n")
        command = [sys.executable, "-m", "pack.program"]
        assert (
            finish(subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)) == [[version] * 6] * 2
        )
