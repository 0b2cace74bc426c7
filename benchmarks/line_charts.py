"""Draws line charts as SVG, in the style of the bar charts of `pilotfish simulate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

from pilotfish.sim.scenarios.svg_charts import COLOURS, MARGIN, WIDTH, sheet, text, ticks


def draw_lines(
    title: str, axes: tuple[str, str], xs: Sequence[float], lines: Mapping[str, Sequence[float]], level: float | None = None
) -> str:
    """Draws lines. ``axes``: titles of the x and y axis; ``level``: a dashed line where there is neither gain nor loss."""
    left, right, top, bottom = 60.0, WIDTH - 150.0, 40.0, 300.0
    max_value = max(max(values) for values in lines.values()) * 1.05
    across, up = (right - left) / (max(xs) - min(xs)), (bottom - top) / max_value
    parts = [
        text(MARGIN, 20, title, more=' font-weight="bold"'),
        text(left, top - 6, axes[1], "middle"),
        text(right, bottom + 32, axes[0], "end"),
    ]
    for mark in ticks(max_value, 5):
        y = bottom - mark * up
        parts += [f'<line class="l" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>', text(left - 6, y + 4, f"{mark:g}", "end")]
    parts += [text(left + (x - min(xs)) * across, bottom + 16, f"{x:g}", "middle") for x in xs]
    if level is not None:
        y = bottom - level * up
        parts.append(f'<line class="a" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke-dasharray="4 3"/>')
    ends = _apart([bottom - values[-1] * up for values in lines.values()], 15.0)
    for number, ((name, values), label_y) in enumerate(zip(lines.items(), ends, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        points = [(left + (x - min(xs)) * across, bottom - value * up) for x, value in zip(xs, values, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        parts.append(f'<text x="{right + 10}" y="{label_y + 4:.1f}" style="fill:{colour}">{escape(name)}</text>')
    return sheet(WIDTH, bottom + 44, parts)


def _apart(heights: Sequence[float], least: float) -> list[float]:
    """Moves heights down where one label would cover another."""
    found = list(heights)
    order = sorted(range(len(found)), key=lambda place: found[place])
    for above, below in pairwise(order):
        found[below] = max(found[below], found[above] + least)
    return found
