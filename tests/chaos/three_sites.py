"""Runs sites on this machine with real pilots: each site has its own network, each agent its own cache, as on separate nodes.

If permissions allow it, agents cannot read the submitted files, so that they have only what was sent to them. The journal shows afterwards
which tasks were delegated, claimed and assigned; a log of side effects shows what ran.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotfish.client.master_client import MasterClient
from pilotfish.client.pools import PoolHandle
from pilotfish.model import facts as f
from pilotfish.model.facts import decode_record
from pilotfish.model.ids import task_id
from pilotfish.portable.processes import processes_of
from pilotfish.store.journal.journal_writer import Journal
from pilotfish.store.pool_directory import PoolDirectory, stop_mark_path
from tests.chaos.scene import PATIENCE_S, children, is_alive, wait_until

SETTINGS: dict[str, Any] = {
    "local_cores": 1,
    "matching": "distributed",
    "beat_s": 1.0,
    "lease_s": 15.0,
    "linger_s": 600.0,
    "author_s": 600.0,
}
HIDING_PYTHON = """#!/bin/sh
[ "$1" != -c ] || exec {python} "$@"
exec unshare --mount sh -c 'mount -t tmpfs none "{hidden}" && exec {python} "$@"' sh "$@"
"""
CAN_HIDE = os.geteuid() == 0 and shutil.which("unshare") is not None


class PoolOutOfReach(PoolHandle):
    """A pool whose master cannot be restarted until ``may_start`` is set."""

    may_start = threading.Event()

    def revive(self) -> None:
        self.may_start.wait(PATIENCE_S)
        super().revive()


@dataclass
class ThreeSites:
    place: Path
    pool: PoolOutOfReach
    client: MasterClient
    names: tuple[str, ...]
    kills: Counter[str] = field(default_factory=Counter)

    @property
    def hidden(self) -> Path:
        return self.place / "hidden"

    @property
    def effects(self) -> Path:
        return self.place / "effects"

    def ask(self, kind: str, **arguments: Any) -> Any:
        return self.client.ask(kind, **arguments)

    # --- workers ------------------------------------------------------------------------------------------------------------------------

    def workers(self, site: str = "") -> list[str]:
        """Return the connected workers. The last part of a name is the process id of the supervisor."""
        rows = [row["worker"] for row in self.ask("workers") if row["connected"] and row["state"] in ("idle", "busy")]
        return [name for name in rows if name.startswith(f"{site}-") or not site]

    def master_of(self, site: str) -> str:
        """Return the worker that tasks were delegated to last; empty without one, or if it is gone."""
        lenders = [fact.worker for fact in self.facts() if isinstance(fact, f.TasksDelegated) and fact.worker.startswith(f"{site}-")]
        return lenders[-1] if lenders and lenders[-1] in self.workers(site) else ""

    def facts(self) -> list[Any]:
        """Read all facts from a copy of the journal, because the master may be writing it."""
        with tempfile.TemporaryDirectory(dir=self.place) as copy:
            shutil.copytree(self.pool.directory / "journal", f"{copy}/journal")
            journal, recovery = Journal.open(f"{copy}/journal")
            found = [fact for record in recovery for fact in decode_record(record).facts]
            journal.close()
        return found

    def story(self, index: int, facts: list[Any]) -> list[str]:
        """Return all facts about a task of the first run, given its index."""
        number = task_id(1, index)
        about = [fact for fact in facts if number in getattr(fact, "tasks", ()) or getattr(fact, "task", None) == number]
        return [f"{type(fact).__name__} {getattr(fact, 'worker', '')} {getattr(fact, 'reason', '')}" for fact in about]

    # --- faults -------------------------------------------------------------------------------------------------------------------------

    def strike(self, kind: str, worker: str) -> None:
        """Harm a worker. ``agent``: kill the agent; its supervisor reports it. ``power``: kill all processes. ``leave``: let it leave."""
        supervisor = int(worker.rpartition(".")[2])
        victims = {"agent": children(supervisor)[:1], "leave": [supervisor], "power": [supervisor, *below(supervisor)]}[kind]
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if kind == "leave" else signal.SIGKILL)
        self.kills[kind] += bool(victims)

    def kill_master(self) -> None:
        """Kill the master and keep it down until ``restart_master``."""
        self.pool.may_start.clear()
        pid = int(json.loads(max(self.pool.directory.glob("lock-*")).read_text())["pid"])
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), "the master to die")
        self.kills["master"] += 1

    def restart_master(self) -> None:
        self.pool.may_start.set()
        self.pool.revive()

    # --- side effects -------------------------------------------------------------------------------------------------------------------

    def logged(self, what: str) -> list[tuple[str, str]]:
        """Return (task, attempt) of all attempts that started, or ended."""
        lines = self.effects.read_text().splitlines() if self.effects.exists() else []
        return [(words[1], words[2]) for words in map(str.split, lines) if words[0] == what]

    def complaints(self) -> list[str]:
        """Return agent logs with errors that must never occur."""
        logs = [path.read_text() for path in self.place.glob("*/node-*/log")]
        return [text for text in logs if "Traceback" in text or "hung up" in text]

    def leave(self) -> None:
        self.pool.may_start.set()
        stop_mark_path(self.pool.directory).touch()
        with suppress(Exception):
            self.ask("stop", now=True)
        self.client.close()
        assert self.pool.wait_until_stopped(PATIENCE_S) == []
        wait_until(lambda: not list(processes_of(self.place)), f"nothing is left: {list(processes_of(self.place))[:3]}")


def below(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *below(child))]


@contextmanager
def three_sites(home: Path, place: Path, pilots: int, names: tuple[str, ...] = ("a", "b", "c")) -> Iterator[ThreeSites]:
    """Create sites that provide ``pilots`` pilots of one core each when a run needs them; no other workers."""
    (place / "hidden").mkdir(parents=True)
    (home / "sites.toml").write_text("\n".join(_describe(name, place, pilots) for name in names))
    (home / "sites.toml").chmod(0o600)
    pool = PoolOutOfReach(PoolDirectory(home / "pools" / "churn").make().directory, dict(SETTINGS))
    pool.may_start.set()
    pool.revive()
    made = ThreeSites(place, pool, MasterClient.connect(pool.directory, pool.revive), names)
    made.ask("workers_set", local=0)
    try:
        yield made
    finally:
        made.leave()


def _describe(name: str, place: Path, pilots: int) -> str:
    python = Path(sys.executable)
    if CAN_HIDE:
        python = place / f"python-of-{name}"
        python.write_text(HIDING_PYTHON.format(python=sys.executable, hidden=place / "hidden"))
        python.chmod(0o700)
    node = f"mkdir -p {place}/{name}; export TMPDIR=$(mktemp -d {place}/{name}/node-XXXXXX); exec 2> $TMPDIR/log"
    fields = {"backend": "ssh", "folder": str(place / name), "python": str(python), "setup": [node], "cores": 1, "max_pilots": pilots}
    fields |= {"max_queued": pilots, "submissions_per_minute": 6000.0, "commands_at_once": 8, "period": 1.0}
    return "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items()), ""])
