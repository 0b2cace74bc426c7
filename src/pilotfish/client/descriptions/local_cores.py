"""Limits the cores of this machine that one run uses: ``run --local-cores N``.

The limit is a concurrency limit of the tasks of the run. So it changes neither the size of the pool nor other runs.
"""

from __future__ import annotations

import msgspec

from pilotfish.applications.task_list import TaskList
from pilotfish.client.descriptions.run_options import RunRequest
from pilotfish.client.session import PoolSession
from pilotfish.errors import BadInput
from pilotfish.model.site import LOCAL
from pilotfish.model.task import Request

LIMIT_NAME = "--local-cores"


def check_local_cores(request: RunRequest, tasks: TaskList | None = None, has_manager: bool = False) -> None:
    """Raises BadInput if ``--local-cores`` cannot be combined with the other options or with the tasks of a run file."""
    cores = request.local_cores
    if cores is None:
        return
    option = f"--local-cores {cores}"
    elsewhere = [name for name in request.sites.names if name != LOCAL]
    if elsewhere:
        fix = f"Leave one of them out, or set the cores of the pool: pilotfish workers --local-cores {cores}"
        raise BadInput(f"{option} limits the run to this machine, and --site {elsewhere[0]} names another site", fix)
    if has_manager or (tasks is not None and any(spec.concurrency_limit[0] for spec, _ in tasks.specs)):
        why = "an application manager" if has_manager else "tasks that have a concurrency limit of their own"
        raise BadInput(f"{option} does not go with {why}", f"Set the cores of the pool: pilotfish workers --local-cores {cores}")
    requests = [spec.request for spec, _ in tasks.specs] if tasks is not None else [request.task_options().request]
    most = max((max(one.cores, one.cores_max) for one in requests), default=0)
    if most > cores:
        raise BadInput(f"{option}: a task asks for {most:g} cores", f"Give the run at least as many: --local-cores {most:g}")


def limited_cores(session: PoolSession, request: RunRequest) -> tuple[int, str]:
    """Returns the maximum number of cores of the run, and a note for the user. 0 means that the run needs no limit."""
    cores = request.local_cores
    if cores is None:
        return 0, ""
    pool_cores = session.ask("status")["local_cores"]
    if cores <= pool_cores:
        return (cores if cores < pool_cores else 0), ""
    used = f"{pool_cores:g} core{'' if pool_cores == 1 else 's'}"
    fix = f"Give the pool more: pilotfish workers --local-cores {cores}"
    return 0, f"note: --local-cores {cores}: this pool uses {used} of this machine, so the run does, too. {fix}"


def concurrency_limit(cores: int, request: Request) -> tuple[str, int]:
    """Returns the name and number of the concurrency limit for tasks with this request. With this limit, the tasks together use at most
    ``cores`` cores, but one task can always run. If ``cores`` is 0, there is no limit: returns an empty name and 0."""
    return (LIMIT_NAME, max(1, int(cores // max(request.cores, request.cores_max, 1)))) if cores else ("", 0)


def limit_tasks(tasks: TaskList, cores: int) -> None:
    """Limits the tasks of a run file to this number of cores."""
    for place, (spec, code) in enumerate(tasks.specs if cores else ()):
        tasks.specs[place] = msgspec.structs.replace(spec, concurrency_limit=concurrency_limit(cores, spec.request)), code
