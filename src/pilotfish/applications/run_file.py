"""Loads a run file and finds its ``run`` function or its manager.

A function ``def run(tasks)`` adds all tasks before the run starts. A manager, ``manager = MyManager(…)``, creates tasks during the run, in
a process beside the master (``client/application_host.py``).
"""

from __future__ import annotations

import ast
import inspect
import os
import runpy
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pilotfish import plugins
from pilotfish.applications.application_manager import ApplicationManager
from pilotfish.applications.task_list import TaskList
from pilotfish.errors import BadInput, PilotfishError

SHAPE = "a run file has def run(tasks): … or manager = YourManager()"
SHOWN_NAMES = 5


class RunFile(NamedTuple):
    """A loaded run file. It has either all tasks, or the manager that will create them."""

    path: Path
    tasks: TaskList | None
    manager: ApplicationManager | None


def load_application(path: str | os.PathLike[str], arguments: Sequence[str] = ()) -> RunFile:
    """Loads a file. The suffix of the file selects the application plug-in that loads it."""
    read = plugins.load("applications", Path(path).suffix[1:])
    loaded = read(path, arguments)
    if not isinstance(loaded, RunFile) or (loaded.tasks is None) == (loaded.manager is None):
        plugin = plugins.find("applications", Path(path).suffix[1:])
        raise plugins.PluginBroken(f"{plugin} gave no RunFile with either tasks or a manager", f"pip uninstall {plugin.distribution}")
    return loaded


def load(path: str | os.PathLike[str], arguments: Sequence[str] = ()) -> RunFile:
    """Loads a run file. If the file defines a function ``run``, calls this function. Errors name the file and the line."""
    file = Path(path).resolve()
    if not file.is_file():
        raise BadInput(f"run file: {os.fspath(path)!r} does not exist (looked in {os.getcwd()})", "check the path")
    _check_shape(file, os.fspath(path), arguments)
    names = _execute(file, arguments)
    function, manager = names.get("run"), names.get("manager")
    if manager is not None:
        if not isinstance(manager, ApplicationManager):
            fix = "derive its class from pilotfish.ApplicationManager"
            raise BadInput(f"run file {file.name}: manager = {manager!r} is not an ApplicationManager", fix)
        return RunFile(file, None, manager)
    if function is None:
        near = [name for name, value in names.items() if callable(value) and not name.startswith("_")]
        raise BadInput(f"run file {file.name}: it defines neither run nor manager (it has: {', '.join(near) or 'nothing'})", SHAPE)
    if not callable(function) or len(_parameters(function)) != 1:
        raise BadInput(
            f"run file {file.name}: run{_signature(function)} cannot be called with the task list alone", "write def run(tasks):"
        )
    tasks = TaskList()
    with _located_errors(file):
        function(tasks)
    if not len(tasks):
        raise BadInput(f"run file {file.name}: run(tasks) added no task", "call tasks.add([program, argument, …]) in it")
    return RunFile(file, tasks, None)


def _check_shape(file: Path, written: str, arguments: Sequence[str]) -> None:
    """Raises BadInput if a file defines neither ``run`` nor ``manager``. Such a file is probably a program, so it is not executed."""
    with _located_errors(file):
        defined = list(_top_level_names(ast.parse(file.read_bytes(), file.name)))
    if not {"run", "manager", "*"} & set(defined):
        program = shlex.join(["pilotfish", "run", "--", "python", written, *arguments])
        raise BadInput(
            f"run file {file.name}: it defines neither run nor manager (it has: {', '.join(defined[:SHOWN_NAMES]) or 'nothing'})",
            f"if it is a program: {program}  ({SHAPE})",
        )


def _top_level_names(tree: ast.AST) -> Iterator[str]:
    """Yields the names that the file possibly defines, also inside an ``if`` or ``try``. Yields ``*`` for a star import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                yield node.id
        elif not isinstance(node, ast.Lambda):
            yield from _top_level_names(node)


def _parameters(function: Any) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [each for each in parameters if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _signature(function: Any) -> str:
    return str(inspect.signature(function)) if callable(function) else f" = {function!r}"


def _execute(file: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Executes the file. Returns the names that the file defines, with their values. The file can import modules of its directory."""
    sys.argv = [str(file), *arguments]
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    with _located_errors(file):
        return runpy.run_path(str(file), run_name="pilotfish_run_file")


@contextmanager
def _located_errors(file: Path) -> Iterator[None]:
    """Turns an error of the run file into BadInput that names the file and the line."""
    try:
        yield
    except PilotfishError as error:
        raise BadInput(f"run file {_where(file, error)}: {error}", error.hint) from error
    except SystemExit as error:
        raise BadInput(f"run file {file.name}: it called exit ({error.code})", "leave that to the caller") from error
    except SyntaxError as error:
        raise BadInput(f"run file {file.name}, line {error.lineno}: {error.msg}", "fix the syntax") from error
    except Exception as error:
        raise BadInput(f"run file {_where(file, error)}: {type(error).__name__}: {error}", "fix the run file") from error


def _where(file: Path, error: BaseException) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f"{file.name}, line {lines[-1]}" if lines else file.name
