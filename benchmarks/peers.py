"""Installs the other systems, each in its own virtual environment below a cache directory, by name and version.

A contestant is a program of ``contestants/`` that runs in such an environment, if possible alone on the machine, and prints one line
``RESULT {json}``. A system that cannot be installed or run is reported as ``error``, never left out of a table.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contestants.processes import MARK, marked_processes
from benchmarks.harness import Contestant, Kind, Options

REPOSITORY = Path(__file__).parent.parent
INSTALL_TIMEOUT_S = 900
RUN_TIMEOUT_S = 120
GOODBYE_S = 20
NUMPY = "numpy==2.3.5"
OWN_ENVIRONMENT = ""
"""Environment of the Python that runs the benchmarks; it has pilotfish."""


@dataclass(frozen=True)
class Peer:
    """A contestant: its module of ``contestants/``, its environment, and the settings that make it a variant of another."""

    name: str
    kind: Kind
    program: str
    environment: str = OWN_ENVIRONMENT
    variables: dict[str, str] = field(default_factory=dict)


REQUIREMENTS: dict[str, list[str]] = {
    "dask": ["dask[distributed]==2026.8.0", NUMPY],
    "ray": ["ray==2.60.0", NUMPY],
    "parsl": ["parsl==2026.10.26", NUMPY],
    "hyperqueue": ["hyperqueue==0.27.0", NUMPY],
    "executorlib": ["executorlib==1.11.0", NUMPY],
    # Not a system: pilotfish and the libraries that can use it.
    "works-with": ["--editable", f"{REPOSITORY}[works-with]"],
}

POOL = "ProcessPoolExecutor"
OURS = "pilotfish"
PEERS: list[Peer] = [
    Peer(POOL, "floor", "process_pool"),
    Peer(OURS, "ours", "pilotfish_executor"),
    Peer("Ray", "peer", "ray_cluster", "ray"),
    Peer("Dask", "peer", "dask_cluster", "dask"),
    Peer("Dask, saturation=inf", "peer", "dask_cluster", "dask", {"DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION": "inf"}),
    Peer("Parsl HTEX", "peer", "parsl_htex", "parsl"),
    Peer("Parsl HTEX, tuned", "peer", "parsl_htex", "parsl", {"PARSL_PREFETCH": "64", "PARSL_QUIET": "1"}),
    Peer("HyperQueue", "peer", "hyperqueue_cluster", "hyperqueue"),
    # A pool of one machine without a scheduler, so not a distributed peer: its workers belong to the process that started them.
    Peer("executorlib, one node", "pool", "executorlib_local", "executorlib"),
]


class Unavailable(Exception):
    """A peer cannot be installed here; the text is the reason."""


def python_of(environment: str, cache: Path) -> Path:
    """Returns the interpreter of a peer's environment; creates the environment if it is missing."""
    if environment == OWN_ENVIRONMENT:
        return Path(sys.executable)
    directory = cache / f"{environment}-py{sys.version_info.major}{sys.version_info.minor}"
    wanted = "\n".join(REQUIREMENTS[environment])
    stamp = directory / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return directory / "bin" / "python"
    print(f"installing {', '.join(REQUIREMENTS[environment])} in {directory}", file=sys.stderr, flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    base = getattr(sys, "_base_executable", sys.executable)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([base, "-m", "venv", "--clear", str(directory)], [*pip, *REQUIREMENTS[environment]]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as timeout:
            raise Unavailable(f"not installed: no end after {INSTALL_TIMEOUT_S} s") from timeout
        if done.returncode != 0:
            raise Unavailable(f"not installed: {last_line(done.stderr)}")
    stamp.write_text(wanted)
    return directory / "bin" / "python"


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def end_leftovers(mark: str) -> int:
    """Waits for a contestant's daemons to end and kills the rest; returns the number of killed ones."""
    deadline = time.monotonic() + GOODBYE_S
    while left := marked_processes(mark):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(left)


def run_program(python: Path, arguments: list[str], variables: dict[str, str]) -> dict[str, Any]:
    """Runs a contestant program in its own directory; returns its RESULT."""
    mark = uuid.uuid4().hex
    # The path is short because some contestants put Unix sockets below it.
    directory = tempfile.mkdtemp(prefix="pfb")
    environment = {
        **os.environ,
        **variables,
        MARK: mark,
        "TMPDIR": directory,
        "PILOTFISH_HOME": os.path.join(directory, "pilotfish"),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONWARNINGS": "ignore",
    }
    began = time.time()
    command = [str(python), *arguments]
    process = subprocess.Popen(
        command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, complaints = process.communicate(timeout=RUN_TIMEOUT_S)
        reason = last_line(complaints)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        reason = f"no end after {RUN_TIMEOUT_S} s"
    left = end_leftovers(mark)
    shutil.rmtree(directory, ignore_errors=True)
    for line in output.splitlines():
        if line.startswith("RESULT "):
            answer: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            answer["left_behind"] = left
            answer["cold_s"] = answer.get("first_result_at", began) - began
            return answer
    return {"error": f"exit {process.returncode}: {reason}", "left_behind": left}


def engine_contestants(question: str, options: Options, extra: tuple[str, ...] = ()) -> list[Contestant]:
    """Returns every peer as a contestant for a question of ``contestants/measure.py``."""
    made = []
    for peer in PEERS:

        def measure(peer: Peer = peer) -> dict[str, Any]:
            try:
                python = python_of(peer.environment, options.cache)
            except Unavailable as why:
                return {"error": str(why)}
            program = ["-m", f"benchmarks.contestants.{peer.program}"]
            arguments = [*program, question, "--workers", str(options.workers), "--seconds", str(options.seconds), *extra]
            return run_program(python, arguments, peer.variables)

        made.append(Contestant(peer.name, peer.kind, measure))
    return made


def main() -> None:
    """Installs all peers and lists those that failed."""
    options = Options.from_command_line("Install the other systems, each in an environment of its own.")
    for environment in REQUIREMENTS:
        try:
            print(f"{environment}: {python_of(environment, options.cache)}")
        except Unavailable as why:
            print(f"{environment}: {why}")


if __name__ == "__main__":
    main()
