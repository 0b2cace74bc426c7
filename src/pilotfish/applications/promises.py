"""Files that tasks will leave, as inputs of later tasks of their run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from fnmatch import fnmatchcase
from typing import Any

from pilotfish.applications.below import check_name
from pilotfish.applications.executable import Inputs, PromisedFile
from pilotfish.applications.launches import ExecutableWishes
from pilotfish.errors import BadInput
from pilotfish.model.data import Awaited


def promise(task: Future[Any] | int, name: str, kept: Iterable[str], shown: str) -> PromisedFile:
    """``kept``: what the task keeps for others."""
    if not any(fnmatchcase(name, pattern) or name.startswith(f"{pattern}/") for pattern in kept):
        hint = f"give that task keep=[{name!r}]; with outputs=[{name!r}] as well, it comes home besides"
        raise BadInput(f"file: task {shown} does not keep {name!r} for others", hint)
    return PromisedFile(task, name)


def take_promised(options: ExecutableWishes, index_of: Callable[[Any], int]) -> tuple[Awaited, ...]:
    """Those inputs that other tasks will leave: they are taken off the rest. ``index_of``: a task in its run."""
    if "inputs" not in options:
        return ()
    options["inputs"], promised = _split_promised(options["inputs"])
    if promised and options.get("sandbox") is False:
        raise BadInput("sandbox=False does not go with files of other tasks", "leave it out: they are brought to a fresh directory")
    if promised:
        options["sandbox"] = True
    return tuple(Awaited(index_of(source.task), source.name, name) for name, source in promised.items())


def _split_promised(inputs: Inputs) -> tuple[Inputs, dict[str, PromisedFile]]:
    """Inputs that are there, and those that tasks will leave, by the names that they will have."""
    if isinstance(inputs, Mapping):
        named = {"/".join(check_name(name, "inputs")): source for name, source in inputs.items() if isinstance(source, PromisedFile)}
        return {name: source for name, source in inputs.items() if not isinstance(source, PromisedFile)}, named
    if isinstance(inputs, (str, bytes, os.PathLike)):
        return inputs, {}
    rest, promised = [], dict[str, PromisedFile]()
    for source in inputs:
        if not isinstance(source, PromisedFile):
            rest.append(source)
        elif promised.setdefault(source.name, source) != source:
            raise BadInput(f"inputs: files of two tasks would both be called {source.name!r}", 'name them: {"a.txt": one.file("x.txt"), …}')
    return rest, promised
