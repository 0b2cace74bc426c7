"""Measures what agent connections cost the master: to connect, to hold, and to answer heartbeats."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from benchmarks.contestants.processes import Process, read_process
from benchmarks.harness import Options, describe_machine, layout, write_json
from benchmarks.light_agents import raise_file_limit
from benchmarks.own_pool import LightAgents, OwnPool, own_pool

AGENTS = 2000
WATCHED_S = 30.0


def usage_of(pid: int) -> Process:
    process = read_process(pid)
    if process is None:
        raise RuntimeError("the master has ended")
    return process


def measure(pool: OwnPool, count: int, watched_s: float) -> dict[str, Any]:
    """Lets ``count`` agents join, then measures the master while it holds the connections."""
    start_s = pool.start(workers=0)
    pid = pool.pid
    before = usage_of(pid)
    agents = LightAgents(pool.agent_credentials(), count, cores=1.0)
    try:
        joined = usage_of(pid)
        agents.report()
        beginning = usage_of(pid)
        began = time.monotonic()
        time.sleep(watched_s)
        elapsed = time.monotonic() - began
        end = usage_of(pid)
        report = agents.report()
        held = agents.joined["joined"]
        if not held:
            raise RuntimeError(f"no agent could join: {agents.joined['problems']}")
        own = agents.usage()
        return {
            "asked_for": count,
            "joined": held,
            "still_connected": report["connected"],
            "lost": report["lost"],
            "problems": report["problems"],
            "master_start_s": start_s,
            "join_all_s": agents.joined["seconds"],
            "join_one_p50_s": agents.joined["join_s"].get("p50"),
            "join_cpu_ms_each": (joined.cpu_s - before.cpu_s) / held * 1000,
            "rss_kib_each": (end.rss_bytes - before.rss_bytes) / held / 1024,
            "rss_mib_before": before.rss_bytes / 2**20,
            "rss_mib_with_all": end.rss_bytes / 2**20,
            "watched_s": elapsed,
            "beats_answered": report["beats"],
            "cpu_percent_of_a_core": (end.cpu_s - beginning.cpu_s) / elapsed * 100,
            "cpu_us_per_beat": (end.cpu_s - beginning.cpu_s) / max(1, report["beats"]) * 1e6,
            "pulse_p50_ms": report["pulse_ms"].get("p50"),
            "pulse_p99_ms": report["pulse_ms"].get("p99"),
            "agents_process_rss_mib": own.rss_bytes / 2**20 if own else None,
        }
    finally:
        agents.stop()


def run(count: int, watched_s: float, options: Options) -> int:
    raise_file_limit()
    with own_pool() as pool:
        result = measure(pool, count, watched_s)
    rows = [["agents' connections to one master, TLS", ""]]
    rows += [[name, f"{value:,.2f}" if isinstance(value, float) else str(value)] for name, value in result.items()]
    print(layout(rows))
    write_json(options.out, "connections", {"machine": describe_machine(), "result": result})
    return 1 if options.strict and result["still_connected"] < count else 0


def main(options: Options) -> int:
    return run(AGENTS, WATCHED_S, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    Options.add_to(parser)
    parser.add_argument("--agents", type=int, default=AGENTS)
    parser.add_argument("--watch", type=float, default=WATCHED_S, metavar="SECONDS", help="seconds of measurement after all have joined")
    chosen = parser.parse_args()
    sys.exit(run(chosen.agents, chosen.watch, Options.from_namespace(chosen)))
