"""Packs run and index into one task id. Users see it as ``run.index``.

The run is in the upper bits and the index (place in the run, from 0) in the lower 32 bits. Both are found without a look-up, and the id
stays below 2**53, where every JSON reader is exact.
"""

INDEX_BITS = 32
INDEX_MASK = (1 << INDEX_BITS) - 1
MAX_RUN = (1 << 21) - 1

TaskId = int
RunId = int


def task_id(run: RunId, index: int) -> TaskId:
    return run << INDEX_BITS | index


def run_of(task: TaskId) -> RunId:
    return task >> INDEX_BITS


def show_task(task: TaskId) -> str:
    return f"{task >> INDEX_BITS}.{task & INDEX_MASK}"
