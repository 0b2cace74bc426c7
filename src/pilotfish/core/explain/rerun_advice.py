"""Names the commands that run failed tasks or a whole run again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pilotfish.core.state import Task
from pilotfish.model.quantities import enough_bytes, enough_seconds
from pilotfish.model.task import DEPENDENCY, MEMORY, MISSING_OUTPUT, NO_DIRECTORY, UNIT

NEW_LIMITS = {"oom": ("--memory", enough_bytes), "time": ("--time", enough_seconds)}
"""For each cause of failure: the option that a rerun needs, and the function that writes the value of this option."""
MISSING_FILE_HINT = "if a file is missing in its private directory, run it again with --input FILE"
PERMANENT = frozenset({NO_DIRECTORY, MISSING_OUTPUT, "version"})
"""Causes that a rerun alone seldom removes: the tasks need different options or a different version of Python."""
NEW_OPTIONS = {
    NO_DIRECTORY: "run it again with --sandbox (sandbox=True in Python), and --input FILE (inputs=[...]) for each file that it needs",
    MISSING_OUTPUT: "run it again with the right name in --output (out= in a task list, outputs= in Python); "
    "if the program did not write the file, correct the program: pilotfish rerun {run} --failed",
}
"""For each cause of failure that different options remove: these options."""


def failure_row(task: Task) -> dict[str, Any] | None:
    """Returns the failure of a task as a row. If the task reached a limit, the row contains the value of the ``limit``."""
    if task.failure is None:
        return None
    limits = {"time": task.shape.time_s, "oom": dict(task.shape.needs).get(MEMORY, 0) / UNIT}
    limit = limits.get(task.failure.cause)
    return {**msgspec.structs.asdict(task.failure), **({"limit": limit} if limit else {})}


def fix_with_options(run: int, failures: Iterable[Mapping[str, Any]]) -> str:
    """Returns the options with which the tasks of a run have to run again. ``failures``: see ``failure_row``. Returns an empty text if
    different options are not known to help all tasks."""
    fixes = {NEW_OPTIONS.get(failure["cause"], "") for failure in failures if failure["cause"] != DEPENDENCY}
    return fixes.pop().replace("{run}", str(run)) if len(fixes) == 1 else ""


def rerun_command(run: int, failures: Iterable[Mapping[str, Any]], some_cancelled: bool = False) -> str:
    """Returns the command that runs the failed and cancelled tasks of a run again. If tasks reached a limit, the command doubles this
    limit. ``failures``: see ``failure_row``. Returns an empty text if all causes are permanent, so that a rerun could not succeed."""
    limits: dict[str, float] = {}
    for failure in failures:
        limits[failure["cause"]] = max(limits.get(failure["cause"], 0.0), failure.get("limit") or 0.0)
    different = set(limits)
    different = different - {DEPENDENCY} or different  # skipped tasks count only if there are no others
    if different and different <= PERMANENT:
        return ""
    options = "".join(f" {option} {show(2 * limits[cause])}" for cause, (option, show) in NEW_LIMITS.items() if limits.get(cause))
    return f"pilotfish rerun {run}{'' if some_cancelled else ' --failed'}{options}"


def command_to_resume(name: str, command: str) -> str:
    """Returns the command with which a user submits a run again without its finished tasks; empty if no command is known. ``name``,
    ``command``: see ``RunOptions``."""
    command = command.partition(" # rescue ")[0]
    first = command.partition(" ")[0]
    if first == "--dag" or first.endswith(".dag"):  # a DAGMan file continues from its rescue file
        return f"pilotfish run {command.removeprefix('--dag ')}"
    if first.startswith("--") or first.endswith(".py"):
        return f"pilotfish run --resume {f'--name {shlex.quote(name)} ' if name else ''}{command}"
    return "" if first.startswith("-") else command
