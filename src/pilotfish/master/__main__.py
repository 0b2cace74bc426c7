"""Starts the master process: ``python -m pilotfish.master POOL_DIRECTORY OPTIONS``. ``client/pools.py`` runs this command.

OPTIONS is JSON, because no user types it, and a parser for command lines would delay each start.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pilotfish.master.sites.prestarted_agent import PrestartedAgent, start_ahead


class StartOptions(NamedTuple):
    directory: Path
    settings: dict[str, Any]
    """Settings that override settings of config.toml."""
    ready: int
    """File descriptor to which the master writes its answer, one line of JSON with the key ``ready``, ``running`` or ``failed``."""
    temporary: bool
    """Whether the master removes the directory of the pool when it ends."""


def main() -> None:
    options = StartOptions(Path(sys.argv[1]), **json.loads(sys.argv[2]))
    if os.fork():
        os._exit(0)
    os.setsid()
    # The agent starts before the imports below: agent and master then import their modules at the same time.
    agent = start_ahead(options.directory, options.directory / "master.log")
    _serve(options, agent)


def _serve(options: StartOptions, agent: PrestartedAgent | None) -> None:
    import asyncio
    import logging
    import shutil

    import msgspec

    from pilotfish.config import home, read_settings
    from pilotfish.errors import AlreadyRunning, PilotfishError, show_exception
    from pilotfish.master.master_server import MasterServer
    from pilotfish.store.pool_directory import PoolDirectory

    pool = PoolDirectory(options.directory).make()
    _redirect(pool.log)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)

    notes: list[str] = []
    listeners = [options.ready]

    def notify(**answer: Any) -> None:
        while listeners:
            with suppress(BrokenPipeError):
                os.write(listeners[0], json.dumps(answer).encode() + b"\n")
            os.close(listeners.pop())

    async def serve() -> None:
        settings = read_settings(home() / "config.toml", options.settings, notes.append)
        if not settings.local_cores:
            settings = msgspec.structs.replace(settings, local_cores=len(os.sched_getaffinity(0)))
        master = MasterServer(pool, settings)
        if agent is not None:
            master.sites.local.use_prestarted(agent)
        await master.run(lambda: notify(ready=True, notes=notes))

    try:
        asyncio.run(serve())
    except AlreadyRunning as problem:
        notify(running=str(problem))
        sys.exit(3)
    except PilotfishError as problem:
        logging.error("%s", problem)
        notify(failed=str(problem), hint=problem.hint, code=problem.code)
        sys.exit(1)
    except Exception as problem:  # Every error must reach the process that started the master.
        logging.exception("the master cannot continue")
        notify(failed=show_exception(problem))
        sys.exit(1)
    if options.temporary:
        shutil.rmtree(pool.directory, ignore_errors=True)


def _redirect(log: Path) -> None:
    """Detaches the process from the terminal: makes its standard input empty and sends its output to the log."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, number in ((nowhere, 0), (target, 1), (target, 2)):
        os.dup2(source, number)
    os.close(nowhere)
    os.close(target)
    os.chdir("/")


if __name__ == "__main__":
    main()
