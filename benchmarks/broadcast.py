"""Measures how long one file takes to many agents behind the narrow link of the master, and how often it crosses that link.

Every agent has its own network namespace on this machine (root is needed), so every byte is really sent.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Contestant, Figure, Goal, Options, Question, compare
from tests.network.far_pool import MASTER, FarPool, far_pool
from tests.network.namespaces import network, what_is_missing

AGENTS = 16
MEGABYTES = 100
MASTER_MBIT, LAN_MBIT = 200.0, 1000.0
PATIENCE_S = 600.0

SECONDS = Figure("seconds", "seconds", 1, higher_is_better=False)
COPIES = Figure("copies", "copies leaving the master", 2, higher_is_better=False)
BUSIEST = Figure("most_copies_of_an_agent", "copies leaving the busiest agent", 2, higher_is_better=False)
ONE, PEERS, ALONE = "one agent", "through each other", "each from the master"


def measure(names: list[str], size: int, together: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="pfb", ignore_cleanup_errors=True) as place, network(MASTER, *names) as hosts:
        hosts[MASTER].shape(MASTER_MBIT)
        for name in names:
            hosts[name].shape(LAN_MBIT)
        with far_pool(Path(place), hosts, beat_s=5.0, lease_s=20.0) as pool:
            pool.start(*names, options=() if together else ("--no-peers",))
            return _broadcast(pool, names, size)


def _broadcast(pool: FarPool, names: list[str], size: int) -> dict[str, Any]:
    """Measures until the last agent has the file and has verified it."""
    path = pool.write_input("input", size)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    began, before = time.monotonic(), pool.master.bytes_out()
    times: dict[str, float] = {}
    with pool.run() as run:
        futures = [run.executable(["true"], inputs={"in.dat": path}, tags={"name": name}) for name in names]
        while len(times) < len(names) and not any(future.done() and future.exception() for future in futures):
            times.update({name: time.monotonic() - began for name in names if name not in times and pool.has(name, digest)})
            time.sleep(0.02)
        copies = (pool.master.bytes_out() - before) / size
        for future in futures:
            future.result(timeout=PATIENCE_S)
    pool.assert_nobody_was_blamed(run)
    most = max(pool.network[name].bytes_out() for name in names) / size
    return {"seconds": max(times.values()), "copies": copies, "most_copies_of_an_agent": most, "count": len(names)}


def ask(agents: int, megabytes: int, options: Options) -> int:
    if missing := what_is_missing():
        print(f"no network can be created here: {missing}")
        return 1 if options.strict else 0
    names, size = [f"node{number}" for number in range(agents)], megabytes * 1_000_000
    question = Question(
        "broadcast",
        f"{megabytes} MB to {agents} agents, master's link {MASTER_MBIT:g} Mbit/s, theirs {LAN_MBIT:g}",
        [SECONDS, COPIES, BUSIEST],
        [
            Goal("the file leaves the master at most twice", COPIES, (), 2.0, PEERS),
            Goal("at least twice as fast as from the master alone, although all agents share this machine", SECONDS, (ALONE,), 2.0, PEERS),
        ],
        [f"the link alone takes {size * 8 / MASTER_MBIT / 1e6:.1f} s for one copy"],
    )
    contestants = [
        Contestant(PEERS, "ours", lambda: measure(names, size, together=True)),
        Contestant(ONE, "floor", lambda: measure(names[:1], size, together=True)),
        Contestant(ALONE, "pool", lambda: measure(names, size, together=False)),
    ]
    return compare(question, contestants, options)


def main(options: Options) -> int:
    return ask(AGENTS, MEGABYTES, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    Options.add_to(parser)
    parser.add_argument("--agents", type=int, default=AGENTS)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES)
    chosen = parser.parse_args()
    sys.exit(ask(chosen.agents, chosen.megabytes, Options.from_namespace(chosen)))
