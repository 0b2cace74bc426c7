"""Draws progress lines.

On a terminal, the line is redrawn in place. For other outputs, such as a log file, a new line is written at intervals. The clock is a
parameter, so that tests control the time.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from pilotfish.cli.terminal.screen import Screen, StatusLine, clean, cut, duration, rate, width_of
from pilotfish.model.quantities import show_bytes

REDRAW_S = 0.1
PLAIN_LINE_S = 30.0
RATE_WINDOW_S = 20.0
MIN_SAMPLE_S = 0.5
BAR_CELLS = 24
READING_S = 0.5
"""If hashing an input takes longer than this many seconds, its progress is shown."""


class RateEstimate:
    """Estimates the work per second. It uses only the last seconds, so that the estimate follows the current rate."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, float]] = deque([(clock(), 0.0)])

    def begin(self, elapsed_s: float, done: float) -> None:
        """Record the work before the start of this command: ``done`` work in ``elapsed_s`` seconds. So a rate is known at once."""
        now = self._clock()
        self._samples = deque([(now - elapsed_s, 0.0), (now, done)])

    def note(self, done: float) -> None:
        now = self._clock()
        if now - self._samples[-1][0] >= MIN_SAMPLE_S or len(self._samples) == 1:
            self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[1][0] > RATE_WINDOW_S:
            self._samples.popleft()

    def per_second(self, done: float) -> float:
        since, before = self._samples[0]
        elapsed = self._clock() - since
        return (done - before) / elapsed if elapsed > 0 else 0.0


class RunProgress:
    """The progress line of one run. ``done``: number of ended tasks, including failed tasks. ``failed``: number of failed tasks."""

    def __init__(self, screen: Screen, clock: Callable[[], float], total: int = 0) -> None:
        self.total = total
        self.done = 0
        self.failed = 0
        self.running = 0
        self.note = ""
        self.work_total = 0.0
        self.work_done = 0.0
        self._screen = screen
        self._clock = clock
        self._speed = RateEstimate(clock)
        self._drawn_at = -1e9
        self._line = StatusLine(screen)
        self.clear = self._line.clear

    def begin(self, elapsed_s: float, done: int, failed: int) -> None:
        """Record the elapsed time of the run and the numbers of ended and failed tasks."""
        self.done, self.failed = done, failed
        if elapsed_s > 0 and done:
            self._speed.begin(elapsed_s, done)

    def ended(self, failed: bool, cost: float | None = None) -> None:
        """Count one ended task. ``cost``: cost of the task; None if the costs are unknown."""
        self.done += 1
        self.failed += failed
        if cost is not None:
            self.work_done += cost
        self._speed.note(self._amount()[0])

    def _amount(self) -> tuple[float, float]:
        return (self.work_done, self.work_total) if self.work_total else (float(self.done), float(self.total))

    def remaining_s(self) -> float | None:
        """Return the estimated seconds until the end of the run, or None if no task has ended yet."""
        done, total = self._amount()
        per_second = self._speed.per_second(done)
        if self.done < 1 or per_second <= 0 or not total:
            return None
        return max(0.0, total - done) / per_second

    def text(self) -> str:
        parts = [f"{self.done:,}/{self.total:,}"]
        if self.total:
            parts.append(f"{100 * self.done // self.total} %")
        if self.done and not self.work_total:
            parts.append(rate(self._speed.per_second(self.done)))
        if self.done < self.total:
            remaining = self.remaining_s()
            parts.append(f"{duration(max(1, round(remaining)))} left" if remaining is not None else "waiting for the first result")
        if self.running:
            parts.append(f"{self.running:,} running")
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.note:
            parts.append(self.note)
        return "  ".join(parts)

    def draw(self) -> None:
        """Draw the line, but at most once per interval."""
        now = self._clock()
        if now - self._drawn_at < (REDRAW_S if self._screen.is_terminal else PLAIN_LINE_S):
            return
        first = self._drawn_at < 0
        self._drawn_at = now
        if not self._screen.is_terminal:
            if not first:
                self._screen.line(self.text())
                self._screen.stream.flush()
            return
        text = self.text()
        bar = f"{self._bar()}  " if BAR_CELLS + 2 + width_of(text) < self._screen.width else ""
        failed = f"{self.failed:,} failed"
        shown = cut(text, self._screen.width - 1).replace(failed, self._screen.paint(failed, "red"))
        self._line.draw(bar + shown)

    def _bar(self) -> str:
        full, empty = ("━", "─") if self._screen.is_utf8 else ("#", "-")
        filled = BAR_CELLS * self.done // self.total if self.total else 0
        return self._screen.paint(full * filled, "green") + self._screen.paint(empty * (BAR_CELLS - filled), "dim")


class DelayedStatusLine(StatusLine):
    """A status line for work that can take long. It appears only on a terminal, and only ``delay_s`` seconds after the first call of
    ``show``."""

    def __init__(self, screen: Screen, clock: Callable[[], float], delay_s: float = REDRAW_S) -> None:
        super().__init__(screen)
        self._clock = clock
        self._delay_s = delay_s
        self._draw_at = 0.0

    def show(self, text: Callable[[], str]) -> None:
        """Draw the text. Do nothing before the delay has passed, or if the line was drawn less than ``REDRAW_S`` seconds ago."""
        if not self._screen.is_terminal:
            return
        now = self._clock()
        if not self._draw_at:
            self._draw_at = now + self._delay_s
        elif now >= self._draw_at:
            self._draw_at = now + REDRAW_S
            self.draw(cut(text(), self._screen.width - 1))


def show_hashing(line: DelayedStatusLine, path: str, done: int, size: int) -> None:
    """Show how much of a large input has been hashed. Inputs are hashed before submission."""
    line.show(lambda: f"reading {clean(os.path.basename(path))}: {100 * done // max(1, size)} %, {show_bytes(done)} of {show_bytes(size)}")
    if done >= size:
        line.clear()
