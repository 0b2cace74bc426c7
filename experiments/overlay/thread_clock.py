"""Measures CPU time of a thread, so that other processes on the machine do not count.

Reading the clock may take longer than the measured code. The cost of reading is therefore subtracted, and of short, frequent calls only a
sample is measured.
"""

from __future__ import annotations

from time import thread_time

CALIBRATIONS = 200
ONE_IN = 50


class ThreadClock:
    def __init__(self) -> None:
        self._asking_s = min(-(thread_time() - thread_time()) for _ in range(CALIBRATIONS))
        self._began = 0.0
        self._usual_s = 0.0
        self._seen = 0

    def begin(self) -> None:
        self._began = thread_time()

    def end(self) -> float:
        return max(0.0, thread_time() - self._began - self._asking_s)

    def is_due(self) -> bool:
        """Returns whether to measure this one of many short calls."""
        self._seen += 1
        return self._seen % ONE_IN == 1

    def usual(self, seconds: float | None = None) -> float:
        """Returns the mean seconds of a short call. ``seconds``: a new measurement."""
        if seconds is not None:
            measured = self._seen // ONE_IN
            self._usual_s += (seconds - self._usual_s) / (measured + 1)
        return self._usual_s
