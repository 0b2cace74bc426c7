"""Adds tasks in a loop: an example of a run file.

pilotfish run examples/run_file.py
"""

from pilotfish.applications.task_list import TaskList


def run(tasks: TaskList) -> None:
    tasks.defaults.outputs = ["message.out"]
    tasks.defaults.memory = "100 MiB"
    for i in range(20):
        tasks.add(["sh", "-c", f"echo hello from task {i} > message.out"])
