"""Generates the published APST sweep: tasks with shared input files on three clusters.

There are 1,200 tasks in six groups. Costs differ by a factor of up to 20. All tasks of a group read the same file. The six files have 1, 1,
20, 20, 100 and 100 MB. The first cluster has 32 hosts and a fast link. The second cluster has 8 hosts, and its link is 20 times slower than
the first link. The third cluster has 16 hosts, and its link is 40 times slower than the first link. There are four scenarios:

a) No file is staged in advance. b) Both files of 100 MB are at the second cluster in advance. c) Both files of 100 MB are at the second
cluster in advance. One file of 100 MB and both files of 20 MB are at the third cluster in advance. d) All files are at all clusters in
advance.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from hashlib import sha256

from pilotfish.sim.workload import SimulatedSite, Workload

MB = 1_000_000
SIZES = (1, 1, 20, 20, 100, 100)
FILES = tuple(sha256(b"group %d" % group).hexdigest() for group in range(len(SIZES)))
NOISE = 0.1
"""Standard deviation of the logarithms of the ratios of task time to cost."""
SCENARIOS = ("a", "b", "c", "d")
NEAR, MIDDLE, FAR = "near", "middle", "far"
STAGED = {
    ("b", MIDDLE): FILES[4:],
    ("c", MIDDLE): FILES[4:],
    ("c", FAR): FILES[2:5],
    ("d", MIDDLE): FILES,
    ("d", FAR): FILES,
    ("d", NEAR): FILES,
}


def apst_sites(scenario: str, bandwidth: float = 10 * MB, hosts: Sequence[int] = (32, 8, 16)) -> list[SimulatedSite]:
    return [
        SimulatedSite(name, count, bandwidth=bandwidth / part, files=STAGED.get((scenario, name), ()))
        for name, count, part in zip((NEAR, MIDDLE, FAR), hosts, (1, 20, 40), strict=True)
    ]


def sweep(seed: int, unit_s: float = 10.0, tasks: int = 1200) -> Workload:
    """Draws a sweep. ``unit_s``: seconds per unit of cost."""
    rng = random.Random(f"sweep {seed}")
    each = tasks // len(SIZES)
    costs = [rng.uniform(1.0, 20.0) for _ in range(each * len(SIZES))]
    return Workload(
        seconds=[cost * unit_s * rng.lognormvariate(0.0, NOISE) for cost in costs],
        costs=costs,
        files=dict(zip(FILES, (size * MB for size in SIZES), strict=True)),
        needs=[(FILES[number // each],) for number in range(len(costs))],
    )
