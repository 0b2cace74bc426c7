"""Runs a temporary pool for one command. After the end of the pool, finds processes and files that are left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pilotfish.applications.executables.executable import Executable, LaunchSpec, executable_payload, executable_spec
from pilotfish.applications.task_options import TaskOptions
from pilotfish.client.pools import PoolHandle, private_pool
from pilotfish.client.session import PoolSession
from pilotfish.model.task import RunOptions


class PrivatePool:
    """A temporary pool and its session. After the end of the pool, ``left`` describes the processes and files that are left."""

    def __init__(self, pool: PoolHandle, master: PoolSession) -> None:
        self.pool = pool
        self.master = master
        self.left: list[str] = []

    def submit(self, commands: Sequence[Sequence[str]], wanted: TaskOptions | None = None) -> int:
        """Submits commands as the tasks of one run and returns the number of the run."""
        run = self.master.begin(RunOptions(command=" ".join(commands[0])))
        spec = self.master.spec_number(run, *executable_spec(commands[0][0], LaunchSpec(cwd="/"), wanted or TaskOptions()))
        for command in commands:
            self.master.submit(run, spec, executable_payload(Executable(argv=tuple(command)))[0])
        self.master.confirm(run)
        return run.run


@contextmanager
def private_master(cores: int) -> Iterator[PrivatePool]:
    pool = private_pool(cores)
    master = PoolSession.connect(pool.directory, pool.revive)
    private = PrivatePool(pool, master)
    try:
        yield private
    finally:
        try:
            master.ask("stop", now=True)
        finally:
            master.close()
            private.left = pool.wait_until_stopped()
