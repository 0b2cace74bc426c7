"""Run files for those who submit: load one, and send what it holds."""

from __future__ import annotations

from pilotfish.applications.runfile import RunFile, load
from pilotfish.applications.tasklist import TaskList
from pilotfish.live.client import Client
from pilotfish.live.submission import Submission


def send(client: Client, run: Submission, tasks: TaskList) -> int:
    """Send all tasks of a list; how many there were. Numbers in ``after`` count in the list, so the run must be new."""
    numbers = [client.spec_number(run, *spec) for spec in tasks.specs]
    entries = tasks.take()
    for entry in entries:
        client.submit(run, numbers[entry.spec], entry.payload, _ignore, entry.needs)
    return len(entries)


def _ignore(index: int) -> None:
    """Nobody waits for single tasks here."""


__all__ = ["RunFile", "load", "send"]
