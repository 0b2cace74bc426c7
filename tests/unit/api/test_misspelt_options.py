"""Tests that a misspelt keyword of the Python API gets the nearest name, or a list of all names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from pilotfish.api.executor import EXECUTOR_NAMES, Executor, ExecutorKeywords
from pilotfish.api.run import CALL_NAMES, RUN_NAMES, Run
from pilotfish.applications.executables.executable_encoder import EXECUTABLE_KEYWORDS, EXECUTABLE_NAMES, ExecutableKeywords
from pilotfish.applications.task_list import LIST_NAMES, TaskList
from pilotfish.applications.task_options import TASK_KEYWORDS, TaskKeywords
from pilotfish.client.descriptions.run_options import RunKeywords
from pilotfish.errors import BadInput


def refused(call: Callable[[], object]) -> BadInput:
    with pytest.raises(BadInput) as raised:
        call()
    return raised.value


def call(function: Callable[..., object], *args: Any, **options: Any) -> Callable[[], object]:
    return lambda: function(*args, **options)


def bare_run() -> Run:
    """Returns a Run without a session, which is enough to check keywords."""
    run = Run.__new__(Run)
    run._register = lambda spec, code: 0
    return run


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        (call(Executor, max_worker=2), "max_workers"),
        (call(Executor, site="hpc"), "sites"),
        (call(Executor, initialiser=print), "initializer"),
        (call(Executor, memroy="2G"), "memory"),
        (call(Run, "a", site="hpc"), "sites"),
        (call(Run, "a", max_failure=1), "max_failures"),
        (call(Run, "a", over_write=True), "overwrite"),
        (call(Run.options, bare_run(), input=["a"]), "inputs"),
        (call(Run.options, bare_run(), caches=True), "cache"),
        (call(Run.options, bare_run(), tme=1), "time"),
        (call(TaskList().add, ["true"], afer=[0]), "after"),
        (call(TaskList().add, ["true"], afer_any=[0]), "after_any"),
        (call(TaskList().add, ["true"], ouputs=["a"]), "outputs"),
    ],
)
def test_the_nearest_name_is_suggested(misspelt: Callable[[], object], meant: str, pilotfish_home: object) -> None:
    assert refused(misspelt).hint == f"did you mean {meant!r}?"


def test_without_a_similar_name_all_names_are_listed() -> None:
    names = refused(call(Executor, zzz=1)).hint.removeprefix("the options are ").split(", ")
    assert set(names) == {*EXECUTOR_NAMES, *TASK_KEYWORDS}
    names = refused(call(Run, "a", zzz=1)).hint.removeprefix("the options are ").split(", ")
    assert set(names) == {*RUN_NAMES, *RunKeywords.__annotations__}


def names_of(function: Callable[..., object], keywords: Any) -> set[str]:
    plain = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = {name for name, one in inspect.signature(function).parameters.items() if one.kind in plain and name != "self"}
    return parameters | set(keywords.__annotations__)


def test_the_lists_of_names_are_complete() -> None:
    assert {*EXECUTOR_NAMES, *TASK_KEYWORDS} == names_of(Executor.__init__, ExecutorKeywords)
    assert {*RUN_NAMES, *RunKeywords.__annotations__} == names_of(Run.__init__, RunKeywords)
    assert {*CALL_NAMES, *TASK_KEYWORDS} == names_of(Run.options, TaskKeywords)
    assert {*EXECUTABLE_NAMES, *EXECUTABLE_KEYWORDS} == names_of(Run.executable, ExecutableKeywords) - {"argv"}
    assert {*LIST_NAMES, *EXECUTABLE_KEYWORDS} == names_of(TaskList.add, ExecutableKeywords) - {"argv"}
