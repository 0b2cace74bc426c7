"""The functions that contestants call. They live in a module of their own, so that every pickler sends them by name."""

from __future__ import annotations

import subprocess
import time
from typing import Any

SLEEP_S = 0.001


def nothing(number: int) -> int:
    """The smallest call that still proves, by its value, that it was made."""
    return number


def nap(number: int) -> int:
    time.sleep(SLEEP_S)
    return number


def echo(data: Any) -> Any:
    return data


def run_true(number: int) -> tuple[int, bytes, bytes]:
    """Start /bin/true, wait for it, keep what it said: what a person without a workflow system would write."""
    done = subprocess.run(["/bin/true"], capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr
