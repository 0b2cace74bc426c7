"""Runs a pool with real processes, a client in its own process, and a log of side effects.

Every task appends one line ``task attempt pid`` to a file when it starts and one when it ends. The test kills or stops a process, waits for
the end of the run, and compares the master's answers, the log and the process table.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pilotfish.client.master_client import MasterClient
from pilotfish.client.pools import PoolHandle
from pilotfish.master.sites.local_controller import PROCESS_FILE, read_job_id
from pilotfish.portable.processes import processes_of, started_at
from pilotfish.store.pool_directory import PoolDirectory

PATIENCE_S = 120.0

CLIENT = """
import sys, time, pilotfish
from pathlib import Path
from pilotfish.client.pools import PoolHandle
directory, uid, log, count, seconds = sys.argv[1:]
who = '$PILOTFISH_TASK $PILOTFISH_ATTEMPT $$'
script = f'echo "start {who}" >> {log}; sleep {seconds}; echo "end {who}" >> {log}'
with pilotfish.Run(uid=uid, pool=PoolHandle(Path(directory))) as run:
    for number in range(int(count)):
        run.executable(["sh", "-c", script])
        if number % 20 == 0:
            print(number, flush=True)
            time.sleep(0.005)
print("finished", flush=True)
"""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


@dataclass
class Scene:
    pool: PoolHandle
    log: Path
    uid: str = "chaos"

    # --- processes ---------------------------------------------------------------------------------------------------------------------

    def master(self) -> int:
        lock = max(self.pool.directory.glob("lock-*"))
        return int(json.loads(lock.read_text())["pid"])

    def supervisor(self) -> int:
        """The process of the youngest pilot; 0 without one."""
        files = (self.pool.directory / "pilots").glob(f"*/{PROCESS_FILE}")
        found = [read_job_id(file.read_text()) for file in files]
        return max((pid for pid, started in found if started and started_at(pid) == started), default=0)

    def agent(self) -> int:
        return next(iter(children(self.supervisor())), 0)

    def keeper(self) -> int:
        """The process between the agent and a slot."""
        return next((pid for pid in children(self.agent()) if is_alive(pid) and os.getsid(pid) == pid), 0)

    def slot_server(self) -> int:
        """The process that forks the slots. It is in the session of its agent, and each slot is in a session of its own."""
        return next((pid for pid in children(self.agent()) if is_alive(pid) and os.getsid(pid) != pid), 0)

    def slots(self) -> list[int]:
        return [pid for keeper in children(self.agent()) for pid in children(keeper) if is_alive(pid)]

    def slot(self) -> int:
        """A slot, preferably one with a task."""
        slots = self.slots()
        return next((pid for pid in slots if children(pid)), slots[0] if slots else 0)

    def task(self) -> int:
        return next((child for slot in self.slots() for child in children(slot)), 0)

    def pid_of(self, who: str) -> int:
        found = 0

        def there() -> bool:
            nonlocal found
            found = getattr(self, who)()
            return bool(found)

        wait_until(there, f"a {who} to aim at")
        return found

    def hit(self, who: str, number: int) -> int:
        """Send a signal to a process that certainly exists."""
        while True:
            pid = self.pid_of(who)
            with suppress(ProcessLookupError):
                os.kill(pid, number)
                return pid

    # --- tasks ------------------------------------------------------------------------------------------------------------------------

    def start_client(self, count: int, seconds: float) -> subprocess.Popen[str]:
        arguments = [str(self.pool.directory), self.uid, str(self.log), str(count), str(seconds)]
        return subprocess.Popen([sys.executable, "-c", CLIENT, *arguments], stdout=subprocess.PIPE, text=True)

    def row(self) -> dict[str, object]:
        self.pool.revive()
        client = MasterClient.connect(self.pool.directory, self.pool.revive)
        try:
            rows = client.ask("runs")
        finally:
            client.close()
        return next((row for row in rows if row["uid"] == self.uid), {})

    def started(self) -> int:
        return sum(line.startswith("start") for line in self.lines())

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def wait_for_end(self, count: int | None = None) -> dict[str, object]:
        """Wait for the end of the run; it may have fewer than ``count`` tasks if the client died before it sent them all."""
        wait_until(lambda: self.row().get("state") == "done", f"the run to end: {self.row()}")
        row = self.row()
        if count is not None:
            assert row["tasks"] == count
        return row

    # --- checks -----------------------------------------------------------------------------------------------------------------------

    def assert_each_task_ended_once(self, row: dict[str, object], reruns: int) -> None:
        """Check that all tasks are done, no attempt ran twice, every last attempt completed, and faults explain all reruns."""
        counts = row["counts"]
        assert isinstance(counts, dict) and counts["done"] == row["tasks"], row
        starts = Counter(tuple(line.split()[1:3]) for line in self.lines() if line.startswith("start"))
        assert max(starts.values()) == 1, f"an attempt ran twice: {starts.most_common(3)}"
        ended = {line.split()[1] for line in self.lines() if line.startswith("end")}
        assert len(ended) == row["tasks"]
        assert len(starts) - len(ended) <= reruns, f"{len(starts)} attempts for {len(ended)} tasks"

    def stop(self) -> None:
        """Stop the pool and check that nothing is left of it."""
        self.pool.revive()
        client = MasterClient.connect(self.pool.directory)
        client.ask("stop", now=True)
        client.close()
        assert self.pool.wait_until_stopped(PATIENCE_S) == []
        assert list(processes_of(self.pool.directory)) == []
        assert not PoolDirectory(self.pool.directory).socket_path().exists()
        assert list((self.pool.directory / "work").iterdir()) == [], "a sandbox is left"
        assert not any(str(self.log) in command for command in _commands_of_others()), "a task is left"


def _commands_of_others() -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and int(name) != os.getpid() and is_alive(int(name)):
                found.append(Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace"))
    return found


STOP, KILL, CONTINUE = signal.SIGSTOP, signal.SIGKILL, signal.SIGCONT
