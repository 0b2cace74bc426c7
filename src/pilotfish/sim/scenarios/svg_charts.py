"""Draws bar and line charts as SVG.

Charts have their own background, light or dark by the reader's preference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

from pilotfish.sim.scenarios.mean_and_deviation import MeanAndDeviation

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a7a00", "#7a5195", "#999999")
"""Colours for colour-blind readers, visible on white and on black."""
STYLE = (
    "<style>.g{fill:#fff}text,.t{fill:#333}.w{fill:#666}.a{stroke:#999}.l{stroke:#ddd}"
    "@media(prefers-color-scheme:dark){.g{fill:#1b1d20}text,.t{fill:#ddd}.w{fill:#aaa}.l{stroke:#383b40}}</style>"
)
WIDTH = 820
ROW, TOP, MARGIN = 30, 44, 16


def sheet(width: float, height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, STYLE, f'<rect class="g" width="{width:.0f}" height="{height:.0f}"/>', *parts, "</svg>", ""])


def text(x: float, y: float, words: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def ticks(most: float, wanted: int = 6) -> list[float]:
    """Returns round numbers from 0 to ``most``."""
    if most <= 0:
        return [0.0]
    raw = most / wanted
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * part for part in (1, 2, 5, 10) if power * part >= raw * 0.999)
    return [number * step for number in range(int(most / step + 1e-9) + 1)]


def time_axis(left: float, right: float, top: float, bottom: float, most_s: float) -> list[str]:
    """Draws a time axis in minutes."""
    lines = [f'<line class="a" x1="{left}" x2="{right}" y1="{bottom:.1f}" y2="{bottom:.1f}"/>']
    for minutes in ticks(most_s / 60):
        x = left + (right - left) * minutes * 60 / most_s
        lines.append(f'<line class="l" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>')
        lines.append(text(x, bottom + 15, f"{minutes:g}", "middle"))
    lines.append(text(right, bottom + 30, "minutes", "end"))
    return lines


def draw_bars(title: str, makespans: Mapping[str, Sequence[float]], bound_s: float = 0.0) -> str:
    """Draws a bar for the mean of each policy, a thin line for the standard deviation over seeds, and a dashed line for the lower bound."""
    spreads = {name: MeanAndDeviation.of(values) for name, values in makespans.items()}
    most_s = max(spread.mean + spread.deviation for spread in spreads.values()) * 1.02
    left, right, bottom = 110.0, WIDTH - 90.0, TOP + ROW * len(spreads) + 4.0
    across = (right - left) / most_s
    parts = [text(MARGIN, 20, title, more=' font-weight="bold"'), *time_axis(left, right, TOP - 6, bottom, most_s)]
    best = min(spread.mean for spread in spreads.values())
    for row, (name, spread) in enumerate(spreads.items()):
        y = TOP + row * ROW
        colour = COLOURS[2] if spread.mean <= best * 1.005 else COLOURS[0]
        parts.append(text(left - 8, y + 16, name, "end"))
        parts.append(f'<rect x="{left}" y="{y + 4}" width="{spread.mean * across:.1f}" height="{ROW - 12}" fill="{colour}"/>')
        low, high = (left + max(0.0, spread.mean + sign * spread.deviation) * across for sign in (-1, 1))
        parts.append(f'<path class="a" d="M{low:.1f} {y + 13}H{high:.1f}M{low:.1f} {y + 9}v8M{high:.1f} {y + 9}v8" stroke-width="1.5"/>')
        parts.append(text(right + 8, y + 16, f"{spread.mean / 60:.3g} min"))
    if bound_s:
        x = left + bound_s * across
        parts.append(f'<line class="a" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}" stroke-dasharray="4 3"/>')
        parts.append(text(x + 4, TOP - 8, "no schedule is shorter", more=' class="w" font-size="10"'))
    return sheet(WIDTH, bottom + 40, parts)


def draw_lines(
    title: str, axes: tuple[str, str], xs: Sequence[float], lines: Mapping[str, Sequence[float]], level: float | None = None
) -> str:
    """Draws lines. ``axes``: titles of the x and y axis; ``level``: a dashed line where there is neither gain nor loss."""
    left, right, top, bottom = 60.0, WIDTH - 150.0, 40.0, 300.0
    most = max(max(values) for values in lines.values()) * 1.05
    across, up = (right - left) / (max(xs) - min(xs)), (bottom - top) / most
    parts = [
        text(MARGIN, 20, title, more=' font-weight="bold"'),
        text(left, top - 6, axes[1], "middle"),
        text(right, bottom + 32, axes[0], "end"),
    ]
    for mark in ticks(most, 5):
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
