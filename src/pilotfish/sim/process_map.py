"""Applies a function to many inputs in several child processes. The child processes end when this process ends, even if this process is
killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from pilotfish.errors import PilotfishError
from pilotfish.portable.processes import signal_on_parent_death

Input = TypeVar("Input")
Result = TypeVar("Result")


def in_parallel(function: Callable[[Input], Result], inputs: Sequence[Input], cores: int = 0) -> Iterator[Result]:
    """Applies a function to each input and yields each result as soon as it is ready. The child processes are forked, so they inherit
    global data."""
    processes = min(cores or len(os.sched_getaffinity(0)), len(inputs))
    if processes <= 1:
        yield from map(function, inputs)
        return
    before = multiprocessing.active_children()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), signal_on_parent_death, (signal.SIGKILL, os.getpid())) as pool:
        try:
            # Ctrl-C reaches all processes of a terminal. Child processes start with SIGINT blocked, and this process kills them.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                futures = [pool.submit(function, item) for item in inputs]
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for done in as_completed(futures):
                yield done.result()
        except BrokenProcessPool:
            raise PilotfishError("a process was killed, perhaps because there was no memory left", "ask for less at a time") from None
        finally:
            # The caller needs no results of the remaining processes.
            for child in multiprocessing.active_children():
                if child not in before:
                    child.kill()
