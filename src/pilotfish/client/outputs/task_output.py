"""Fetches and decodes the output and the result of a task."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from pilotfish.applications.calls.python_result import call_streams, decode_value, unpack_result
from pilotfish.applications.calls.saved_value import SavedValue, save_value, value_as_text
from pilotfish.applications.executables.executable import Completed, decode_completed
from pilotfish.applications.input_files import StoredFile
from pilotfish.applications.output_streams import OutputStream
from pilotfish.client.session import PoolSession
from pilotfish.client.submission import Reply
from pilotfish.portable.output_marks import MARK_START

ENDED_BY_ITSELF = ("exit", "signal")
HAS_OUTPUT = ("done", "failed")
TASKS_PER_REQUEST = 1000
REQUESTS_AHEAD = 2
ASKED_FOR = "asked for"
"""Reason of a cancellation for which the user gave no reason."""
CUT = MARK_START.decode().lstrip()
NOTHING = {"stdout": OutputStream(), "stderr": OutputStream()}


class TaskOutput:
    """Output and result of an ended task of any kind."""

    def __init__(self, row: dict[str, Any], payload: bytes, kept: Path | None = None) -> None:
        self.row = row
        self.streams: Mapping[str, OutputStream] = NOTHING
        self.traceback = ""
        self.completed: Completed | None = None
        self.value: object = None
        """Value of a Python call. If the value cannot be unpickled here, this is the error."""
        self.has_value = self.readable = False
        """``has_value``: whether the task returned a value. ``readable``: whether the value could be unpickled here."""
        self._payload = payload
        if not payload:
            return
        if row.get("kind") == "exec":
            self.completed = done = decode_completed(payload, kept)
            if done.stdout or done.stderr:
                out = OutputStream(done.stdout, done.stdout_file, done.stdout_dropped)
                self.streams = {"stdout": out, "stderr": OutputStream(done.stderr, done.stderr_file, done.stderr_dropped)}
            return
        parts = unpack_result(payload)
        if len(parts) >= 4:
            self.traceback = _traceback(bytes(parts[0]))
            if parts[2] or parts[3]:
                self.streams = call_streams(parts[0], parts[2], parts[3], kept)
        if row["state"] == "done":
            outcome = decode_value(payload)
            self.has_value, self.readable = True, outcome.error is None
            self.value = outcome.value if self.readable else outcome.error

    @property
    def stdout(self) -> bytes:
        """Standard output. The middle of a long output is replaced by a line that says how many bytes are left out."""
        return self.streams["stdout"].text

    @property
    def stderr(self) -> bytes:
        return self.streams["stderr"].text

    @property
    def is_incomplete(self) -> bool:
        """Whether a part of the output is stored nowhere."""
        return self.streams is not NOTHING and any(stream.dropped for stream in self.streams.values())

    def result_line(self) -> str:
        """Returns the ``repr`` of the value of a Python call, or the last line of standard output."""
        return self.value_text() if self.has_value else last_line(self.stdout)

    def value_text(self) -> str:
        """Returns the ``repr`` of the value of a Python call. If the value cannot be unpickled here, returns the reason in brackets."""
        if self.readable or not isinstance(self.value, BaseException):
            return repr(self.value)
        return f"<not readable here: {self.value.__cause__ or self.value}>"

    def cell(self) -> str:
        """Returns the result for one cell of CSV: the value of a Python call as text, or the last line of standard output."""
        if self.has_value and not self.readable:
            return self.value_text()
        return value_as_text(self.value) if self.has_value else last_line(self.stdout)

    def saved_value(self) -> SavedValue:
        """Returns the name and the content of a file with the value of a Python call."""
        return save_value(self.value, self._payload, self.readable)

    def files_to_save(self) -> dict[str, StoredFile]:
        """Returns all files of ``pilotfish results --save`` by name: the output files, the value of a Python call, and the streams."""
        files = dict(self.completed.files) if self.completed is not None else {}
        if self.has_value:
            name, content = self.saved_value()
            files[name] = StoredFile(content)
        names = self.stream_names()
        return files | {names[name]: stream.as_file() for name, stream in self.streams.items()}

    def stream_names(self) -> dict[str, str]:
        """Returns the names of the files for the streams. A name differs from that of the stream if the task has an output file or
        directory with this name."""
        files = self.file_names()
        return {name: _free_name(name, files) for name in self.streams}

    def failure_line(self) -> str:
        """Returns the failure of the task in one line. If the cause is an exit status or a signal, the line also has the last line of
        standard error. If the task did not fail, returns an empty text."""
        failure = self.row.get("failure")
        if not failure:
            return ""
        return failure_with_output(failure_note(failure), self.last_error_line())

    def last_error_line(self) -> str:
        """Returns the last line of standard error if the cause of the failure is an exit status or a signal. Otherwise returns an empty
        text."""
        failure = self.row.get("failure") or {}
        return last_line(self.stderr) if self.completed is not None and failure.get("cause") in ENDED_BY_ITSELF else ""

    def file_names(self) -> list[str]:
        return list(self.completed.files) if self.completed is not None else []


def _free_name(name: str, files: Iterable[str]) -> str:
    taken = {part for file in files for part in (file, file.partition("/")[0])}
    while name in taken:
        name += ".stream"
    return name


def last_line(data: bytes) -> str:
    """Returns the last line with visible text, or an empty text. If the beginning of this line was left out of the output, the text begins
    with the line that says so."""
    lines = data.decode(errors="replace").strip().splitlines()
    is_cut = len(lines) > 1 and lines[-2].startswith(CUT) and lines[-2].endswith("]")
    return " ".join(line.strip() for line in lines[-2 if is_cut else -1 :])


def _traceback(meta: bytes) -> str:
    """Returns the traceback of a Python call that raised an exception. Returns an empty text if there is no traceback."""
    try:
        report = json.loads(meta) if meta else {}
    except ValueError:
        return ""
    return str(report.get("traceback") or "")


def fetch_output(master: PoolSession, row: dict[str, Any]) -> TaskOutput:
    return next(fetch_outputs(master, [row]))


class _Batch:
    """Outputs that one request asks for. ``rows``: consecutive rows of tasks. Some of these tasks possibly have no output."""

    def __init__(self, master: PoolSession, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self._master = master
        self._tasks = [row["id"] for row in rows if row["state"] in HAS_OUTPUT]
        self._request = master.request("outputs", tasks=self._tasks) if self._tasks else None

    def payloads(self) -> Iterator[bytes]:
        """Yields the outputs. If the answer contains only the first of them, requests the others."""
        while self._request is not None:
            outputs = _split(self._master.wait(self._request))
            self._tasks = self._tasks[len(outputs) :]
            self._request = self._master.request("outputs", tasks=self._tasks) if self._tasks else None
            yield from outputs


def fetch_outputs(master: PoolSession, rows: Iterable[dict[str, Any]]) -> Iterator[TaskOutput]:
    """Yields a TaskOutput for each task in ``rows``. One request asks the master for the outputs of up to TASKS_PER_REQUEST tasks. Each
    request is sent before the answer to the previous request is used."""
    remaining = iter(rows)
    requested: deque[_Batch] = deque()
    while True:
        while len(requested) < REQUESTS_AHEAD and (batch := list(islice(remaining, TASKS_PER_REQUEST))):
            requested.append(_Batch(master, batch))
        if not requested:
            return
        arrived = requested.popleft()
        payloads = arrived.payloads()
        for row in arrived.rows:
            yield TaskOutput(row, next(payloads) if row["state"] in HAS_OUTPUT else b"", master.contents)


def fetch_inputs(master: PoolSession, tasks: list[str]) -> Iterator[bytes]:
    """Yields the input payload of each task."""
    while tasks:
        inputs = _split(master.ask_bytes("outputs", tasks=tasks[:TASKS_PER_REQUEST], which="input"))
        tasks = tasks[len(inputs) :]
        yield from inputs


def _split(reply: Reply) -> list[bytes]:
    """Splits the body of an answer that has the payloads of several tasks."""
    lengths = reply.data["lengths"]
    return [bytes(reply.body[end - length : end]) for length, end in zip(lengths, accumulate(lengths), strict=True)]


def failure_note(failure: dict[str, Any]) -> str:
    """Describes a failure or a cancellation in one line. For a failure, adds the blame if the blame is not the task."""
    if failure.get("cause") == "cancelled":
        reason = failure.get("message")
        return "cancelled" if reason in (None, "", ASKED_FOR) else f"cancelled: {reason}"
    message = failure.get("message") or failure.get("cause") or "failed"
    blame = failure.get("blame", "task")
    return message if blame == "task" else f"{message} (blame: {blame})"


def failure_with_output(note: str, wrote: str) -> str:
    """Returns one line with the failure ``note`` and the message ``wrote`` of the program itself. Shortens ``note``, so that even a narrow
    column shows ``wrote``."""
    first = note.splitlines()[0]
    return f"{first.removeprefix('it ended with ')}: {wrote}" if wrote else first
