"""Writes a snapshot from a forked child, so that the journal does not grow without bound.

The child has the state as of the fork. The master continues without locks or pauses.
"""

from __future__ import annotations

import os
import stat
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pilotfish.core import state_snapshot
from pilotfish.core.state import State
from pilotfish.model.facts import TurnRecord, encode_record
from pilotfish.store.journal.journal_writer import Journal

MIN_BYTES = 64 * 1024 * 1024
GROWTH = 3
"""Ratio of journal size to snapshot size above which the journal is compacted."""


def _close_sockets() -> None:
    """Close inherited sockets: if the master dies before its child, clients must not wait for an open port."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.close(int(name))


class Compaction:
    def __init__(self, journal: Journal, state: Callable[[], State]) -> None:
        self.overdue = False
        """Write a snapshot at once: the journal is damaged, and only a snapshot repairs it."""
        self._journal = journal
        self._state = state
        self._child = 0
        self._writer: Any = None

    def compact_if_due(self, now: float) -> None:
        if self._child:
            self._collect(os.WNOHANG)
        elif self.overdue or self._journal.size_bytes > max(MIN_BYTES, GROWTH * self._journal.snapshot_bytes):
            self._begin(now)

    def _begin(self, now: float) -> None:
        self._writer = self._journal.begin_snapshot()
        self._child = os.fork()
        if self._child == 0:
            status = 1
            try:
                _close_sockets()
                for fact in state_snapshot.dump(self._state()):
                    self._writer.write([encode_record(TurnRecord(now, [fact]))])
                self._writer.commit()
                status = 0
            except BaseException:  # noqa: BLE001 - the child must end here after any error
                traceback.print_exc()
            finally:
                os._exit(status)

    def _collect(self, options: int) -> None:
        pid, status = os.waitpid(self._child, options)
        if not pid:
            return
        self._child = 0
        if status == 0:
            self._journal.finish_snapshot(self._writer)
            self.overdue = False
        else:
            self._journal.abandon_snapshot(self._writer)

    def end(self) -> None:
        if self._child:
            self._collect(0)
