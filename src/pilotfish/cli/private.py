"""A pool for a moment: started, used and proved gone. For the commands that try things out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pilotfish.applications.executable import Executable, Launch, executable_payload, executable_spec
from pilotfish.applications.wishes import Wanted
from pilotfish.cli.live_master import LiveMaster
from pilotfish.live.client import Client
from pilotfish.live.daemon import Pool, private_pool
from pilotfish.model.task import RunOptions


class PrivatePool:
    """The pool, its master, and after the end what was left of it (nothing, if all is well)."""

    def __init__(self, pool: Pool, master: LiveMaster) -> None:
        self.pool = pool
        self.master = master
        self.left: list[str] = []

    def submit(self, commands: Sequence[Sequence[str]], wanted: Wanted | None = None) -> int:
        """A run of these commands."""
        new = self.master.begin(RunOptions(command=" ".join(commands[0])))
        spec, code = executable_spec(commands[0][0], Launch(cwd="/"), wanted or Wanted())
        number = new.spec(spec, code)
        for command in commands:
            new.add(number, executable_payload(Executable(argv=tuple(command)))[0])
        new.close()
        return new.number


@contextmanager
def private_master(workers: int) -> Iterator[PrivatePool]:
    pool = private_pool(workers)
    master = LiveMaster(Client.connect(pool.directory, pool.revive))
    private = PrivatePool(pool, master)
    try:
        yield private
    finally:
        try:
            master.ask("stop", now=True)
        finally:
            master.close()
            private.left = pool.wait_until_gone()
