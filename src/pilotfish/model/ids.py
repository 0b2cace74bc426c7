"""Packs the number of a run and the index of a task into one task id. Users see the id as ``run.index``.

The lower 32 bits contain the index: the position of the task in its run, from 0. The bits above contain the number of the run. So the id
alone gives both numbers, without a look-up. The id stays below 2**53, so that every JSON reader reads it exactly.
"""

INDEX_BITS = 32
INDEX_MASK = (1 << INDEX_BITS) - 1
MAX_RUN = (1 << 21) - 1


def task_id(run: int, index: int) -> int:
    return run << INDEX_BITS | index


def run_of(task: int) -> int:
    return task >> INDEX_BITS


def show_task(task: int) -> str:
    return f"{task >> INDEX_BITS}.{task & INDEX_MASK}"
