"""Draws a Gantt chart of a simulation as SVG.

Each core has a row; hosts of a site are together, with the site's link above them. A core that waits for a file is paler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pilotfish.sim.light_world import TaskInterval
from pilotfish.sim.scenarios.policy_comparison import SimulatedTransfer, SimulationTrace
from pilotfish.sim.scenarios.svg_charts import COLOURS, MARGIN, WIDTH, sheet, text, time_axis
from pilotfish.sim.workload import SimulatedSite, Workload

MOST_BYTES = 55_000
MOST_ROWS = 120
"""Maximum rows for cores; of larger sites only some hosts are shown."""
HEIGHT = 420.0
LINK_HEIGHT = 14.0
LEGEND_HEIGHT = 16.0
GAP, LEFT, RIGHT, TOP = 10.0, 96.0, 16.0, 60.0
MOST_LEGENDS = len(COLOURS) - 1
LEAST_WAIT = 0.002
"""Minimum wait to show, as a fraction of the makespan."""


@dataclass(slots=True)
class ChartBlocks:
    """Rectangles of one colour as one SVG path, which keeps the file small. Rectangles narrower than ``merge`` are joined with their
    neighbour."""

    merge: float
    parts: list[str] = field(default_factory=list)
    _last: tuple[float, float, float, float] | None = None

    def add(self, x: float, y: float, width: float, height: float) -> None:
        last = self._last
        if last is not None and last[1] == y and last[3] == height and x - (last[0] + last[2]) < self.merge and width < self.merge:
            self._last = (last[0], y, x + width - last[0], height)
            return
        self._flush()
        self._last = (x, y, width, height)

    def _flush(self) -> None:
        if self._last is not None:
            x, y, width, height = self._last
            shown = max(0.4, width - 0.4)  # leaves a thin gap between neighbours
            self.parts.append(f"M{x:.1f} {y:.1f}h{shown:.1f}v{height:.1f}h{-shown:.1f}z")

    def path(self, colour: str, opacity: float) -> list[str]:
        self._flush()
        self._last = None
        faint = f' opacity="{opacity:g}"' if opacity < 1 else ""
        return [f'<path fill="{colour}"{faint} d="{"".join(self.parts)}"/>'] if self.parts else []


class ChartColours:
    """Colour of a task: that of its largest file, or else of its kind. The most common ones come first."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self.by_file = bool(work.needs)
        names: dict[str, int] = {}
        for task in range(len(work)):
            name = self.name(task)
            names[name] = names.get(name, 0) + 1
        order = list(work.files) if self.by_file and len(work.files) <= MOST_LEGENDS else sorted(names, key=lambda name: -names[name])
        self.places = {name: min(place, MOST_LEGENDS) for place, name in enumerate(name for name in order if name in names)}

    def name(self, task: int) -> str:
        work = self._work
        if self.by_file:
            return max(work.needs[task], key=lambda digest: work.files[digest], default="")
        return work.kinds[task] if work.kinds else "task"

    def legend(self) -> list[tuple[str, str]]:
        """Returns labels and colours."""
        numbers = {digest: number for number, digest in enumerate(self._work.files, start=1)}
        found = []
        for name, place in list(self.places.items())[:MOST_LEGENDS]:
            words = (
                f"file {numbers[name]}, {self._work.files[name] / 1e6:.3g} MB" if self.by_file and name in numbers else name or "no file"
            )
            found.append((words, COLOURS[place]))
        rest = len(self.places) - MOST_LEGENDS
        return [*found, *([(f"{rest} other{'s'[: rest > 1]}", COLOURS[-1])] if rest > 0 else [])]


def draw_gantt(title: str, places: Sequence[SimulatedSite], story: SimulationTrace) -> str:
    """Draws as much detail as the size limit allows."""
    merge = 1.0
    while True:
        picture = _draw(title, places, story, merge)
        if len(picture) <= MOST_BYTES or merge > WIDTH:
            return picture
        merge *= 2


def _draw(title: str, places: Sequence[SimulatedSite], story: SimulationTrace, merge: float) -> str:
    looks = ChartColours(story.work)
    legend, top = _legend(looks)
    most_s = max(story.played.makespan_s, 1e-9)
    across = (WIDTH - LEFT - RIGHT) / most_s
    rows = _shown_rows(places, story)
    height = max(2.0, min(12.0, HEIGHT / max(1, sum(map(len, rows.values())))))
    ran = [ChartBlocks(merge) for _ in COLOURS]
    waited = [ChartBlocks(merge) for _ in COLOURS]
    parts: list[str] = []
    y = top
    for place in places:
        count = place.hosts * place.cores
        shown = len(rows[place.name])
        if story.work.files:
            parts.append(text(LEFT - 8, y + LINK_HEIGHT - 3, "files come", "end", ' class="w" font-size="10"'))
            coming = [transfer for transfer in story.transfers if transfer.place == place.name]
            _draw_link(coming, looks, ran, (across, y))
            y += LINK_HEIGHT + 2
        parts.append(text(LEFT - 8, y + 12, place.name, "end", ' font-weight="bold"'))
        told = f"{count} cores" if shown == count else f"{shown} of {count}"
        parts.append(text(LEFT - 8, y + 25, told, "end", ' class="w" font-size="10"'))
        for row in rows[place.name]:
            _draw_row(row, looks, (ran, waited), (across, y, height), most_s)
            y += height
        y = max(y, y - shown * height + 28) + GAP
    drawn = [
        line
        for blocks, opacity in ((waited, 0.3), (ran, 1.0))
        for one, colour in zip(blocks, COLOURS, strict=True)
        for line in one.path(colour, opacity)
    ]
    head = [text(MARGIN, 20, title, more=' font-weight="bold"'), *legend]
    axis = time_axis(LEFT, WIDTH - RIGHT, top - 4, y, most_s)
    return sheet(WIDTH, y + 38, [*head, *axis, *parts, *drawn])


def _draw_link(coming: Sequence[SimulatedTransfer], looks: ChartColours, ran: list[ChartBlocks], scale: tuple[float, float]) -> None:
    across, y = scale
    for lane, lanes, one in _in_lanes(coming):
        part = LINK_HEIGHT / lanes
        look = looks.places.get(one.digest, MOST_LEGENDS)
        ran[look].add(LEFT + one.asked * across, y + lane * part, (one.came - one.asked) * across, part - 0.5)


def _draw_row(
    row: Sequence[TaskInterval],
    looks: ChartColours,
    blocks: tuple[list[ChartBlocks], list[ChartBlocks]],
    scale: tuple[float, float, float],
    most_s: float,
) -> None:
    across, y, height = scale
    free_at = 0.0
    for stint in row:
        look = looks.places[looks.name(stint.task)]
        since = max(stint.given, free_at)
        if stint.began - since > LEAST_WAIT * most_s:
            blocks[1][look].add(LEFT + since * across, y, (stint.began - since) * across, height - 0.4)
        blocks[0][look].add(LEFT + stint.began * across, y, (stint.ended - stint.began) * across, height - 0.4)
        free_at = stint.ended


def _shown_rows(places: Sequence[SimulatedSite], story: SimulationTrace) -> dict[str, list[list[TaskInterval]]]:
    """Returns the tasks of each core in order. Each site shows as many cores as fit, evenly chosen."""
    hosts: dict[str, dict[int, list[TaskInterval]]] = {place.name: {} for place in places}
    for stint in story.played.stints:
        hosts[stint.place].setdefault(stint.host, []).append(stint)
    total = sum(place.hosts * place.cores for place in places)
    found: dict[str, list[list[TaskInterval]]] = {}
    for place in places:
        rows = [row for host in sorted(hosts[place.name]) for row in _cores(hosts[place.name][host], place.cores)]
        rows += [[] for _ in range(place.hosts * place.cores - len(rows))] if total <= MOST_ROWS else []
        room = max(4, MOST_ROWS * place.hosts * place.cores // total) if total > MOST_ROWS else len(rows)
        found[place.name] = [rows[number * len(rows) // room] for number in range(room)] if len(rows) > room else rows
    return found


def _cores(stints: Sequence[TaskInterval], cores: int) -> list[list[TaskInterval]]:
    """Assigns each task to the first free core. The real assignment is not recorded and does not matter."""
    rows: list[list[TaskInterval]] = [[] for _ in range(cores)]
    for stint in sorted(stints, key=lambda one: one.began):
        row = next((one for one in rows if not one or one[-1].ended <= stint.began + 1e-6), rows[-1])
        row.append(stint)
    return rows


def _in_lanes(transfers: Sequence[SimulatedTransfer]) -> list[tuple[int, int, SimulatedTransfer]]:
    """Places concurrent transfers side by side. Returns lane and number of lanes of each transfer."""
    ends: list[float] = []
    placed: list[tuple[int, SimulatedTransfer]] = []
    for one in sorted(transfers, key=lambda one: one.asked):
        lane = next((number for number, end in enumerate(ends) if end <= one.asked + 1e-6), len(ends))
        ends[lane : lane + 1] = [one.came]
        placed.append((lane, one))
    return [(lane, len(ends), one) for lane, one in placed]


def _legend(looks: ChartColours) -> tuple[list[str], float]:
    """Draws the legend, in as many lines as needed. Returns it and the y position of the rest."""
    entries = [(words, f'fill="{colour}"') for words, colour in looks.legend()] if len(looks.places) > 1 else []
    entries += [("waits for its file", 'class="w" opacity="0.35"')] if looks.by_file else []
    x, y, parts = float(MARGIN), 31.0, []
    for words, look in entries:
        width = 28 + 6.1 * len(words)
        if x > MARGIN and x + width > WIDTH:
            x, y = float(MARGIN), y + LEGEND_HEIGHT
        parts.append(f'<rect {look} x="{x:.0f}" y="{y:.0f}" width="11" height="11"/>')
        parts.append(text(x + 15, y + 10, words, more=' font-size="11"'))
        x += width
    return parts, TOP + y - 31.0
