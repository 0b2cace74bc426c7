"""Compares balanced chunks with equal chunks: modelled for 16 unequal workers, measured on agents with known slowness."""

from __future__ import annotations

import math
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Contestant, Figure, Goal, Options, Question, compare, write_json
from experiments.uplinks import ONE_PORT, PARALLEL, Uplink, best_ratio, plan, self_scheduled, time_of
from pilotfish import BalanceReport, iterate
from pilotfish.policies.load_balancing import LoadModel, WorkerCapacity, compute_transfer_ratios, heterogeneity
from tests.network.far_pool import MASTER, far_pool
from tests.network.namespaces import network, what_is_missing
from tests.support.peer_pool import PeerPool, peer_pool

WORKERS = 16
POOLS = 100
"""Number of random pools; figures are means over them."""
LOAD = 16_000
LATENCY_S = 1.0
"""Seconds per chunk of any size: the overhead of a grid."""
RATIOS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Values of f_c. With 1, a worker of median speed needs as long to receive its data as to process it."""
SPREADS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
"""Standard deviations of the logarithm of speeds."""

SLOWNESS = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 2.0, "e": 4.0, "f": 6.0}
LINKS_MBIT = {"n0": 400.0, "n1": 200.0, "n2": 50.0, "n3": 50.0}
MEGABYTES = 24
ITERATIONS = 10

THETA = Figure("theta", "theta", 2)
EXPECTED = Figure("expected", "planned", 2)
AGREEMENT = Figure("agreement", "agreement", 2)
KNOWN = Figure("known", "theoretical", 2)
PHI = Figure("phi", "Phi", 2)


def draw_pool(dice: random.Random, speeds: float, bandwidths: float) -> list[WorkerCapacity]:
    """Draws speeds and bandwidths around 10 units and 10 bytes a second, with these standard deviations of their logarithms."""
    return [
        WorkerCapacity(f"w{number}", 10 * math.exp(dice.gauss(0, speeds)), 10 * math.exp(dice.gauss(0, bandwidths)), LATENCY_S)
        for number in range(WORKERS)
    ]


def searched(workers: Sequence[WorkerCapacity], application: LoadModel, link: Uplink) -> float:
    """Returns the run time with the f_c* found by search, as if it were not known."""

    def run_time(ratio: float) -> float:
        return time_of(plan(workers, LoadModel(ratio), LOAD, link).sizes, workers, application, link)

    return run_time(best_ratio(run_time, 1e-3, 1e3))


def by_ratio(link: Uplink) -> list[dict[str, float]]:
    """Returns run times of six applications with equal computation and growing amounts of data."""
    rows = []
    for ratio in RATIOS:
        application = LoadModel(ratio)
        times: dict[str, list[float]] = {}
        for seed in range(POOLS):
            workers = draw_pool(random.Random(seed), 0.5, 0.5)
            for tasks in (1, 4, 16):
                times.setdefault(f"self_{tasks}", []).append(self_scheduled(workers, application, LOAD, tasks * WORKERS, link))
            found = plan(workers, application, LOAD, link)
            times.setdefault("awlb", []).append(found.time_s)
            times.setdefault("searched", []).append(searched(workers, application, link))
            times.setdefault("used", []).append(sum(size > 0 for size in found.sizes))
        rows.append({"ratio": ratio, **{name: statistics.fmean(values) for name, values in times.items()}})
    return rows


def by_heterogeneity() -> list[dict[str, float]]:
    """Returns theta for increasingly heterogeneous processors, with equal and with balanced chunks; no data is moved."""
    rows = []
    for spread in SPREADS:
        seen: dict[str, list[float]] = {}
        for seed in range(POOLS):
            workers = draw_pool(random.Random(seed), spread, 0.0)
            balanced_s = plan(workers, LoadModel(), LOAD).time_s
            seen.setdefault("phi", []).append(heterogeneity(compute_transfer_ratios(workers)))
            for tasks in (1, 4, 16):
                seen.setdefault(f"theta_{tasks}", []).append(self_scheduled(workers, LoadModel(), LOAD, tasks * WORKERS) / balanced_s)
        rows.append({"spread": spread, **{name: statistics.fmean(values) for name, values in seen.items()}})
    return rows


def growth(rows: Sequence[dict[str, float]]) -> float:
    """Returns the power of Phi with which theta - 1 grows, by least squares of the logarithms."""
    points = [(math.log(row["phi"]), math.log(row["theta_1"] - 1)) for row in rows]
    return statistics.linear_regression(*zip(*points, strict=True)).slope


# --- live -----------------------------------------------------------------------------------------------------------------------------


def slowed(slowness: dict[str, float], unit_s: float) -> Callable[[Any, Any], int]:
    def step(piece: Any, state: Any) -> int:
        import os
        import time

        time.sleep(len(piece) * unit_s * slowness[os.environ["PILOTFISH_WORKER"]])
        return len(piece)

    return step


def known_theta(slowness: Sequence[float]) -> float:
    """Returns theta if only the computation took time."""
    return max(slowness) / len(slowness) * sum(1 / times for times in slowness)


def measure(seconds: float) -> dict[str, Any]:
    """Runs equal and balanced chunks, ten iterations each, on agents with known slowness."""
    with tempfile.TemporaryDirectory(prefix="pfb", ignore_cleanup_errors=True) as place:
        os.environ["PILOTFISH_HOME"] = place
        with peer_pool(Path(place), Path(place) / "agents") as pool:
            pool.start(*SLOWNESS)
            return compare_live(pool, seconds)


def compare_live(pool: PeerPool, seconds: float) -> dict[str, Any]:
    load = 6000
    rate = sum(1 / times for times in SLOWNESS.values())
    step = slowed(SLOWNESS, seconds / ITERATIONS * rate / load)

    def go(baseline: int) -> BalanceReport:
        with pool.run() as run:
            report = iterate(run, step, load, ITERATIONS, 0, lambda state, results: state + sum(results), baseline=baseline, progress=False)
        assert report.value == load * ITERATIONS
        return report

    equal, balanced = go(ITERATIONS), go(0)
    print(balanced, file=sys.stderr)
    # The first iteration starts the slots. The second is the first with measured speeds.
    theta = sum(one.seconds for one in equal.iterations[1:]) / sum(one.seconds for one in balanced.iterations[1:])
    expected = balanced.expected_theta or math.nan
    return {
        "theta": theta,
        "expected": expected,
        "agreement": min(theta / expected, expected / theta),
        "known": known_theta(list(SLOWNESS.values())),
        "phi": balanced.phi,
        "count": ITERATIONS,
    }


def measure_links() -> dict[str, Any]:
    """Runs an iteration over data with little computation, for agents behind separate links; every byte is really sent."""
    data = os.urandom(MEGABYTES * 1_000_000)
    with tempfile.TemporaryDirectory(prefix="pfb", ignore_cleanup_errors=True) as place, network(MASTER, *LINKS_MBIT) as hosts:
        for name, mbit in LINKS_MBIT.items():
            hosts[name].shape(mbit)
        with far_pool(Path(place), hosts, beat_s=5.0, lease_s=60.0) as pool:
            pool.start(*LINKS_MBIT)
            with pool.run() as run:
                report = iterate(run, slowed(dict.fromkeys(LINKS_MBIT, 1.0), 1e-8), data, ITERATIONS, baseline=3, progress=False)
    print(report, file=sys.stderr)
    expected = report.expected_theta or math.nan
    agreement = min(report.theta / expected, expected / report.theta)
    known = max(1 / mbit for mbit in LINKS_MBIT.values()) / len(LINKS_MBIT) * sum(LINKS_MBIT.values())
    return {"theta": report.theta, "expected": expected, "agreement": agreement, "known": known, "phi": report.phi, "count": ITERATIONS}


# --- tables ---------------------------------------------------------------------------------------------------------------------------


def show_ratios(title: str, rows: Sequence[dict[str, float]]) -> None:
    print(f"\n{title}\n")
    print("| f_c | equal tasks, 1 per worker, s | 4 per worker | 16 per worker | AWLB, s | AWLB with f_c* | workers used | times faster |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        seconds = " | ".join(f"{row[name]:.0f}" for name in ("self_1", "self_4", "self_16", "awlb", "searched"))
        print(f"| {row['ratio']:g} | {seconds} | {row['used']:.1f} | {row['self_1'] / row['awlb']:.2f} |")


def show_heterogeneity(rows: Sequence[dict[str, float]]) -> None:
    print("\ntheta against Phi\n")
    print("| Phi | theta, 1 task per worker | (theta - 1) / Phi | 4 per worker | 16 per worker |")
    print("|---|---|---|---|---|")
    for row in rows:
        per_phi = (row["theta_1"] - 1) / row["phi"]
        print(f"| {row['phi']:.2f} | {row['theta_1']:.2f} | {per_phi:.2f} | {row['theta_4']:.2f} | {row['theta_16']:.2f} |")
    print(f"\ntheta - 1 grows as Phi to the power {growth(rows):.2f}")


def main(options: Options) -> int:
    parallel, one_port, unlike = by_ratio(PARALLEL), by_ratio(ONE_PORT), by_heterogeneity()
    show_ratios(f"{WORKERS} unequal workers, served in parallel, mean of {POOLS} random pools", parallel)
    show_ratios(f"{WORKERS} unequal workers, served one after the other, mean of {POOLS} random pools", one_port)
    show_heterogeneity(unlike)
    print()
    write_json(options.out, "awlb_model", {"parallel": parallel, "one_port": one_port, "heterogeneity": unlike})
    return max(ask_speeds(options), ask_links(options))


def ask_speeds(options: Options) -> int:
    question = Question(
        "awlb",
        f"{ITERATIONS} iterations on {len(SLOWNESS)} agents slowed {', '.join(f'{times:g}' for times in SLOWNESS.values())} times",
        [THETA, EXPECTED, AGREEMENT, KNOWN, PHI],
        [Goal("theta is within a fifth of the plan", AGREEMENT, (), 0.8), Goal("at least twice as fast as equal chunks", THETA, (), 2.0)],
        ["the agents sleep in proportion to their slowness, so the cores of this machine do not matter"],
    )
    return compare(question, [Contestant("pilotfish", "ours", lambda: measure(options.seconds))], options)


def ask_links(options: Options) -> int:
    if missing := what_is_missing():
        print(f"no network can be created here: {missing}")
        return 0
    question = Question(
        "awlb_links",
        f"{MEGABYTES} MB for agents behind {', '.join(f'{mbit:g}' for mbit in LINKS_MBIT.values())} Mbit/s",
        [THETA, EXPECTED, AGREEMENT, KNOWN, PHI],
        [Goal("theta is within a fifth of the plan", AGREEMENT, (), 0.8), Goal("faster than equal chunks", THETA, (), 1.5)],
        ["only the links differ; all bytes also pass through one master on the cores of this machine, which takes time too"],
    )
    return compare(question, [Contestant("pilotfish", "ours", measure_links)], options)


if __name__ == "__main__":
    sys.exit(main(Options.from_command_line(__doc__ or "")))
