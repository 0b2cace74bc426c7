"""Tests the warning about values that a program has set in an own module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pilotfish

HEAD = """
import warnings
import cfg, helper
from pilotfish.applications.calls.python_call import CallEncoder
def read():
    return cfg.N
"""
TAIL = """
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    calls = CallEncoder(lambda spec, code: 0)
    calls.encode(FUNCTION, (), {})
    CallEncoder(lambda spec, code: 0).encode(FUNCTION, (), {})
for one in found:
    print(one.message, one.filename.rpartition("/")[2], sep="|")
"""
CFG = "N = 10\nNAME: str = 'a'\nSHAPE = (1, 2)\nSEEN = 0\nEARLY = 1\nEARLY = 2\nLIST = [1]\n"
CFG += "def note():\n    global SEEN\n    SEEN += 1\ndef size():\n    return SHAPE\n"
HELPER = "import cfg\nFROM_OUTSIDE = 1\ndef look():\n    return cfg.N\ndef set_name():\n    cfg.NAME = 'b'\n"


def warnings_of(folder: Path, program: str, function: str) -> list[str]:
    (folder / "cfg.py").write_text(CFG)
    (folder / "helper.py").write_text(HELPER)
    for name in ("cfg.py", "helper.py"):
        os.utime(folder / name, (1e9, 1e9))
    (folder / "program.py").write_text(HEAD + program + TAIL.replace("FUNCTION", function))
    environment = {**os.environ, "PYTHONPATH": str(Path(pilotfish.__file__).parents[1])}
    done = subprocess.run([sys.executable, "program.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("program", "function", "place", "values"),
    [
        ("cfg.N = 99", "read", "cfg.N", ("99", "10")),
        ("cfg.N = 99", "helper.look", "cfg.N", ("99", "10")),
        ("cfg.N = 99\ndef outer():\n    return [helper.look() for _ in range(2)]", "outer", "cfg.N", ("99", "10")),
        ("cfg.N = 10.0", "read", "cfg.N", ("10.0", "10")),
        ("cfg.SHAPE = (3, 4)", "cfg.size", "cfg.SHAPE", ("(3, 4)", "(1, 2)")),
        ("helper.FROM_OUTSIDE = None\ndef get():\n    return helper.FROM_OUTSIDE", "get", "helper.FROM_OUTSIDE", ("None", "1")),
    ],
)
def test_a_value_that_calls_will_not_see_is_told_once(
    tmp_path: Path, program: str, function: str, place: str, values: tuple[str, str]
) -> None:
    (line,) = warnings_of(tmp_path, program, function)
    message, _, file = line.partition("|")
    assert message.startswith(f"{place} is {values[0]} in this program, but it is {values[1]} in calls: they import the source")
    assert "Pass the value as an argument" in message and file == "program.py"


@pytest.mark.parametrize(
    ("program", "function"),
    [
        ("", "read"),
        ("cfg.N = 10", "read"),
        ("cfg.SHAPE = (3, 4)", "read"),
        ("cfg.note()\ndef seen():\n    return cfg.SEEN", "seen"),
        ("cfg.EARLY = 7\ndef early():\n    return cfg.EARLY", "early"),
        ("cfg.LIST = [2]\ndef listed():\n    return cfg.LIST", "listed"),
        ("helper.set_name()\ndef name():\n    return cfg.NAME", "name"),
        ("cfg.N = 99\ndef given(n):\n    cfg.N = n\n    return cfg.N", "given"),
        ("cfg.N = 99", "len"),
        ("cfg.OWN = 5\ndef own():\n    return cfg.OWN", "own"),
    ],
)
def test_there_is_no_false_alarm(tmp_path: Path, program: str, function: str) -> None:
    assert warnings_of(tmp_path, program, function) == []
