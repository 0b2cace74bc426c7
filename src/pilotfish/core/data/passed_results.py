"""Passes results of calls to later calls whose arguments are these results.

The results are parts of the payload of the later call. Each result stays in the form in which the slot of the earlier call pickled it; the
master never unpickles a result. The master keeps a result until all later calls that need the result have ended. This is true even if the
client that owns the run already has the result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from pilotfish.core.state import SUPERSEDED, Run, State, Task
from pilotfish.model.contents import RESULT, ExpectedFile
from pilotfish.model.ids import INDEX_MASK, show_task
from pilotfish.model.states import DONE
from pilotfish.model.task import Payload, StoredPayload, sent_bytes
from pilotfish.portable.payload_format import pack_lengths


def makers_of(run: Run, index: int) -> list[int]:
    """Returns the calls whose results are arguments of a task, in the order of the arguments. Most tasks have no such arguments."""
    return [expected.maker for expected in run.expected_files.get(index, ()) if expected.name == RESULT]


def expect(run: Run, expected_files: dict[int, tuple[ExpectedFile, ...]]) -> None:
    """Counts, for each result, the tasks in ``expected_files`` that need the result. The keys of ``expected_files`` are the indices of
    these tasks, which must be unfinished."""
    for files in expected_files.values():
        for maker in {file.maker for file in files if file.name == RESULT}:
            run.awaited_results[maker] = run.awaited_results.get(maker, 0) + 1


def task_ended(state: State, run: Run, index: int) -> None:
    """Records the end of a task that needed results. Removes each of these results if no other task needs the result and the client that
    owns the run has fetched the result."""
    for maker in set(makers_of(run, index)):
        run.awaited_results[maker] -= 1
        if not run.awaited_results[maker]:
            del run.awaited_results[maker]
            if maker in run.kept_results:
                run.kept_results.discard(maker)
                _remove_output(state, run.tasks[maker])


def outputs_taken(state: State, run: Run, indices: Iterable[int]) -> None:
    """Removes the outputs of tasks, because the client that owns the run has these outputs. Keeps results that unfinished tasks need."""
    for index in indices:
        if index in run.awaited_results:
            run.kept_results.add(index)
        elif index != SUPERSEDED:
            _remove_output(state, run.tasks[index])


def _remove_output(state: State, task: Task) -> None:
    if isinstance(task.output, StoredPayload):
        state.unneeded_outputs.append(task.output)
    task.output = b""


def restore(run: Run, indices: Iterable[int]) -> None:
    """Counts again, for each result, the unfinished tasks among ``indices`` that need it. A snapshot does not contain these counts."""
    expect(run, {index: run.expected_files[index] for index in indices if run.tasks[index].state < DONE})
    if run.awaited_results:
        run.kept_results = {index for index in run.ended[: run.outputs_taken] if index in run.awaited_results}


def with_results(run: Run, task: Task, whole: bool) -> Sequence[Payload]:
    """Returns the payload of a task in pieces. The pieces include the results that the task needs.

    ``whole``: True if the worker cannot read files of the master. If a result is stored as a content, its piece is empty, because the
    worker fetches the content.
    """
    makers = makers_of(run, task.id & INDEX_MASK)
    if not makers:
        return (task.payload,)
    names = json.dumps({"results": [show_task(run.tasks[maker].id) for maker in makers]}).encode()
    outputs = [b"" if RESULT in run.left_files.get(maker, ()) else run.tasks[maker].output for maker in makers]
    parts = [names, task.payload, *outputs]
    return [pack_lengths([sent_bytes(part, whole) for part in parts]), *parts]
