"""The record of a call is equal in each program that makes the same call, and different if something changed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import types
import weakref
from pathlib import Path

import numpy
import pytest
from numpy.linalg import norm
from numpy.random import default_rng

from pilotfish.applications.reuse import call_keys
from pilotfish.applications.reuse.call_keys import CallKeys

PROGRAM = """
import enum, os, sys
from dataclasses import dataclass, field
import numpy
import steps
from pilotfish.applications.calls.python_call import own_modules
from pilotfish.applications.reuse.call_keys import CallKeys

class Shape(enum.Enum):
    ROUND = 1
    FLAT = 2

@dataclass
class Case:
    name: str
    tags: set = field(default_factory=set)
    shape: Shape = Shape.ROUND

FACTOR = 3

def helper(x):
    return x * FACTOR

def work(case, words=frozenset({"alpha", "beta", "gamma"})):
    import json
    if case.name in {"x", "y", "zz", "other"}:
        return helper(2), numpy.zeros(3), json, steps.one
    return Case("made"), sorted(words), [part for part in case.tags]

keys = CallKeys()
case = Case("a" + "b", {"one", "two", "three", ("four", 5)})
again = "".join(["n", "ame"])
calls = [
    (work, (case,), {}),
    (work, (Case("ab", {"two"}),), {"words": frozenset("abcdef")}),
    (steps.one, (numpy.arange(5.0), {"k": [again, "name"]}), {}),
    (steps.Step(2).run, (1,), {}),
    (lambda x, y=Shape.FLAT: x, (Case,), {}),
]
for function, args, kwargs in calls:
    launch = {"modules": own_modules.bundle().digest, "cwd": os.getcwd()}
    print(keys.record((function, args, kwargs), launch).hex())
"""
STEPS = "class Step:\n    def __init__(self, n): self.n = n\n    def run(self, x): return x + self.n\n\ndef one(*args): return args\n"


def records(folder: Path, program: str = PROGRAM, steps: str = STEPS, seed: int = 0) -> list[str]:
    (folder / "program.py").write_text(program)
    (folder / "steps.py").write_text(steps)
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout.split()


def changed(before: list[str], after: list[str]) -> list[set[str]]:
    """Names the parts of each record that differ."""
    names = {"code": 32, "arguments": 40, "environment": 56}
    return [{name for name, at in names.items() if old[at : at + 8] != new[at : at + 8]} for old, new in zip(before, after, strict=True)]


def test_every_program_gives_the_same_records_and_an_edit_changes_those_that_it_concerns(tmp_path: Path) -> None:
    before = records(tmp_path)
    assert len(before) == 5 and all(len(record) == 64 for record in before) and len(set(before)) == 5
    assert records(tmp_path, seed=1) == before
    assert records(tmp_path, "# a comment moves every line\n\n" + PROGRAM, seed=2) == before
    assert changed(before, records(tmp_path, PROGRAM.replace("FACTOR = 3", "FACTOR = 4"))) == [{"code"}, {"code"}, set(), set(), set()]
    assert changed(before, records(tmp_path, PROGRAM.replace('"two", "three"', '"two", "3"'))) == [{"arguments"}, *[set()] * 4]
    assert changed(before, records(tmp_path, steps=STEPS.replace("x + self.n", "x - self.n"))) == [{"code"}] * 5
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert all("environment" in parts for parts in changed(before, records(elsewhere)))


def test_a_call_that_cannot_be_hashed_has_no_record() -> None:
    call = "(len, (threading.Lock(),), {})"
    program = f"import threading; from pilotfish.applications.reuse.call_keys import *; print(CallKeys().record({call}, {{}}))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "b''\n"


def test_a_compiled_module_counts_by_its_content_and_a_set_is_no_frozenset(tmp_path: Path) -> None:
    program = """
import importlib.machinery, sys, types
from pilotfish.applications.reuse.call_keys import CallKeys
module = sys.modules["fast"] = types.ModuleType("fast")
module.__file__ = "fast.so"
for argument in ({1}, frozenset([1])):
    print(CallKeys().record((len, (argument,), {}), {}).hex())
"""
    (tmp_path / "fast.so").write_bytes(b"one")
    first = records(tmp_path, program)
    assert first == records(tmp_path, program) and changed(first[:1], first[1:]) == [{"arguments"}]
    (tmp_path / "fast.so").write_bytes(b"two")
    assert changed(first, records(tmp_path, program)) == [{"code"}] * 2


def test_functions_that_no_longer_exist_are_forgotten() -> None:
    keys = CallKeys()
    for number in range(5):
        assert keys.record((lambda number=number: number, (), {}), {})
    assert len(keys._known) <= 1


class Value:
    """A value of which a test can see when it is deleted."""


def test_the_arguments_of_a_call_are_free_when_its_record_is_made() -> None:
    value = Value()
    deleted = weakref.ref(value)
    gc.disable()
    try:
        assert CallKeys().record((len, (value,), {}), {})
        del value
        assert deleted() is None
    finally:
        gc.enable()


def test_an_environment_variable_makes_another_call_unless_it_belongs_to_the_session() -> None:
    keys = CallKeys()
    variables = [{"METHOD": "fast"}, {"METHOD": "fast", "SSH_TTY": "1"}, {"METHOD": "slow"}, {}]
    fast, session, slow, none = (keys.record((len, ("",), {}), {"env": one}).hex() for one in variables)
    assert fast == session
    assert changed([fast, fast], [slow, none]) == [{"environment"}] * 2
    assert len({record[:32] for record in (fast, slow, none)}) == 3


class Packaged:
    """A value of a package that is pickled by its name."""

    def __reduce__(self) -> str:
        return "VALUE"


@pytest.mark.parametrize(
    "value",
    [numpy.sqrt, numpy.add.reduce, numpy.zeros, default_rng, default_rng(1), norm, numpy.float64(1.0), numpy.s_, Packaged()],
    ids=lambda value: type(value).__name__,
)
def test_the_version_of_a_package_counts_for_each_kind_of_value_from_it(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("made")
    package.VALUE = value  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made", package)
    monkeypatch.setattr(Packaged, "__module__", "made")
    found = []
    for version in ("1.0", "2.0"):
        monkeypatch.setattr(call_keys, "_version_of", lambda package, version=version: version if package in ("numpy", "made") else "")
        found.append(CallKeys().record((len, (value,), {}), {}).hex())
    assert changed(found[:1], found[1:]) == [{"environment"}]
