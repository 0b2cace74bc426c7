"""Files that one task leaves for another: known by name when tasks are submitted, and by content when the first of them has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pilotfish.core import replicas
from pilotfish.core.state import Run, State, Task
from pilotfish.model.data import Awaited, Content, Handed, Made
from pilotfish.model.ids import INDEX_MASK


def inputs_of(task: Task) -> list[Handed]:
    """What others have left for it, by the names that it knows."""
    run, index = task.shape.run, task.id & INDEX_MASK
    return [*run.handed.get(index, ()), *(file for awaited in run.awaited.get(index, ()) for file in left_for(run, awaited))]


def left_for(run: Run, awaited: Awaited) -> Iterator[Handed]:
    """The file of that name; or all that are in a directory of that name."""
    for file in run.left.get(awaited.maker, ()):
        if file.name == awaited.name or file.name.startswith(f"{awaited.name}/"):
            yield Handed(awaited.here + file.name[len(awaited.name) :], file.mode, file.digest, file.size)


def leave(task: Task, made: Iterable[Made]) -> None:
    files = tuple(Handed(one.name, one.mode, one.digest, one.size) for one in made if one.name)
    if files:
        task.shape.run.left[task.id & INDEX_MASK] = files


def receive(state: State, task: Task) -> None:
    """All that it waits for has ended: it needs what was left for it."""
    known = {record.digest for record in task.contents}
    found = {file.digest: Content(file.digest, file.size) for file in inputs_of(task) if file.digest not in known}
    if found:
        task.contents = (*task.contents, *replicas.refer(state, task.shape.run, found.values()))
