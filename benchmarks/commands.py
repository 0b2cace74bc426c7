"""Runs command lines as contestants: ``pilotfish run`` with its own home, and ``xargs``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contestants.processes import MARK
from benchmarks.contestants.sizing import sized_run
from benchmarks.harness import Options
from benchmarks.peers import RUN_TIMEOUT_S, end_leftovers, last_line


class CommandFailed(Exception):
    """A failed command line; the text is its last line of output."""


class Shell:
    """Runs ``pilotfish`` commands with their own home, as a user would in a terminal."""

    def __init__(self, directory: str, mark: str) -> None:
        self.directory = Path(directory)
        self.environment = {**os.environ, MARK: mark, "PILOTFISH_HOME": str(self.directory / "home"), "TMPDIR": directory}

    def pilotfish(self, *arguments: str) -> float:
        """Runs a command; returns its seconds."""
        program = Path(sys.executable).parent / "pilotfish"
        began = time.perf_counter()
        done = subprocess.run(
            [str(program), *arguments],
            env=self.environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        elapsed = time.perf_counter() - began
        if done.returncode != 0:
            raise CommandFailed(f"pilotfish {arguments[0]}: exit {done.returncode}: {last_line(done.stderr)}")
        return elapsed

    def run_true(self, count: int) -> float:
        lines = self.directory / f"lines-{count}.txt"
        lines.write_text("".join(f"{number}\n" for number in range(count)))
        return self.pilotfish("run", "--each-line", str(lines), "--", "/bin/true", "{}")


@contextmanager
def fresh_home() -> Iterator[Shell]:
    """Provides a new home; afterwards its master is stopped and the home removed."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="pfb", ignore_cleanup_errors=True) as directory:
        shell = Shell(directory, mark)
        try:
            yield shell
        finally:
            try:
                shell.pilotfish("stop", "--now")
            except (CommandFailed, OSError, subprocess.TimeoutExpired):
                pass
            end_leftovers(mark)


def measured(measure: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Wraps a measurement so that a failed or missing command is reported as an error."""

    def run() -> dict[str, Any]:
        try:
            return measure()
        except (CommandFailed, OSError, subprocess.TimeoutExpired) as problem:
            return {"error": str(problem)}

    return run


def xargs_true(options: Options) -> dict[str, Any]:
    """Measures xargs, the lower bound: no durability, no results, all output in one file."""
    command = ["xargs", f"-P{options.workers}", "-n1", "/bin/true"]

    def run(count: int) -> float:
        numbers = "".join(f"{number}\n" for number in range(count))
        with tempfile.TemporaryFile() as output:
            began = time.perf_counter()
            subprocess.run(command, input=numbers.encode(), stdout=output, stderr=output, check=True)
            return time.perf_counter() - began

    count, elapsed = sized_run(run, options.seconds)
    return {"count": count, "elapsed_s": elapsed, "per_s": count / elapsed}


def pilotfish_run_true(options: Options) -> dict[str, Any]:
    """Measures ``pilotfish run --each-line`` with a running master; the start of the command is included."""
    with fresh_home() as shell:
        # The size of the pool, because a run with fewer cores than its pool gets its tasks one by one.
        shell.pilotfish("workers", "--local-cores", str(options.workers))
        shell.run_true(1)
        warm_s = shell.run_true(1)
        count, elapsed = sized_run(shell.run_true, options.seconds)
    return {"count": count, "elapsed_s": elapsed, "per_s": count / elapsed, "warm_command_s": warm_s}


def pilotfish_run_cold(options: Options) -> dict[str, Any]:
    """Measures the first ``pilotfish run``, without a master. The timestamp of the task's file shows when it ran."""
    with fresh_home() as shell:
        proof = shell.directory / "proof"
        began = time.time()
        cold_s = shell.pilotfish("run", "--local-cores", str(options.workers), "--", "/usr/bin/touch", str(proof))
        task_ran_s = proof.stat().st_mtime - began
        warm_s = shell.pilotfish("run", "--local-cores", str(options.workers), "--", "/bin/true")
    return {"cold_s": cold_s, "task_ran_s": task_ran_s, "warm_command_s": warm_s}
