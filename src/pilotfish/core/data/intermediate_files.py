"""Hands files that one task leaves to tasks that wait for them.

Such files are known by name at submission, and by content when the first task has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from pilotfish.core.data import replicas
from pilotfish.core.state import Run, State, Task
from pilotfish.model.contents import MAGIC, AwaitedFile, Content, IntermediateFile, ProducedContent
from pilotfish.model.ids import INDEX_MASK


def inputs_of(task: Task) -> list[IntermediateFile]:
    """Files that other tasks left for this task, under the names that it uses."""
    run, index = task.shape.run, task.id & INDEX_MASK
    promised = (file for awaited in run.awaited.get(index, ()) for file in left_for(run, awaited))
    return list(dict.fromkeys((*run.handed.get(index, ()), *promised)))


def left_for(run: Run, awaited: AwaitedFile) -> list[IntermediateFile]:
    """The file of that name, all files in a directory of that name, or all files that match the pattern.

    A missing file is listed without a digest, and the worker reports it as missing.
    """
    left = run.left.get(awaited.maker, {})
    exact = left.get(awaited.name)
    if exact is not None:
        return [_named(exact, awaited.here)]
    if MAGIC.intersection(awaited.name):
        below = "" if awaited.here == awaited.name else f"{awaited.here}/"
        found = [_named(file, below + name) for name, file in left.items() if fnmatchcase(name, awaited.name)]
    else:
        inside = f"{awaited.name}/"
        found = [_named(file, awaited.here + name[len(awaited.name) :]) for name, file in left.items() if name.startswith(inside)]
    return found or [IntermediateFile(awaited.here, 0, "", 0)]


def _named(file: IntermediateFile, name: str) -> IntermediateFile:
    return IntermediateFile(name, file.mode, file.digest, file.size)


def leave(task: Task, made: Iterable[ProducedContent]) -> None:
    files = {one.name: IntermediateFile(one.name, one.mode, one.digest, one.size) for one in made if one.name}
    if files:
        task.shape.run.left[task.id & INDEX_MASK] = files


def receive(state: State, task: Task) -> None:
    """Add files that other tasks left to the inputs of a task whose dependencies ended. Those of other runs are inputs already."""
    known = {record.digest for record in task.contents}
    contents = [content for content in contents_of(inputs_of(task)) if content.digest not in known]
    task.contents = (*task.contents, *replicas.refer(state, task.shape.run, contents))


def contents_of(files: Iterable[IntermediateFile]) -> list[Content]:
    return [Content(digest, size) for digest, size in {file.digest: file.size for file in files if file.digest}.items()]
