"""Starts the master process: ``python -m pilotfish.master POOL_DIRECTORY``. ``client/pools.py`` runs it, not users."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(prog="pilotfish-master")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--settings", default="{}", help="settings as JSON, on top of config.toml")
    parser.add_argument("--ready", type=int, default=-1, help="a descriptor to write one line of JSON to: ready, running or failed")
    parser.add_argument("--temporary", action="store_true", help="remove the directory at the end")
    options = parser.parse_args()
    if os.fork():
        os._exit(0)
    os.setsid()
    _serve(options)


def _serve(options: argparse.Namespace) -> None:
    import msgspec

    from pilotfish.config import home, read_settings
    from pilotfish.errors import AlreadyRunning, PilotfishError, show_exception
    from pilotfish.master.master_server import MasterServer
    from pilotfish.store.pool_directory import PoolDirectory

    pool = PoolDirectory(options.directory).make()
    _redirect(pool.log)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)

    notes: list[str] = []

    def notify(**answer: Any) -> None:
        if options.ready >= 0:
            with suppress(BrokenPipeError):
                os.write(options.ready, json.dumps(answer).encode() + b"\n")
            os.close(options.ready)
            options.ready = -1

    async def serve() -> None:
        settings = read_settings(home() / "config.toml", json.loads(options.settings), notes.append)
        if not settings.local_cores:
            settings = msgspec.structs.replace(settings, local_cores=len(os.sched_getaffinity(0)))
        master = MasterServer(pool, settings)
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
    except Exception as problem:  # The process that started the master must learn about any error.
        logging.exception("the master cannot continue")
        notify(failed=show_exception(problem))
        sys.exit(1)
    if options.temporary:
        shutil.rmtree(pool.directory, ignore_errors=True)


def _redirect(log: Path) -> None:
    """Detaches from the terminal: there is no input, and output goes to the log."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, number in ((nowhere, 0), (target, 1), (target, 2)):
        os.dup2(source, number)
    os.close(nowhere)
    os.close(target)
    os.chdir("/")


if __name__ == "__main__":
    main()
