"""Fetches and decodes the output and the result of a task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pilotfish.applications.executable import Completed, decode_completed
from pilotfish.applications.python_result import decode_value, unpack_result
from pilotfish.client.session import PoolSession

ENDED_BY_ITSELF = ("exit", "signal")


class TaskOutput:
    """Output and result of an ended task of any kind."""

    def __init__(self, row: dict[str, Any], payload: bytes, kept: Path | None = None) -> None:
        self.row = row
        self.stdout = self.stderr = b""
        self.traceback = ""
        self.completed: Completed | None = None
        self.value: object = None
        self.has_value = False
        if not payload:
            return
        if row.get("kind") == "exec":
            self.completed = decode_completed(payload, kept)
            self.stdout, self.stderr = self.completed.stdout, self.completed.stderr
            return
        parts = unpack_result(payload)
        if len(parts) >= 4:
            self.traceback = _traceback(bytes(parts[0]))
            self.stdout, self.stderr = bytes(parts[2]), bytes(parts[3])
        if row["state"] == "done":
            outcome = decode_value(payload)
            self.value, self.has_value = (outcome.value, True) if outcome.error is None else (outcome.error, True)

    def result_line(self) -> str:
        """Returns the value of a Python call, or the last line of the output."""
        return repr(self.value) if self.has_value else last_line(self.stdout)

    def failure_line(self) -> str:
        """Returns the failure with the last line of standard error. Returns an empty text if the task did not fail."""
        failure = self.row.get("failure")
        if not failure:
            return ""
        return failure_with_output(failure_note(failure), self.last_error_line())

    def last_error_line(self) -> str:
        """Returns the last line of standard error, if the program itself ended with an exit status or signal."""
        failure = self.row.get("failure") or {}
        return last_line(self.stderr) if self.completed is not None and failure.get("cause") in ENDED_BY_ITSELF else ""

    def file_names(self) -> list[str]:
        return list(self.completed.files) if self.completed is not None else []


def last_line(data: bytes) -> str:
    """Returns the last line with visible text."""
    lines = data.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def _traceback(meta: bytes) -> str:
    """Returns the traceback of a Python call that raised an exception."""
    try:
        report = json.loads(meta) if meta else {}
    except ValueError:
        return ""
    return str(report.get("traceback") or "")


def fetch_output(master: PoolSession, row: dict[str, Any]) -> TaskOutput:
    if row["state"] not in ("done", "failed"):
        return TaskOutput(row, b"")
    _, payload = master.ask_bytes("payload", task=row["id"], which="result")
    return TaskOutput(row, payload, master.contents)


def failure_note(failure: dict[str, Any]) -> str:
    """Describes a failure in one line. Names the party at fault if it is not the task."""
    message = failure.get("message") or failure.get("cause") or "failed"
    blame = failure.get("blame", "task")
    return message if blame == "task" else f"{message} (blame: {blame})"


def failure_with_output(note: str, wrote: str) -> str:
    """Joins a failure with the program's own message. Shortens the failure, so that the message is visible in a narrow column."""
    first = note.splitlines()[0]
    return f"{first.removeprefix('it ended with ')}: {wrote}" if wrote else first
