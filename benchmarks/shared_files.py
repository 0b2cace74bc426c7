"""Measures the gain of a plan if files are shared and links are narrow, and compares the makespan with the simulator's.

A small version of the experiment of pilotfish.sim.scenarios.apst_sweep with real agents and files: three sites, each with its own network
behind its own link (root is needed) and a disk that its agents share. Tasks sleep, so one machine has enough cores. The simulation has the
same numbers, and the overhead per task (LAUNCH_S) of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Contestant, Figure, Goal, Options, Question, compare
from pilotfish import plugins
from pilotfish.applications.input_files import digests
from pilotfish.core.learning.forecasts import Forecasts
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.sim.light_world import LightWorld
from pilotfish.sim.scenarios.apst_sweep import FAR, FILES, MB, MIDDLE, NEAR, SCENARIOS, apst_sites, sweep
from pilotfish.sim.workload import SimulatedSite, Workload
from pilotfish.store.journal.journal_writer import Journal
from pilotfish.store.state_storage import replay
from tests.engines.processes import wait_until
from tests.network.far_pool import MASTER, FarPool, far_pool
from tests.network.namespaces import network, what_is_missing

HOSTS = (8, 2, 4)
TASKS = 300
UNIT_S = 0.4 / 3
"""Seconds per unit of cost: 300 tasks on 14 hosts in 32 s, scaled from 1,200 on 56 hosts in 5.5 minutes. Files and links are scaled too."""
FILES_SCALE = 0.25
BANDWIDTH = 28 * MB
WRAPPING = 1.06
"""Bytes on the wire per byte of a file, with Ethernet, TCP and TLS."""
LAUNCH_S = 0.03
"""Seconds of overhead per task, on two cores that run everything else as well."""
WALLTIME_S = 3600.0

WORKQUEUE, PLAN, AUTO = "workqueue", "xsufferage", "auto"
PAPER = 1.62
SECONDS = Figure("seconds", "seconds", 1, higher_is_better=False)
REHEARSED = Figure("rehearsed_s", "simulated", 1, higher_is_better=False)
WRONG = Figure("wrong", "error", 2, higher_is_better=False)
LINKS = [Figure(f"{name}_link", f"link {name}: forecast/true", 2) for name in (NEAR, MIDDLE, FAR)]

PYTHON = """#!/bin/sh
[ "$1" != -c ] || exec {python} "$@"
exec {enter} unshare --mount sh -c 'mount -t tmpfs none "{hidden}" && exec {python} "$@"' sh "$@"
"""


def work_of(seed: int) -> Workload:
    work = sweep(seed, UNIT_S, TASKS)
    return replace(work, files={name: int(FILES_SCALE * size) for name, size in work.files.items()})


def sites_of(scenario: str) -> list[SimulatedSite]:
    return [replace(place, launch_s=LAUNCH_S, walltime_s=WALLTIME_S) for place in apst_sites(scenario, BANDWIDTH, HOSTS)]


def rehearse(scenario: str, policy: str, seed: int) -> float:
    return LightWorld(sites_of(scenario), work_of(seed), plugins.load("policies", policy)(), seed).run().makespan_s


# --- measurement ----------------------------------------------------------------------------------------------------------------------


def measure(scenario: str, policy: str, seeds: list[int]) -> dict[str, Any]:
    """Measures one round; each round has another seed."""
    seed = seeds.pop(0)
    sites = sites_of(scenario)
    with (
        tempfile.TemporaryDirectory(prefix="pfb", ignore_cleanup_errors=True) as place,
        network(MASTER, *(one.name for one in sites)) as hosts,
    ):
        for site in sites:
            hosts[site.name].shape(site.bandwidth * WRAPPING * 8 / 1e6)
        with far_pool(Path(place), hosts, policy=policy, beat_s=5.0, lease_s=60.0) as pool:
            work = work_of(seed)
            inputs = {name: pool.write_input(f"input{number}", work.files[name]) for number, name in enumerate(FILES)}
            open_sites(pool, sites, inputs)
            seconds = run(pool, work, inputs)
            links = links_of(pool, sites)
    rehearsed = rehearse(scenario, policy, seed)
    return {"seconds": seconds, "rehearsed_s": rehearsed, "wrong": abs(rehearsed / seconds - 1), **links}


def open_sites(pool: FarPool, sites: Sequence[SimulatedSite], inputs: dict[str, Path]) -> None:
    """Starts the pilots of all sites, puts some files into their caches, and waits until all agents have joined."""
    for site in sites:
        disk = ContentCache(str(_folder(pool, site) / "cache"), 1 << 40)
        for name in site.files:
            disk.adopt_copy(_digest(inputs[name]), inputs[name].stat().st_size, str(inputs[name]))
    path = pool.place / "home" / "sites.toml"
    path.write_text("\n".join(_describe(pool, site) for site in sites))
    path.chmod(0o600)
    pool.ask("sites_reread")
    for site in sites:
        pool.ask("pilots_add", site=site.name, pilots=site.hosts)
    wait_until(lambda: len(pool.present()) == sum(site.hosts for site in sites), "the agents join")


def _describe(pool: FarPool, site: SimulatedSite) -> str:
    """Returns the table of a site. Its pilots are processes in its network, each with its own temporary directory."""
    folder = _folder(pool, site)
    python = folder / "python"
    enter = " ".join(pool.enter(site.name))
    python.write_text(PYTHON.format(python=sys.executable, enter=enter, hidden=pool.hidden))
    python.chmod(0o700)
    fields = {"backend": "ssh", "folder": str(folder), "cache": str(folder / "cache"), "python": str(python), "cores": 1, "peers": False}
    fields |= {"max_pilots": site.hosts, "max_queued": site.hosts, "walltime": WALLTIME_S, "submissions_per_minute": 6000.0}
    fields |= {"setup": [f"export TMPDIR=$(mktemp -d {folder}/node-XXXXXX)"]}
    return "\n".join([f"[{site.name}]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items()), ""])


def _folder(pool: FarPool, site: SimulatedSite) -> Path:
    folder = pool.place / site.name
    folder.mkdir(exist_ok=True)
    return folder


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return digests().digest(str(path), file.fileno())


def run(pool: FarPool, work: Workload, inputs: dict[str, Path]) -> float:
    """Returns the seconds from the first assignment to the end of the last task."""
    with pool.run() as run:
        for seconds, cost, (name,) in zip(work.seconds, work.costs, work.needs, strict=True):
            run.executable(["sleep", f"{seconds:.3f}"], inputs={"in.dat": inputs[name]}, cost=cost)
    row = pool.ask("run", run=run.id)
    assert row["attempts"] == row["counts"]["done"] == len(work), row
    return float(row["ended_at"] - row["started_at"])


def links_of(pool: FarPool, sites: Sequence[SimulatedSite]) -> dict[str, float]:
    """Returns the forecast bandwidth of each link relative to the true one, and the megabytes received over it."""
    forecasts = _forecasts(pool)
    told: dict[str, float] = {}
    for site in sites:
        known = forecasts.bandwidth(site.name)
        if known is not None:
            told[f"{site.name}_link"] = known.value / site.bandwidth
        told[f"{site.name}_mb"] = pool.network[site.name].bytes_in() / WRAPPING / MB
    return told


def _forecasts(pool: FarPool) -> Forecasts:
    """Reads the forecasts from a copy of the journal, because the master still writes to it."""
    with tempfile.TemporaryDirectory(dir=pool.place) as copy:
        shutil.copytree(pool.pool.directory / "journal", f"{copy}/journal")
        journal, recovery = Journal.open(f"{copy}/journal")
        forecasts = replay(recovery).forecasts
        journal.close()
    return forecasts


# --- the question ---------------------------------------------------------------------------------------------------------------------


def question(scenario: str) -> Question:
    gain, words = {"a": (PAPER, f"{PAPER} times as fast as")}.get(scenario, (1.0, "faster than"))
    gain, words = (0.9, "about as fast as") if scenario == "d" else (gain, words)
    return Question(
        f"shared_files_{scenario}",
        f"scenario {scenario}, {TASKS} tasks",
        [SECONDS, REHEARSED, WRONG, *LINKS],
        [
            Goal(f"({scenario}) a plan is {words} workqueue", SECONDS, (WORKQUEUE,), gain, PLAN),
            Goal(f"({scenario}) auto is within a tenth of the better one", SECONDS, (WORKQUEUE, PLAN), 0.9, AUTO),
            *(Goal(f"({scenario}) {name}: simulated within 20 %", WRONG, (), 0.2, name) for name in (WORKQUEUE, PLAN, AUTO)),
        ],
    )


def ask(scenarios: str, options: Options, first_seed: int = 0) -> int:
    if missing := what_is_missing():
        print(f"no network can be created here: {missing}")
        return 1 if options.strict else 0
    options = replace(options, workers=sum(HOSTS))
    seeds = range(first_seed, first_seed + options.rounds)
    return max(
        compare(
            question(scenario),
            [
                Contestant(name, "ours" if name == PLAN else "pool", partial(measure, scenario, name, list(seeds)))
                for name in (WORKQUEUE, PLAN, AUTO)
            ],
            options,
        )
        for scenario in scenarios
    )


def main(options: Options) -> int:
    return ask("".join(SCENARIOS), options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    Options.add_to(parser)
    parser.add_argument("--scenarios", default="".join(SCENARIOS), help="scenarios to run, such as ad")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first round")
    chosen = parser.parse_args()
    sys.exit(ask(chosen.scenarios, Options.from_namespace(chosen), chosen.seed))
