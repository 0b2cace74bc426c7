"""Functions that contestants call. They have their own module, so that every pickler sends them by name."""

from __future__ import annotations

import subprocess
import time
from typing import Any

SLEEP_S = 0.001


def nothing(number: int) -> int:
    """Returns its argument, as a proof that the call was made."""
    return number


def nap(number: int) -> int:
    time.sleep(SLEEP_S)
    return number


def echo(data: Any) -> Any:
    return data


def run_true(number: int) -> tuple[int, bytes, bytes]:
    """Runs /bin/true and captures its output, as a user without a workflow system would."""
    done = subprocess.run(["/bin/true"], capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr
