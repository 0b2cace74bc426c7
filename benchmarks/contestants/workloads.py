"""Functions that contestants call. They have their own module, so that every pickler sends them by name."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from typing import Any

SLEEP_S = 0.001


def nothing(number: int) -> int:
    """Returns its argument, as a proof that the call was made."""
    return number


def nap(number: int) -> int:
    time.sleep(SLEEP_S)
    return number


def nap_at(point: Iterable[float], call_s: float) -> float:
    """Sleeps and returns the sum of squares, which libraries can minimise."""
    time.sleep(call_s)
    return sum(x * x for x in point)


def begin_and_hold(seconds: float) -> tuple[int, float]:
    """Returns the process and the time at which the call began. Keeps its worker busy, so that each call needs another worker."""
    began = time.time()
    time.sleep(seconds)
    return os.getpid(), began


def echo(data: Any) -> Any:
    return data


def run_true(number: int) -> tuple[int, bytes, bytes]:
    """Runs /bin/true and captures its output, as a user without a workflow system would."""
    done = subprocess.run(["/bin/true"], capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr
