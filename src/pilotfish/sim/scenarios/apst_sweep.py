"""Generates the published APST sweep: three clusters with shared input files, staged or not.

1,200 tasks in six groups; costs differ by up to 20 times. All tasks of a group read one file, of 1, 1, 20, 20, 100 and 100 MB. The files
are near 32 hosts; the link to 8 other hosts is 20 times slower, to 16 more 40 times. Scenarios: a) no file is staged; b) the files of 100
MB are at the 8 hosts; c) as b, and one of 100 MB and both of 20 MB are at the 16 hosts; d) all files are everywhere.
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
"""Standard deviation of the logarithms of task times, relative to the costs."""
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
