"""Measures executables per second: /bin/true with captured output."""

from __future__ import annotations

import sys

from benchmarks.commands import measured, pilotfish_run_true, xargs_true
from benchmarks.harness import Contestant, Figure, Goal, Options, Question, compare
from benchmarks.peers import engine_contestants

RATE = Figure("per_s", "tasks/s")
XARGS = "xargs -P -n1"
OURS = "pilotfish run"
QUESTION = Question(
    name="executables_per_second",
    title="/bin/true, output captured",
    figures=[RATE],
    goals=[
        Goal("at least 0.8 times xargs", RATE, (XARGS,), 0.8, ours=OURS),
        Goal("no slower than the best distributed peer", RATE, ("peer",), 1.0, ours=OURS),
    ],
    notes=[
        "Python contestants call subprocess.run in a worker; HyperQueue and pilotfish run start programs themselves",
        "pilotfish run: the master is already running; the start of the command is counted",
    ],
)


def main(options: Options) -> int:
    contestants = [
        Contestant(XARGS, "floor", measured(lambda: xargs_true(options))),
        Contestant(OURS, "ours", measured(lambda: pilotfish_run_true(options))),
        *engine_contestants("executables", options),
    ]
    return compare(QUESTION, contestants, options)


if __name__ == "__main__":
    sys.exit(main(Options.from_command_line(__doc__)))
