"""Starts a pilot as a process of this machine: its command line, the id of its job, and the meaning of its exit status.

There is no queue to poll: ``master/sites/local_controller.py`` starts the process and waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pilotfish.model.site import PilotSize


@dataclass(frozen=True)
class LocalBackend:
    """Start options of all agents on this machine. The key is in the credentials file, never in the arguments."""

    python: str
    share: str
    cache: str
    home: str
    """Directory where the master keeps the outputs of tasks."""
    poll_s: float = 0.0
    cache_size: int = 0

    def command(self, pilot: str, size: PilotSize, bundle: str, credentials: str, workdir: str) -> list[str]:
        words = [self.python, bundle, "--credentials", credentials, "--worker", pilot, "--cores", f"{size.cores:g}"]
        words += ["--workdir", workdir, "--share", self.share, "--cache", self.cache, "--home", self.home]
        words += ["--cache-bytes", str(self.cache_size)] if self.cache_size else []
        return [*words, "--poll", f"{self.poll_s:g}"] if self.poll_s else words


def job_id(pid: int, started: str) -> str:
    """Process id and start time, because another process may get the same id later."""
    return f"{pid}:{started}"


def read_job(job: str) -> tuple[int, str]:
    pid, _, started = job.partition(":")
    return int(pid) if started else 0, started


def describe_exit(code: int, last_line: str) -> str:
    """How a process ended. ``code``: its exit status, or the number of the signal that killed it, negated."""
    if code == 0:
        return "ended"
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
    return f"{how}: {last_line}" if last_line else how
