"""Measures the rate of a large file between master and agent, compared with a bare TLS socket, scp and rsync."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.contestants.processes import read_process
from benchmarks.harness import Contestant, Figure, Goal, Options, Question, compare
from tests.support.sshd import ALIAS, Sshd, running_sshd

MIB = 1024 * 1024
FILE_MIB, SMALL_MIB = 2048, 256
PATIENCE_S = 300.0
SCP_RATIO, PLAIN_RATIO = 1.5, 0.6
SHM = Path("/dev/shm")

RATE = Figure("mb_per_s", "MB/s")
CPU = Figure("cpu_s_per_gb", "CPU s/GB, both ends", 2, higher_is_better=False)
OUR_PEAK = Figure("agent_peak_mib", "agent's peak MiB")
MASTER_PEAK = Figure("master_peak_mib", "master's peak MiB")


class Stage:
    """Source files and a directory for received files, on the same file system."""

    def __init__(self, directory: Path, size_mib: int) -> None:
        self.directory = directory
        self.size = size_mib * MIB
        self.source = directory / "source"
        block, known = bytearray(os.urandom(MIB)), hashlib.sha256()
        with self.source.open("wb") as file:
            for number in range(size_mib):
                block[:8] = number.to_bytes(8, "big")
                file.write(block)
                known.update(block)
        self.digest = known.hexdigest()
        self.source.chmod(0o644)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Provides a directory for one measurement.

        It writes a copy first: the first use of new memory by a virtual machine is slow and would be counted against a contestant.
        """
        made = Path(tempfile.mkdtemp(dir=self.directory))
        made.chmod(0o777)
        try:
            shutil.copyfile(self.source, made / "before")
            (made / "before").unlink()
            yield made
        finally:
            shutil.rmtree(made)

    def rate(self, seconds: float) -> float:
        return self.size / seconds / 1e6

    def figures(self, result: dict[str, Any], server: int) -> dict[str, float]:
        """Returns the figures from the result of one end and the process of the other. Both include the start of Python."""
        process = read_process(server)
        if process is None:
            raise RuntimeError("the server is gone")
        return {RATE.key: self.rate(result["seconds"]), CPU.key: (result["cpu_s"] + process.cpu_s) / (self.size / 1e9)}


@contextlib.contextmanager
def serving(role: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Starts a serving process; yields it and its READY line."""
    command = [sys.executable, "-m", "benchmarks.transfer_ends", role, *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said.startswith("READY"):
            raise RuntimeError(f"no {role} came up")
        yield process, said.removeprefix("READY").strip()
    finally:
        process.kill()
        process.communicate()


def asking(role: str, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.transfer_ends", role, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    result: dict[str, Any] = json.loads(done.stdout.removeprefix("RESULT"))
    return result


def peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def ours(stage: Stage, role: str) -> dict[str, Any]:
    """Measures our transfer, including connection and digest check."""
    with stage.scratch() as directory, serving("master", str(directory), str(stage.source)) as (master, _):
        result = asking(role, str(directory), str(stage.source), stage.digest)
        return {
            **stage.figures(result, master.pid),
            OUR_PEAK.key: result["peak_mib"],
            MASTER_PEAK.key: peak_mib(master.pid),
        }


def plain(stage: Stage) -> dict[str, Any]:
    with stage.scratch() as directory, serving("plain-sender", str(directory), str(stage.size)) as (sender, port):
        return stage.figures(asking("plain-receiver", port, str(stage.size)), sender.pid)


def plain_files(stage: Stage) -> dict[str, Any]:
    """Measures the same work with plain code: read and send; receive, write and hash."""
    with stage.scratch() as directory, serving("plain-sender", str(directory), str(stage.size), str(stage.source)) as (sender, port):
        words = [port, str(stage.size), str(directory / "copy"), stage.digest]
        return stage.figures(asking("plain-receiver", *words), sender.pid)


def copied(stage: Stage, server: Sshd, words: list[str], to_server: bool) -> dict[str, Any]:
    """Measures scp or rsync, including the connection."""
    with stage.scratch() as directory:
        places = [str(stage.source), str(directory / "copy")]
        places[int(to_server)] = f"{ALIAS}:{places[int(to_server)]}"
        began = time.monotonic()
        done = subprocess.run([*words, *places], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        seconds = time.monotonic() - began
        if done.returncode or (directory / "copy").stat().st_size != stage.size:
            return {"error": done.stderr.strip().splitlines()[-1] if done.stderr else f"exit {done.returncode}"}
        return {RATE.key: stage.rate(seconds)}


def contestants(large: Stage, small: Stage, server: Sshd) -> list[Contestant]:
    config = str(server.config)
    scp = ["scp", "-q", "-F", config]
    rsync = ["rsync", "--whole-file", "--rsh", f"ssh -F {config}"]
    fast = [*scp, "-c", "aes128-gcm@openssh.com"]

    def by(words: list[str], to_server: bool) -> Callable[[], dict[str, Any]]:
        return lambda: copied(large, server, words, to_server)

    found = [
        Contestant("pilotfish get", "ours", lambda: ours(large, "get")),
        Contestant("plain TLS", "floor", lambda: plain(large)),
        Contestant("plain TLS, file to file, hashed", "floor", lambda: plain_files(large)),
        Contestant("pilotfish put", "ours", lambda: ours(large, "put")),
        Contestant("scp get", "peer", by(scp, False)),
        Contestant("scp put", "peer", by(scp, True)),
        Contestant("scp get, aes128-gcm", "peer", by(fast, False)),
        Contestant("scp put, aes128-gcm", "peer", by(fast, True)),
    ]
    if shutil.which("rsync"):
        found += [Contestant("rsync get", "peer", by(rsync, False)), Contestant("rsync put", "peer", by(rsync, True))]
    if small is not large:
        found += [
            Contestant(f"pilotfish get, {SMALL_MIB} MiB", "ours", lambda: ours(small, "get")),
            Contestant(f"pilotfish put, {SMALL_MIB} MiB", "ours", lambda: ours(small, "put")),
        ]
    return found


def run(size_mib: int, where: Path, options: Options) -> int:
    goals = []
    for way in ("get", "put"):
        name = f"pilotfish {way}"
        goals.append(Goal(f"{way}: at least {SCP_RATIO} times as fast as scp", RATE, (f"scp {way}",), SCP_RATIO, name))
        goals.append(Goal(f"{way}: at least {PLAIN_RATIO} times as fast as a bare TLS socket", RATE, ("plain TLS",), PLAIN_RATIO, name))
    notes = [
        f"from the page cache to a file in {where}, over loopback; each end is a separate process",
        "plain TLS: Python sockets, the same block of 1 MiB repeatedly; nothing is read, written or hashed",
        "plain TLS, file to file, hashed: the same work as ours; an upper bound if there are few cores",
    ]
    question = Question("transfers", f"a file of {size_mib} MiB", [RATE, CPU, OUR_PEAK, MASTER_PEAK], goals, notes)
    with (
        tempfile.TemporaryDirectory(prefix="pilotfish-transfers-", dir=where) as name,
        running_sshd("Subsystem sftp internal-sftp\n") as server,
    ):
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "large").mkdir()
        (directory / "small").mkdir()
        large = Stage(directory / "large", size_mib)
        small = Stage(directory / "small", SMALL_MIB) if size_mib > SMALL_MIB else large
        return compare(question, contestants(large, small, server), options)


def main(options: Options) -> int:
    return run(FILE_MIB, SHM if SHM.is_dir() else Path(tempfile.gettempdir()), options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    Options.add_to(parser)
    parser.add_argument("--mib", type=int, default=FILE_MIB, help="size of the file in MiB")
    parser.add_argument("--where", type=Path, default=SHM if SHM.is_dir() else Path(tempfile.gettempdir()), help="directory of the files")
    chosen = parser.parse_args()
    sys.exit(run(chosen.mib, chosen.where, Options.from_namespace(chosen)))
