"""Shows the output of a single task while the task runs."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Any

from pilotfish.cli.commands.output_writer import STREAMS, OutputWriter
from pilotfish.cli.terminal.screen import Screen
from pilotfish.client.outputs.task_output import TaskOutput
from pilotfish.client.session import PoolSession
from pilotfish.errors import PilotfishError
from pilotfish.portable.output_marks import CAP, mark

LIVE_AFTER_S = 0.5
"""The worker is asked for output only when a task has run for this many seconds. The output of a shorter task is shown after the end of the
task."""
LIVE_POLL_S = 0.25


class LiveOutput:
    """Copies the output of a single task to the terminal. While the task runs, copies the new output at intervals. After the end of the
    task, copies the rest. If the task has a second attempt, some output can appear twice."""

    def __init__(self, master: PoolSession, task: str) -> None:
        self._master = master
        self._task = task
        self._attempt: tuple[int, Any] | None = None
        """The number and the worker of the attempt whose output is being copied."""
        self._offsets = dict.fromkeys(STREAMS, 0)
        self._writers = {name: OutputWriter(getattr(sys, name)) for name in STREAMS}
        self._poll_at = time.monotonic() + LIVE_AFTER_S

    def poll(self) -> None:
        """Copies the output that the task has written since the last copy. Does nothing if the last copy is less than ``LIVE_POLL_S``
        seconds old. Call it only while the task runs."""
        if time.monotonic() < self._poll_at:
            return
        with suppress(PilotfishError):  # ``finish`` copies the rest
            if self._attempt is None:
                self._begin(self._master.ask("task", task=self._task))
            found = {name: self._master.peek(self._task, STREAMS[name], self._offsets[name]) for name in STREAMS}
            row = self._master.ask("task", task=self._task)
            if self._attempt_of(row) == self._attempt:
                for name, (start, data) in found.items():
                    self._write(name, start, data)
            else:  # a new attempt began, and the bytes can be from either attempt
                self._begin(row)
        self._poll_at = time.monotonic() + LIVE_POLL_S

    def finish(self, output: TaskOutput) -> None:
        """Copies the output of the ended task that was not copied before."""
        if self._attempt is not None and self._attempt_of(output.row) != self._attempt:
            self._begin(output.row)
        for name, writer in self._writers.items():
            writer.write_all(output.streams[name].pieces_from(self._offsets[name]))
            writer.close()

    def _begin(self, row: dict[str, Any]) -> None:
        if self._attempt is not None and any(self._offsets.values()):
            text = f"Task {self._task} runs again, as attempt {row['attempt']}; its output begins again."
            Screen.of(sys.stderr).line(text)
        self._attempt = self._attempt_of(row)
        self._offsets = dict.fromkeys(STREAMS, 0)

    @staticmethod
    def _attempt_of(row: dict[str, Any]) -> tuple[int, Any]:
        return row["attempt"], row["worker"]

    def _write(self, name: str, start: int, data: bytes) -> None:
        if not data:
            return
        offset, writer = self._offsets[name], self._writers[name]
        if start > offset:
            writer.write(mark(start - offset, start + len(data), CAP))
        writer.write(data)
        self._offsets[name] = start + len(data)
