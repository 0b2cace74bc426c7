"""Tests transfers over links that break: contents arrive complete, little is sent twice, and no worker is blamed."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from tests.engines import processes
from tests.network.conftest import SpreadOut
from tests.network.far_pool import FarPool
from tests.network.namespaces import Host, Kind

MB = 1_000_000
SIZE, STEP = 4 * MB, MB // 4
RATE = 3
"""Megabits per second; slow enough that something is left to cut on a busy machine."""
FAST = 100
MOST_CUTS = 6
KINDS: tuple[Kind, ...] = ("silent", "down", "reset", "forgotten")
CUT_S = 0.3


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def moved(host: Host) -> int:
    return max(host.bytes_in(), host.bytes_out())


def cut_again_and_again(host: Host, until: Future[Any]) -> int:
    """Cut the link in every way, each time after some more bytes; then let the rest go fast. Return the number of cuts."""

    def goes_on(mark: int) -> bool:
        processes.wait_until(lambda: until.done() or moved(host) >= mark, "the next bytes move")
        return not until.done()

    cuts = 0
    while cuts < MOST_CUTS and goes_on(moved(host) + STEP):
        host.cut(KINDS[cuts % len(KINDS)])
        wait([until], timeout=CUT_S)
        host.heal()
        cuts += 1
    host.shape(FAST)
    wait([until], timeout=processes.PATIENCE_S)
    return cuts


def test_an_input_arrives_whole_over_a_link_that_is_cut_again_and_again(spread_out: SpreadOut) -> None:
    pool = spread_out("far")
    host = pool.network["far"]
    host.shape(RATE)
    path = pool.write_input("input", SIZE)
    before = host.bytes_in()
    with pool.run() as run:
        future = pool.digest_at(run, "far", path)
        assert cut_again_and_again(host, future) >= len(KINDS)
        assert future.result().text.split()[0] == digest(path)
        assert host.bytes_in() - before < 2 * SIZE, "what was on the way is lost, and no more"
    pool.assert_nobody_was_blamed(run)


def test_an_output_comes_home_whole_over_a_link_that_is_cut_again_and_again(spread_out: SpreadOut, tmp_path: Path) -> None:
    pool = spread_out("far")
    host = pool.network["far"]
    host.shape(RATE)
    made = pool.home_of("far") / "made"
    made.write_bytes(pool.write_input("output", SIZE).read_bytes())
    before = host.bytes_out()
    with pool.run() as run:
        future = run.executable(["cp", str(made), "out.dat"], outputs=["out.dat"], tags={"name": "far"})
        assert cut_again_and_again(host, future) >= len(KINDS)
        (came,) = future.result().save(tmp_path / "results")
        assert digest(came) == digest(made)
        assert host.bytes_out() - before < 2 * SIZE, "what was on the way is lost, and no more"
    pool.assert_nobody_was_blamed(run)


def test_a_transfer_is_resumed_by_the_next_master(spread_out: SpreadOut) -> None:
    pool = spread_out("far")
    host = pool.network["far"]
    host.shape(12)
    path = pool.write_input("input", SIZE)
    before = host.bytes_in()
    with pool.run() as run:
        future = pool.digest_at(run, "far", path)
        processes.wait_until(lambda: host.bytes_in() - before > SIZE // 4, "the transfer is under way")
        pool.kill_master()
        assert not future.done()
        host.shape(100)
        assert future.result(timeout=processes.PATIENCE_S).text.split()[0] == digest(path)
    assert host.bytes_in() - before < 1.2 * SIZE, "it was resumed, not begun anew"
    pool.assert_nobody_was_blamed(run)


def test_heartbeats_pass_while_contents_fill_a_narrow_link(spread_out: SpreadOut) -> None:
    """Both directions are full for many times as long as the lease."""
    # the lease is long enough for an agent that waits for a processor, and the link narrow enough to be full for longer
    pool = spread_out("far", beat_s=1.0, lease_s=5.0)
    host = pool.network["far"]
    host.shape(2.5, queue_s=0.2)
    path = pool.write_input("input", 3 * MB)
    with pool.run() as run:
        future = run.executable(["cp", "in.dat", "out.dat"], inputs={"in.dat": path}, outputs=["out.dat"], tags={"name": "far"})
        while not future.done():
            wait([future], timeout=0.1)
            assert is_connected(pool, "far")
    pool.assert_nobody_was_blamed(run)


def is_connected(pool: FarPool, name: str) -> bool:
    return any(row["worker"] == name and row["connected"] for row in pool.ask("workers"))
