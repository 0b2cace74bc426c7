"""Compares central and distributed matching: ``python -m experiments.overlay --pilots 100 --tasks 300`` prints the figures.

The master, the agent machines and the site members are the real ones; time, network, jobs and files are simulated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.overlay.overlay_settings import ARCHITECTURES, SIZES, WORKFLOWS, OverlayRun
from experiments.overlay.overlay_world import OverlayWorld
from experiments.spreads import MeanAndDeviation

BEATS = "beat"


@dataclass(slots=True, frozen=True)
class OverlayFigures:
    """Figures of one run of a workflow. Times are in seconds; ``requests``: messages from agents to the master per task, by kind."""

    architecture: str
    workflow: str
    pilots: int
    tasks: int
    seed: int
    requests: dict[str, float]
    delay_s: float
    """Mean time from the end of a job to the start of the next in the same slot, while other jobs were ready."""
    delay_deviation_s: float
    matching_s: float
    """Part of that time until the agent knew its next job; the rest is staging."""
    matching_most_s: float
    turnaround_s: float
    own_reads: float
    """Fractions of all reads: from the agent's own cache, and from a peer's."""
    peer_reads: float
    busy: float
    """Fraction of time in which the master was busy; ``site_busy``: the same of the busiest site master."""
    site_busy: float
    queue: int
    """Maximum messages in the master's queue."""
    events: int
    cpu_s: float

    @property
    def requests_per_task(self) -> float:
        """Requests per task without heartbeats."""
        return sum(count for kind, count in self.requests.items() if kind != BEATS)

    @property
    def cache_reads(self) -> float:
        return self.own_reads + self.peer_reads


def measure(plan: OverlayRun, progress: Callable[[OverlayWorld], None] | None = None) -> OverlayFigures:
    began = time.process_time()
    world = OverlayWorld(plan, progress)
    world.run()
    nodes = list(world.links.values())
    delays = [delay for node in nodes for delay in node.delays] or [(0.0, 0.0)]
    whole, known = MeanAndDeviation.of(delay for delay, _ in delays), MeanAndDeviation.of(known for _, known in delays)
    own = sum(node.reads_here + node.machine.staging.cache_hits for node in nodes)
    peers, storage = sum(node.reads_of_peers for node in nodes), sum(node.reads_of_storage for node in nodes)
    reads = max(1, own + peers + storage)
    return OverlayFigures(
        plan.architecture,
        plan.workflow,
        plan.pilots,
        plan.tasks,
        plan.seed,
        requests={kind: count / world.client.ended for kind, count in sorted(world.master.requests.items())},
        delay_s=whole.mean,
        delay_deviation_s=whole.deviation,
        matching_s=known.mean,
        matching_most_s=max(known for _, known in delays),
        turnaround_s=world.client.ended_at - world.client.begun_at,
        own_reads=own / reads,
        peer_reads=peers / reads,
        busy=world.master.busy_s / world.now,
        site_busy=max(node.member_s for node in nodes) / world.now,
        queue=world.master.most_waiting,
        events=world.events,
        cpu_s=time.process_time() - began,
    )


FIGURES: dict[str, tuple[Callable[[OverlayFigures], float], str]] = {
    "requests per task": (lambda one: one.requests_per_task, "{:.1f} ± {:.1f}"),
    "beats per task": (lambda one: one.requests.get(BEATS, 0.0), "{:.1f}"),
    "delay, s": (lambda one: one.delay_s, "{:.2f} ± {:.2f}"),
    "of that for matching, s": (lambda one: one.matching_s, "{:.3f}"),
    "turnaround, min": (lambda one: one.turnaround_s / 60, "{:.1f} ± {:.1f}"),
    "reads from caches": (lambda one: one.cache_reads, "{:.2f} ± {:.2f}"),
    "from the own cache": (lambda one: one.own_reads, "{:.2f} ± {:.2f}"),
    "master at work": (lambda one: one.busy, "{:.3f}"),
}


def by_row(results: Iterable[OverlayFigures]) -> dict[tuple[int, int, str], list[OverlayFigures]]:
    """Groups results by size and architecture."""
    rows: dict[tuple[int, int, str], list[OverlayFigures]] = {}
    for one in results:
        rows.setdefault((one.pilots, one.tasks, one.architecture), []).append(one)
    return rows


def table(results: Iterable[OverlayFigures]) -> str:
    """Formats the figures as a table. Deviations are those between runs."""
    lines = ["| pilots, tasks | architecture | runs | " + " | ".join(FIGURES) + " |", "|---" * (len(FIGURES) + 3) + "|"]
    for (pilots, tasks, architecture), runs in by_row(results).items():
        cells = []
        for figure, form in FIGURES.values():
            spread = MeanAndDeviation.of(figure(one) for one in runs)
            cells.append((form if spread.count > 1 else form.partition(" ")[0]).format(spread.mean, spread.deviation))
        lines.append(f"| {pilots}, {tasks} | {architecture} | {len(runs)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def kinds(results: Iterable[OverlayFigures]) -> str:
    """Formats requests per task by kind."""
    known = list(results)
    names = sorted({kind for one in known for kind in one.requests}, key=lambda kind: (kind == BEATS, kind))
    lines = ["| pilots, tasks | architecture | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for (pilots, tasks, architecture), runs in by_row(known).items():
        means = [math.fsum(one.requests.get(kind, 0.0) for one in runs) / len(runs) for kind in names]
        lines.append(f"| {pilots}, {tasks} | {architecture} | " + " | ".join(f"{mean:.2f}" for mean in means) + " |")
    return "\n".join(lines)


class ProgressLine:
    """Shows progress in one line on standard error."""

    def __init__(self, plan: OverlayRun) -> None:
        self._plan = plan

    def __call__(self, world: OverlayWorld) -> None:
        plan = self._plan
        what = f"{plan.pilots} pilots, {plan.architecture}, {plan.workflow}, seed {plan.seed}"
        print(f"{what}: {world.now:.0f} s, {world.client.ended} of {plan.tasks} tasks, {world.events} events", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.overlay", description="Compare central and distributed matching.")
    parser.add_argument("--pilots", type=int, default=0, help="how many; without this, all sizes of the documentation are run")
    parser.add_argument("--tasks", type=int, default=0, help="in both steps together; 3 per pilot if not given")
    parser.add_argument("--seeds", type=int, default=0, help="runs of each workflow; 3 if not given, or 1 from 1000 pilots on")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--architecture", choices=ARCHITECTURES, action="append", help="one of the three; may be given again")
    parser.add_argument("--workflow", choices=list(WORKFLOWS), action="append", help="one of the three; may be given again")
    parser.add_argument("--json", action="store_true", help="one line for each run, as it ends")
    parser.add_argument("--read", metavar="FILE", help="run nothing: show what --json has written there")
    chosen = parser.parse_args()
    if chosen.read:
        read = [OverlayFigures(**json.loads(line)) for line in Path(chosen.read).read_text().splitlines()]
        show(sorted(read, key=lambda one: (one.pilots, one.tasks, ARCHITECTURES.index(one.architecture))))
        return 0
    results = []
    for plan in plans(chosen):
        results.append(measure(plan, ProgressLine(plan)))
        if chosen.json:
            print(json.dumps(asdict(results[-1])), flush=True)
    if not chosen.json:
        show(results)
    return 0


def plans(chosen: argparse.Namespace) -> Iterator[OverlayRun]:
    sizes = [(chosen.pilots, chosen.tasks or 3 * chosen.pilots)] if chosen.pilots else SIZES
    for (pilots, tasks), architecture in itertools.product(sizes, chosen.architecture or ARCHITECTURES):
        seeds = chosen.seeds or (1 if pilots >= 1000 else 3)
        for workflow, seed in itertools.product(chosen.workflow or WORKFLOWS, range(chosen.first_seed, chosen.first_seed + seeds)):
            yield OverlayRun(architecture, workflow, pilots, tasks, seed)


def show(results: list[OverlayFigures]) -> None:
    print(table(results), kinds(results), sep="\n\n")
    events, cpu_s = sum(one.events for one in results), sum(one.cpu_s for one in results)
    print(f"\n{len(results)} runs, {events} events in {cpu_s:.0f} s of processor time: {events / cpu_s:.0f} per second")


if __name__ == "__main__":
    sys.exit(main())
