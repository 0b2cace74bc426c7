"""Sends a large file over a link that is cut repeatedly; measures bytes, time and memory.

Master and agent each have a network namespace on this machine (root is needed). The link goes down, drops all packets, and resets all
connections, in turn. The comparison with a small file shows whether memory grows with the size.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.harness import Options, describe_machine, layout, write_json
from tests.network.far_pool import MASTER, FarPool, far_pool
from tests.network.namespaces import Host, Kind, network, what_is_missing

GIB, MIB = 2**30, 2**20
SMALL_GIB, LARGE_GIB = 1, 10
MBIT = 2000.0
CALM_S, CUT_S = 3.0, 0.7
PATIENCE_S = 1800.0
KINDS: tuple[Kind, ...] = ("down", "silent", "reset")
ROOM = 3.2
"""Disk space needed, as a multiple of the file: at the master, in the cache and, for a task of root, a copy, because root could change
the cache.
"""


def write_large(path: Path, size: int) -> str:
    """Writes incompressible bytes without equal blocks, faster than a random generator; returns their digest."""
    block, known = bytearray(hashlib.shake_128(b"a large file").digest(MIB)), hashlib.sha256()
    with path.open("wb") as file:
        for number in range(size // MIB):
            block[:8] = number.to_bytes(8, "big")
            file.write(block)
            known.update(block)
    return known.hexdigest()


def peak_mib(pid: int) -> float:
    found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def cut_until(host: Host, there: Callable[[], bool]) -> int:
    """Cuts the link repeatedly until the condition is true; returns the number of cuts."""
    for count, kind in enumerate(cycle(KINDS)):
        if becomes_true(there, CALM_S):
            return count
        host.cut(kind)
        time.sleep(CUT_S)
        host.heal()
    raise AssertionError


def becomes_true(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def send(pool: FarPool, gib: int) -> dict[str, Any]:
    host, path, size = pool.network["far"], pool.hidden / "input", gib * GIB
    expected = write_large(path, size)
    before = host.bytes_in()
    with pool.run() as run:
        future = pool.digest_at(run, "far", path)
        began = time.monotonic()
        cuts = cut_until(host, lambda: pool.has("far", expected))
        seconds = time.monotonic() - began
        sent = host.bytes_in() - before
        found = future.result(timeout=PATIENCE_S).text.split()[0]
    pool.assert_nobody_was_blamed(run)
    return {
        "size_gib": gib,
        "intact": found == expected,
        "seconds": seconds,
        "mb_per_s": size / seconds / 1e6,
        "cuts": cuts,
        "bytes_on_the_wire_per_byte": sent / size,
        "master_peak_mib": peak_mib(pool.master_process()),
        "agent_peak_mib": peak_mib(pool.process_of("far")),
    }


def measure(gib: int, place: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="pfb", dir=place, ignore_cleanup_errors=True) as directory, network(MASTER, "far") as hosts:
        if shutil.disk_usage(directory).free < ROOM * gib * GIB:
            raise SystemExit(f"{place} has no space for {ROOM} times {gib} GiB: choose another directory with --place")
        hosts["far"].shape(MBIT)
        with far_pool(Path(directory), hosts, beat_s=5.0, lease_s=20.0) as pool:
            pool.start("far")
            return send(pool, gib)


def goals(results: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    small, large = results
    return [
        ("all files arrive intact", all(result["intact"] for result in results)),
        ("at most 1.1 bytes are sent per byte of the file", large["bytes_on_the_wire_per_byte"] <= 1.1),
        ("peak memory of the master grows by at most 16 MiB", large["master_peak_mib"] - small["master_peak_mib"] <= 16),
        ("peak memory of the agent grows by at most 16 MiB", large["agent_peak_mib"] - small["agent_peak_mib"] <= 16),
    ]


def show(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def ask(sizes: tuple[int, int], place: Path, options: Options) -> int:
    if missing := what_is_missing():
        print(f"no network can be created here: {missing}")
        return 1 if options.strict else 0
    results = [measure(gib, place) for gib in sizes]
    title = f"a link of {MBIT:g} Mbit/s that is cut for {CUT_S:g} s after every {CALM_S:g} s"
    print(layout([[title, "", ""], *([name, *(show(result[name]) for result in results)] for name in results[0])]))
    verdicts = goals(results)
    for text, met in verdicts:
        print(f"goal {'met' if met else 'MISSED'}: {text}")
    write_json(options.out, "cut_link", {"machine": describe_machine(), "results": results, "goals": verdicts})
    return 1 if options.strict and not all(met for _, met in verdicts) else 0


def main(options: Options) -> int:
    return ask((SMALL_GIB, LARGE_GIB), Path(tempfile.gettempdir()), options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    Options.add_to(parser)
    parser.add_argument("--small", type=int, default=SMALL_GIB, metavar="GIB")
    parser.add_argument("--large", type=int, default=LARGE_GIB, metavar="GIB")
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()), help="directory for the files")
    chosen = parser.parse_args()
    sys.exit(ask((chosen.small, chosen.large), chosen.place, Options.from_namespace(chosen)))
