"""Keeps the journal from growing without bound: a forked child writes the state as a snapshot while the master goes on.

The child sees the state as it was at the fork, so that nothing stalls and nothing is locked.
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
"""Compact when the journal is so many times as large as its last snapshot."""


def _close_sockets() -> None:
    """If the master dies before its child, nobody shall wait at its doors: they must close with it."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.close(int(name))


class Compaction:
    def __init__(self, journal: Journal, state: Callable[[], State]) -> None:
        self.overdue = False
        """The journal has holes that only a snapshot mends; however small it is, write one."""
        self._journal = journal
        self._state = state
        self._child = 0
        self._writer: Any = None

    def consider(self, now: float) -> None:
        if self._child:
            self._look(os.WNOHANG)
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
            except BaseException:  # noqa: BLE001 - the edge of the child: it must end here, whatever happens
                traceback.print_exc()
            finally:
                os._exit(status)

    def _look(self, how: int) -> None:
        pid, status = os.waitpid(self._child, how)
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
            self._look(0)
