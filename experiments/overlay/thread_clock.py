"""How long real code takes on this machine, in the time of its thread, so that others on the machine do not count.

Asking for that time may itself take longer than what is measured: it is taken off; and of what is short and happens often, only some are
measured.
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
        """Whether this one of the many short ones is to be measured."""
        self._seen += 1
        return self._seen % ONE_IN == 1

    def usual(self, seconds: float | None = None) -> float:
        """What a short one takes on average; ``seconds``: one was measured."""
        if seconds is not None:
            measured = self._seen // ONE_IN
            self._usual_s += (seconds - self._usual_s) / (measured + 1)
        return self._usual_s
