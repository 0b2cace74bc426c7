"""Draws charts of simulations as SVG: bar charts of makespans, and Gantt charts.

The background of a chart is light or dark, depending on the settings of the reader's display. In a Gantt chart, each core has a row. All
rows of one site are together, and the transfers to this site are above its rows. The time in which a core waits for a file has a paler
colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from pilotfish.sim.light_world import TaskInterval
from pilotfish.sim.scenarios.policy_comparison import SimulationTrace, mean_and_deviation
from pilotfish.sim.shared_link import SimulatedTransfer
from pilotfish.sim.workload import SimulatedSite, Workload

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a7a00", "#7a5195", "#999999")
"""Colours that colour-blind readers can distinguish, and that are visible on white and on black."""
STYLE = (
    "<style>.g{fill:#fff}text,.t{fill:#333}.w{fill:#666}.a{stroke:#999}.l{stroke:#ddd}"
    "@media(prefers-color-scheme:dark){.g{fill:#1b1d20}text,.t{fill:#ddd}.w{fill:#aaa}.l{stroke:#383b40}}</style>"
)
WIDTH = 820
ROW, TOP, MARGIN = 30, 44, 16


def sheet(width: float, height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, STYLE, f'<rect class="g" width="{width:.0f}" height="{height:.0f}"/>', *parts, "</svg>", ""])


def text(x: float, y: float, label: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(label)}</text>'


def ticks(max_value: float, wanted: int = 6) -> list[float]:
    """Returns round numbers from 0 to ``max_value``."""
    if max_value <= 0:
        return [0.0]
    raw = max_value / wanted
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * part for part in (1, 2, 5, 10) if power * part >= raw * 0.999)
    return [number * step for number in range(int(max_value / step + 1e-9) + 1)]


def time_axis(left: float, right: float, top: float, bottom: float, end_s: float) -> list[str]:
    """Draws a time axis in minutes."""
    lines = [f'<line class="a" x1="{left}" x2="{right}" y1="{bottom:.1f}" y2="{bottom:.1f}"/>']
    for minutes in ticks(end_s / 60):
        x = left + (right - left) * minutes * 60 / end_s
        lines.append(f'<line class="l" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>')
        lines.append(text(x, bottom + 15, f"{minutes:g}", "middle"))
    lines.append(text(right, bottom + 30, "minutes", "end"))
    return lines


def draw_bars(title: str, makespans: Mapping[str, Sequence[float]], bound_s: float = 0.0) -> str:
    """Draws a bar for the mean of each policy, a thin line for the standard deviation, and a dashed line for the lower bound."""
    spreads = {name: mean_and_deviation(values) for name, values in makespans.items()}
    end_s = max(mean + deviation for mean, deviation in spreads.values()) * 1.02
    left, right, bottom = 110.0, WIDTH - 90.0, TOP + ROW * len(spreads) + 4.0
    across = (right - left) / end_s
    parts = [text(MARGIN, 20, title, more=' font-weight="bold"'), *time_axis(left, right, TOP - 6, bottom, end_s)]
    best = min(mean for mean, _ in spreads.values())
    for row, (name, (mean, deviation)) in enumerate(spreads.items()):
        y = TOP + row * ROW
        colour = COLOURS[2] if mean <= best * 1.005 else COLOURS[0]
        parts.append(text(left - 8, y + 16, name, "end"))
        parts.append(f'<rect x="{left}" y="{y + 4}" width="{mean * across:.1f}" height="{ROW - 12}" fill="{colour}"/>')
        low, high = (left + max(0.0, mean + sign * deviation) * across for sign in (-1, 1))
        parts.append(f'<path class="a" d="M{low:.1f} {y + 13}H{high:.1f}M{low:.1f} {y + 9}v8M{high:.1f} {y + 9}v8" stroke-width="1.5"/>')
        parts.append(text(right + 8, y + 16, f"{mean / 60:.3g} min"))
    if bound_s:
        x = left + bound_s * across
        parts.append(f'<line class="a" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}" stroke-dasharray="4 3"/>')
        parts.append(text(x + 4, TOP - 8, "no schedule is shorter", more=' class="w" font-size="10"'))
    return sheet(WIDTH, bottom + 40, parts)


MAX_BYTES = 55_000
MAX_ROWS = 120
"""Maximum number of rows. If there are more cores than this, only some cores of each site are shown."""
HEIGHT = 420.0
LINK_HEIGHT = 14.0
LEGEND_HEIGHT = 16.0
GAP, LEFT, RIGHT, GANTT_TOP = 10.0, 96.0, 16.0, 60.0
MAX_LEGENDS = len(COLOURS) - 1
MIN_WAIT = 0.002
"""Waits that are shorter than this fraction of the makespan are not shown."""


@dataclass(slots=True)
class ChartBlocks:
    """Draws rectangles of one colour as one SVG path, to keep the file small. A new rectangle is joined with the rectangle on its left if
    both the new rectangle and the gap between them are narrower than ``merge``."""

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
            shown = max(0.4, width - 0.4)  # leaves a thin gap to the next rectangle
            self.parts.append(f"M{x:.1f} {y:.1f}h{shown:.1f}v{height:.1f}h{-shown:.1f}z")

    def path(self, colour: str, opacity: float) -> list[str]:
        self._flush()
        self._last = None
        faint = f' opacity="{opacity:g}"' if opacity < 1 else ""
        return [f'<path fill="{colour}"{faint} d="{"".join(self.parts)}"/>'] if self.parts else []


class ChartColours:
    """Chooses the colour of a task by the largest file of the task. If the tasks have no files, chooses it by the kind of the task."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self.by_file = bool(work.needs)
        names: dict[str, int] = {}
        for task in range(len(work)):
            name = self.name(task)
            names[name] = names.get(name, 0) + 1
        order = list(work.files) if self.by_file and len(work.files) <= MAX_LEGENDS else sorted(names, key=lambda name: -names[name])
        self.numbers = {name: min(number, MAX_LEGENDS) for number, name in enumerate(name for name in order if name in names)}

    def name(self, task: int) -> str:
        work = self._work
        if self.by_file:
            return max(work.needs[task], key=lambda digest: work.files[digest], default="")
        return work.kinds[task] if work.kinds else "task"

    def legend(self) -> list[tuple[str, str]]:
        """Returns labels and colours."""
        numbers = {digest: number for number, digest in enumerate(self._work.files, start=1)}
        found = []
        for name, number in list(self.numbers.items())[:MAX_LEGENDS]:
            label = f"file {numbers[name]}, {self._work.files[name] / 1e6:.3g} MB" if name in numbers else name or "no file"
            found.append((label, COLOURS[number]))
        rest = len(self.numbers) - MAX_LEGENDS
        return [*found, *([(f"{rest} other{'s'[: rest > 1]}", COLOURS[-1])] if rest > 0 else [])]


def draw_gantt(title: str, sites: Sequence[SimulatedSite], trace: SimulationTrace) -> str:
    """Draws a Gantt chart with as much detail as the size limit allows."""
    merge = 1.0
    while True:
        picture = _draw(title, sites, trace, merge)
        if len(picture) <= MAX_BYTES or merge > WIDTH:
            return picture
        merge *= 2


def _draw(title: str, sites: Sequence[SimulatedSite], trace: SimulationTrace, merge: float) -> str:
    colours = ChartColours(trace.work)
    legend, top = _legend(colours)
    end_s = max(trace.world_result.makespan_s, 1e-9)
    across = (WIDTH - LEFT - RIGHT) / end_s
    rows = _shown_rows(sites, trace)
    height = max(2.0, min(12.0, HEIGHT / max(1, sum(map(len, rows.values())))))
    ran = [ChartBlocks(merge) for _ in COLOURS]
    waited = [ChartBlocks(merge) for _ in COLOURS]
    parts: list[str] = []
    y = top
    for site in sites:
        count = site.hosts * site.cores
        shown = len(rows[site.name])
        if trace.work.files:
            parts.append(text(LEFT - 8, y + LINK_HEIGHT - 3, "files come", "end", ' class="w" font-size="10"'))
            _draw_link(trace.world_result.transfers[site.name], colours, ran, (across, y))
            y += LINK_HEIGHT + 2
        parts.append(text(LEFT - 8, y + 12, site.name, "end", ' font-weight="bold"'))
        count_text = f"{count} cores" if shown == count else f"{shown} of {count}"
        parts.append(text(LEFT - 8, y + 25, count_text, "end", ' class="w" font-size="10"'))
        for row in rows[site.name]:
            _draw_row(row, colours, (ran, waited), (across, y, height), end_s)
            y += height
        y = max(y, y - shown * height + 28) + GAP
    drawn = [
        line
        for blocks, opacity in ((waited, 0.3), (ran, 1.0))
        for one, colour in zip(blocks, COLOURS, strict=True)
        for line in one.path(colour, opacity)
    ]
    head = [text(MARGIN, 20, title, more=' font-weight="bold"'), *legend]
    axis = time_axis(LEFT, WIDTH - RIGHT, top - 4, y, end_s)
    return sheet(WIDTH, y + 38, [*head, *axis, *parts, *drawn])


def _draw_link(coming: Sequence[SimulatedTransfer], colours: ChartColours, ran: list[ChartBlocks], scale: tuple[float, float]) -> None:
    across, y = scale
    for lane, lanes, one in _in_lanes(coming):
        part = LINK_HEIGHT / lanes
        colour = colours.numbers.get(one.digest, MAX_LEGENDS)
        ran[colour].add(LEFT + one.requested_at * across, y + lane * part, (one.arrived_at - one.requested_at) * across, part - 0.5)


def _draw_row(
    row: Sequence[TaskInterval],
    colours: ChartColours,
    blocks: tuple[list[ChartBlocks], list[ChartBlocks]],
    scale: tuple[float, float, float],
    end_s: float,
) -> None:
    across, y, height = scale
    free_at = 0.0
    for interval in row:
        colour = colours.numbers[colours.name(interval.task)]
        since = max(interval.assigned_at, free_at)
        if interval.started_at - since > MIN_WAIT * end_s:
            blocks[1][colour].add(LEFT + since * across, y, (interval.started_at - since) * across, height - 0.4)
        blocks[0][colour].add(LEFT + interval.started_at * across, y, (interval.ended_at - interval.started_at) * across, height - 0.4)
        free_at = interval.ended_at


def _shown_rows(sites: Sequence[SimulatedSite], trace: SimulationTrace) -> dict[str, list[list[TaskInterval]]]:
    """Returns the rows of each site. A row contains the tasks of one core. If there are more than MAX_ROWS cores, returns only every n-th
    core."""
    hosts: dict[str, dict[int, list[TaskInterval]]] = {site.name: {} for site in sites}
    for interval in trace.world_result.intervals:
        hosts[interval.site].setdefault(interval.host, []).append(interval)
    total = sum(site.hosts * site.cores for site in sites)
    found: dict[str, list[list[TaskInterval]]] = {}
    for site in sites:
        rows = [row for host in sorted(hosts[site.name]) for row in _cores(hosts[site.name][host], site.cores)]
        rows += [[] for _ in range(site.hosts * site.cores - len(rows))] if total <= MAX_ROWS else []
        room = max(4, MAX_ROWS * site.hosts * site.cores // total) if total > MAX_ROWS else len(rows)
        found[site.name] = [rows[number * len(rows) // room] for number in range(room)] if len(rows) > room else rows
    return found


def _cores(intervals: Sequence[TaskInterval], cores: int) -> list[list[TaskInterval]]:
    """Assigns each task to the first free core. The simulation does not record which core a task used."""
    rows: list[list[TaskInterval]] = [[] for _ in range(cores)]
    for interval in sorted(intervals, key=lambda one: one.started_at):
        row = next((one for one in rows if not one or one[-1].ended_at <= interval.started_at + 1e-6), rows[-1])
        row.append(interval)
    return rows


def _in_lanes(transfers: Sequence[SimulatedTransfer]) -> list[tuple[int, int, SimulatedTransfer]]:
    """Places concurrent transfers side by side. Returns, for each transfer: its place, the number of places, and the transfer."""
    ends: list[float] = []
    placed: list[tuple[int, SimulatedTransfer]] = []
    for one in sorted(transfers, key=lambda one: one.requested_at):
        lane = next((number for number, end in enumerate(ends) if end <= one.requested_at + 1e-6), len(ends))
        ends[lane : lane + 1] = [one.arrived_at]
        placed.append((lane, one))
    return [(lane, len(ends), one) for lane, one in placed]


def _legend(colours: ChartColours) -> tuple[list[str], float]:
    """Draws the legend. Returns its SVG elements and the y position below the legend."""
    entries = [(label, f'fill="{colour}"') for label, colour in colours.legend()] if len(colours.numbers) > 1 else []
    entries += [("waits for its file", 'class="w" opacity="0.35"')] if colours.by_file else []
    x, y, parts = float(MARGIN), 31.0, []
    for label, colour in entries:
        width = 28 + 6.1 * len(label)
        if x > MARGIN and x + width > WIDTH:
            x, y = float(MARGIN), y + LEGEND_HEIGHT
        parts.append(f'<rect {colour} x="{x:.0f}" y="{y:.0f}" width="11" height="11"/>')
        parts.append(text(x + 15, y + 10, label, more=' font-size="11"'))
        x += width
    return parts, GANTT_TOP + y - 31.0
