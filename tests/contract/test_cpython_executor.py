"""CPython's own tests of its executors, run against ``pilotfish.Executor``.

They are found in the Python that runs them, never copied. Every test in them is either run here or listed in LEFT_OUT with the reason.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import shutil
import sys
import sysconfig
import tempfile
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pilotfish
from pilotfish.api.futures import TaskFuture

PACKAGE = "test_concurrent_futures"
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
MISSING = (
    f"this Python {MINOR} has no tests of its own (no module test.{PACKAGE}). On Debian and Ubuntu: "
    f"apt-get install libpython{MINOR}-testsuite; on Fedora: dnf install python3-test; "
    f"or set CPYTHON_LIB to the Lib directory of the sources of CPython {MINOR}"
)

CASES = {
    "ExecutorTest": "submit, map, exceptions, references",
    "WaitTests": "wait",
    "AsCompletedTests": "as_completed",
    "ExecutorShutdownTest": "shutdown, interpreter exit, cancel_futures",
    "InitializerMixin": "initializer",
    "FailingInitializerMixin": "initializer that fails",
    "ProcessPoolExecutorTest": "what holds for pools of processes",
    "FutureTests": "the future itself: our own class takes the place of the standard one",
}

ALL = "*"
LEFT_OUT: dict[tuple[str, str], str] = {
    ("ThreadPoolExecutorTest", ALL): "tests threads: closures that share memory with their caller, and the attribute _threads",
    ("ThreadPoolShutdownTest", ALL): "the same; what is not about threads is in ExecutorShutdownTest",
    ("ThreadPoolWaitTests", ALL): "the same; what is not about threads is in WaitTests",
    (
        "ProcessPoolShutdownTest",
        ALL,
    ): "looks at _processes, _call_queue and _executor_manager_thread; what does not is in ExecutorShutdownTest",
    ("ExecutorDeadlockTest", ALL): "expects one crash to break the whole pool; here it fails its own task only (tests/integration)",
    ("FailingInitializerResourcesTest", ALL): "counts the semaphores of multiprocessing",
    (
        "ProcessPoolExecutorTest",
        "test_killed_child",
    ): "kills one of _processes and expects the pool to break; here the task runs again elsewhere",
    ("ProcessPoolExecutorTest", "test_force_shutdown_workers"): "is about _processes",
    ("ProcessPoolExecutorTest", "test_force_shutdown_workers_invalid_op"): "is about _processes",
    ("ProcessPoolExecutorTest", "test_force_shutdown_workers_stops_pool"): "is about _processes",
    ("ProcessPoolExecutorTest", "test_force_shutdown_workers_dead"): "is about _processes",
    ("ProcessPoolExecutorTest", "test_process_pool_executor_terminate_workers"): "is about _processes",
    ("ProcessPoolExecutorTest", "test_process_pool_executor_kill_workers"): "is about _processes",
    ("ProcessPoolExecutorTest", "test_max_workers_too_large"): "for Windows only",
    ("ProcessPoolExecutorTest", "test_traceback"): "wants the private type _RemoteTraceback; ours is tested in tests/unit/applications",
    (
        "ProcessPoolExecutorTest",
        "test_ressources_gced_in_workers",
    ): "needs an mp_context: its manager's proxies are bound to the parent process",
    ("ProcessPoolExecutorTest", "test_saturation"): "shares a semaphore of multiprocessing, which only children of one process can",
    ("ProcessPoolExecutorTest", "test_idle_process_reuse_one"): "counts _processes",
    ("ProcessPoolExecutorTest", "test_idle_process_reuse_multiple"): "counts _processes",
    ("ProcessPoolExecutorTest", "test_max_tasks_per_child"): "there is no max_tasks_per_child: slots are renewed by the agent",
    ("ProcessPoolExecutorTest", "test_max_tasks_per_child_defaults_to_spawn_context"): "the same",
    ("ProcessPoolExecutorTest", "test_max_tasks_early_shutdown"): "the same",
    ("ProcessPoolExecutorTest", "test_python_finalization_error"): "mocks the threads of multiprocessing's queues",
}
"""(class, test) -> why it is not run. A name that this Python's version does not have is no error."""


def find_tests() -> Path | None:
    """The file or package with CPython's tests: of this installation, or where the distributions put them."""
    folders = [
        os.environ.get("CPYTHON_LIB", ""),
        sysconfig.get_path("stdlib"),
        f"/usr/lib/python{MINOR}",
        f"/usr/lib64/python{MINOR}",
        f"/usr/local/lib/python{MINOR}",
    ]
    for folder in folders:
        for name in (f"{PACKAGE}.py", PACKAGE):
            path = Path(folder, "test", name)
            if path.exists():
                return path
    return None


def import_tests(place: Path) -> tuple[Path, list[types.ModuleType]]:
    """The test modules, imported under a name of their own from a directory that slots can import them from as well."""
    folder = Path(tempfile.mkdtemp(prefix="cpython-tests-"))
    atexit.register(shutil.rmtree, folder)
    (folder / place.name).symlink_to(place)
    sys.path.append(str(folder))
    modules = [importlib.import_module(PACKAGE)]
    if place.is_dir():
        names = sorted(path.stem for path in place.glob("*.py") if path.stem != "__init__")
        modules += [importlib.import_module(f"{PACKAGE}.{name}") for name in names]
    return folder, modules


FOUND = find_tests()
FOLDER, MODULES = import_tests(FOUND) if FOUND is not None else (Path(), [])


def named(name: str) -> Any:
    return next(vars(module)[name] for module in MODULES if name in vars(module))


def own_tests(case: type) -> list[str]:
    """The tests that the class itself defines."""
    return [name for name in vars(case) if name.startswith("test_")]


def reason_for_leaving_out(case: str, test: str) -> str | None:
    return LEFT_OUT.get((case, ALL)) or LEFT_OUT.get((case, test))


def run_ours_instead(script: str) -> str:
    """The scripts of the tests, for our executor and with the tests where we put them."""
    return f"import sys; sys.path.append({str(FOLDER)!r})\n" + script.replace(
        "from concurrent.futures import Executor", "from pilotfish import Executor"
    ).replace(f"from test.{PACKAGE}", f"from {PACKAGE}")


class _NoSession:
    """What a future needs of its session when no task belongs to it."""

    run = 0

    def report_cancelled(self, future: TaskFuture[Any]) -> None:
        pass


class OrphanFuture(TaskFuture[Any]):
    """Our future as the tests make theirs: without an executor."""

    def __init__(self) -> None:
        super().__init__(_NoSession())  # type: ignore[arg-type]


OrphanFuture.__name__ = "Future"


class WithoutPytestsLog(unittest.TestCase):
    """Some tests look for what the last resort of logging writes to stderr, and pytest's own handler comes before that."""

    def setUp(self) -> None:
        super().setUp()
        handlers, logging.getLogger().handlers = logging.getLogger().handlers, []
        self.addCleanup(setattr, logging.getLogger(), "handlers", handlers)


def make_case(name: str) -> type[unittest.TestCase]:
    case = named(name)
    attributes: dict[str, Any] = {"executor_type": pilotfish.Executor, "__module__": __name__}
    for test in own_tests(case):
        reason = reason_for_leaving_out(name, test)
        if reason is not None:
            attributes[test] = unittest.skip(reason)(getattr(case, test))
    for inherited in CASES:
        # What a case inherits from another one is run there.
        if inherited != name and issubclass(case, named(inherited)):
            attributes.update(dict.fromkeys(own_tests(named(inherited))))
    if name == "FutureTests":
        bases: tuple[type, ...] = (WithoutPytestsLog, case)
    elif issubclass(case, named("ExecutorMixin")):
        bases = (case, named("BaseTestCase"))
    else:
        bases = (case, named("ExecutorMixin"), named("BaseTestCase"))
    return type(f"Test{name}", bases, attributes)


@pytest.fixture(autouse=True)
def our_executor(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("PILOTFISH_HOME", str(home))
    for module in MODULES:
        if hasattr(module, "Future"):
            monkeypatch.setattr(module, "Future", OrphanFuture)
        if hasattr(module, "assert_python_ok"):
            original = module.assert_python_ok
            monkeypatch.setattr(module, "assert_python_ok", lambda flag, script, run=original: run(flag, run_ours_instead(script)))
    yield
    left = list((home / "pools").iterdir()) if (home / "pools").is_dir() else []
    assert not left, f"left behind: {left}"


for _name in CASES if MODULES else ():
    globals()[f"Test{_name}"] = make_case(_name)


def test_cpythons_own_tests_are_here() -> None:
    assert MODULES, MISSING


def test_every_test_of_cpython_is_run_or_left_out_for_a_reason() -> None:
    unheard = [
        f"{name}.{test}"
        for module in MODULES
        for name, case in vars(module).items()
        if isinstance(case, type) and case.__module__ == module.__name__ and name not in CASES
        for test in own_tests(case)
        if reason_for_leaving_out(name, test) is None
    ]
    assert not unheard, "neither run nor left out with a reason"
