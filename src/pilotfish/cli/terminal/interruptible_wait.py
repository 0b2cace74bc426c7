"""Lets a command show a status line while it waits, and clean up after Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

from pilotfish.cli.terminal.screen import Screen, StatusLine, clean, cut

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptibleWait:
    """Records the first Ctrl-C or termination signal, so that the caller can clean up. A second signal raises KeyboardInterrupt."""

    def __init__(self, *, quiet: bool) -> None:
        self._screen = Screen.of(sys.stderr)
        self._shown = self._screen.is_terminal and not quiet
        self._line = StatusLine(self._screen)
        self.clear = self._line.clear
        self._before: dict[signal.Signals, Any] = {}
        self._signal = 0

    @property
    def is_over(self) -> bool:
        """Whether a signal ended the wait."""
        return bool(self._signal)

    @property
    def status(self) -> int:
        """The exit status: 128 plus the number of the signal that ended the wait, or 0 if no signal came."""
        return 128 + self._signal if self._signal else 0

    def show(self, text: str) -> None:
        text = cut(clean(text), self._screen.width - 1)
        if self._shown and text != self._line.text:
            self._line.draw(text)

    def __enter__(self) -> InterruptibleWait:
        if threading.current_thread() is threading.main_thread():
            # Signals that this process already ignores stay ignored: nohup and background jobs of a shell rely on this.
            for number in SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._signal:
            raise KeyboardInterrupt
        self._signal = number
