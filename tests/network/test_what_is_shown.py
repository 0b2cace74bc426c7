"""Tests what users see while files are transferred over a slow link."""

from __future__ import annotations

import re
from typing import Any

from tests.engines import processes
from tests.network.conftest import SpreadOut

MB = 1_000_000
COMING = re.compile(r"its input input \([\d.]+ MiB\) is in transfer to worker far: \d+ %, [\d.]+ (K|M)iB/s, about \d+ s")
GOING = re.compile(r"1 file that tasks at worker far made is in transfer to the master: [\d.]+ MiB, \d+ %.*")


def test_an_input_and_an_output_under_way_are_told_with_how_far_and_how_long(spread_out: SpreadOut) -> None:
    pool = spread_out("far")
    host = pool.network["far"]
    host.shape(12)
    path = pool.write_input("input", 12 * MB)

    def reason() -> str:
        return str(pool.ask("why", task="1.0")["reasons"][0]["text"])

    def moving() -> Any:
        return pool.ask("run", run=1)["moving"] or {}

    with pool.run() as run:
        future = run.executable(["cp", "input", "out.dat"], inputs={"input": path}, outputs=["out.dat"], tags={"name": "far"})
        processes.wait_until(
            lambda: bool(COMING.fullmatch(reason())) and moving().get("bytes") == 12 * MB, "the input is reported as in transfer"
        )
        data = pool.ask("data", run=1)
        assert (data["waiting_tasks"], data["contents"][0]["moving"][0]["to"]) == (1, "worker")
        processes.wait_until(
            lambda: bool(GOING.fullmatch(reason())) and moving().get("contents") == 1, "the output is reported as in transfer"
        )
        assert future.result().files["out.dat"].size == 12 * MB
    processes.wait_until(lambda: pool.ask("data")["got"]["master"] == {"contents": 1, "bytes": 12 * MB}, "where it came from is told")
    processes.wait_until(lambda: pool.ask("status")["moving"] is None, "nothing is under way any more")
    (row,) = pool.ask("data", run=run.id)["contents"]
    assert (row["home"], row["workers"]) == (True, ["far"]), "what was made is what was sent, byte by byte"
