"""Names files that a task will produce as inputs of later tasks of its run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from pilotfish.applications.executable import FutureFile, Inputs, check_outputs
from pilotfish.applications.executable_encoder import ExecutableDefaults, ExecutableKeywords
from pilotfish.applications.safe_paths import check_name
from pilotfish.errors import BadInput
from pilotfish.model.contents import MAGIC, ExpectedFile


def kept_patterns(options: ExecutableKeywords, defaults: ExecutableDefaults) -> tuple[str, ...]:
    """Returns the names and patterns that an executable keeps for other tasks."""
    if "keep" in options:
        options["keep"] = check_outputs(options["keep"], "keep")
    return check_outputs((*(defaults.keep or ()), *options.get("keep", ())), "keep")


def make_future_file(task: Future[Any] | int, name: str, kept: Iterable[str], shown: str) -> FutureFile:
    """Returns a future file of a task. ``kept``: names and patterns that the task keeps for others.

    A pattern is accepted, because its matches are not known yet; if nothing matches, the later task fails with a message.
    """
    (name,) = check_outputs([name], "file")
    if not any(name == one or name.startswith(f"{one}/") or MAGIC.intersection(one) for one in kept):
        hint = f"give that task keep=[{name!r}]; with outputs=[{name!r}] as well, it is also copied back"
        raise BadInput(f"file: task {shown} does not keep {name!r} for others", hint)
    return FutureFile(task, name)


def take_future_files(options: ExecutableKeywords, index_of: Callable[[Any], int]) -> tuple[ExpectedFile, ...]:
    """Removes the future files from the inputs and returns them. ``index_of`` gives the index of a task in its run."""
    if "inputs" not in options:
        return ()
    options["inputs"], future_files = _split(options["inputs"])
    if future_files and options.get("sandbox") is False:
        raise BadInput("sandbox=False does not go with files of other tasks", "leave it out: they are brought to a fresh directory")
    return tuple(ExpectedFile(index_of(source.task), source.name, name) for name, source in future_files.items())


def _split(inputs: Inputs) -> tuple[Inputs, dict[str, FutureFile]]:
    """Splits inputs into existing ones and future files, by their names in the sandbox."""
    if isinstance(inputs, (str, bytes, os.PathLike)):
        return inputs, {}
    future_files: dict[str, FutureFile] = {}
    rest: Inputs
    if isinstance(inputs, Mapping):
        for name, source in inputs.items():
            _add(future_files, name, source)
        rest = {name: source for name, source in inputs.items() if not isinstance(source, FutureFile)}
    else:
        sources = list(inputs)
        for source in sources:
            _add(future_files, getattr(source, "name", ""), source)
        rest = [source for source in sources if not isinstance(source, FutureFile)]
    return rest, future_files


def _add(future_files: dict[str, FutureFile], name: str, source: object) -> None:
    if not isinstance(source, FutureFile):
        return
    name = "/".join(check_name(name, "inputs"))
    if future_files.setdefault(name, source) != source:
        raise BadInput(f"inputs: files of two tasks would both be called {name!r}", 'name them: {"a.txt": one.file("x.txt"), …}')
