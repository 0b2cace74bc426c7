"""Passes the output files of one task to the later tasks that need these files.

When the tasks are submitted, only the names of the files are known. The contents are known when the creating task has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from msgspec.structs import replace

from pilotfish.core.data import replicas
from pilotfish.core.state import Run, State, Task
from pilotfish.model.contents import MAGIC, RESULT, STREAM, Content, ExpectedFile, IntermediateFile, ProducedContent
from pilotfish.model.ids import INDEX_MASK


def inputs_of(task: Task) -> list[IntermediateFile]:
    """Returns the files that other tasks left for this task, under the names that this task uses."""
    run, index = task.shape.run, task.id & INDEX_MASK
    same_run = (file for expected in run.expected_files.get(index, ()) for file in left_for(run, expected))
    return list(dict.fromkeys((*run.earlier_files.get(index, ()), *same_run)))


def left_for(run: Run, expected: ExpectedFile) -> list[IntermediateFile]:
    """Returns the files that ``expected`` stands for: one file, all files in a directory, or all files that match a pattern.

    If there is no such file, the list has one entry without a digest. The worker then reports that the file is missing. If ``expected`` is
    the result of a call, and the result is not stored as a content, the list is empty.
    """
    left = run.left_files.get(expected.maker, {})
    exact = left.get(expected.name)
    if exact is not None:
        return [replace(exact, name=expected.target)]
    if expected.name == RESULT:
        return []  # the result is not stored as a content, so it comes with the payload
    left = {name: file for name, file in left.items() if not name.startswith("/")}
    if MAGIC.intersection(expected.name):
        below = "" if expected.target == expected.name else f"{expected.target}/"
        found = [replace(file, name=below + name) for name, file in left.items() if fnmatchcase(name, expected.name)]
    else:
        inside = f"{expected.name}/"
        found = [replace(file, name=expected.target + name[len(expected.name) :]) for name, file in left.items() if name.startswith(inside)]
    return found or [IntermediateFile(expected.target, 0, "", 0)]


def leave(task: Task, made: Iterable[ProducedContent]) -> None:
    """Records the contents of a task's result: its files, and its long outputs. The task's run, and each run that reuses the result, needs
    all of them."""
    files = (IntermediateFile(one.name or STREAM + one.digest, one.mode, one.digest, one.size) for one in made)
    task.shape.run.left_files[task.id & INDEX_MASK] = {file.name: file for file in files}


def receive(state: State, task: Task) -> None:
    """Adds files to the inputs of a task: the files that other tasks of the run left for this task. Files of earlier runs were added at
    submission."""
    run, index = task.shape.run, task.id & INDEX_MASK
    if index not in run.expected_files and index not in run.earlier_files:
        return
    known = {record.digest for record in task.contents}
    contents = [content for content in contents_of(inputs_of(task)) if content.digest not in known]
    task.contents = (*task.contents, *replicas.refer_to(state, run, contents))


def contents_of(files: Iterable[IntermediateFile]) -> list[Content]:
    return [Content(digest, size) for digest, size in {file.digest: file.size for file in files if file.digest}.items()]
