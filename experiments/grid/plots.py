"""Draws the chart and prints the tables of docs/explanation/factories.md: ``python -m experiments.grid.plots 200``. Output is
reproducible."""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.grid.__main__ import FIGURES, MAKERS, compare, gains
from experiments.grid.grid_sites import draw_uneven_grid
from experiments.grid.grid_world import GridFigures, TaskBag
from experiments.spreads import MeanAndDeviation

PICTURE = Path(__file__).parents[2] / "docs" / "explanation" / "images" / "factories.svg"
NAIVE = ("by turns", "at random")
SHOWN = ("by turns", "at random", "heuristic", "hybrid", "swift", "demand")
PANELS = {"makespan, min": "minutes until all is done", "workers held": "workers held, of 20", "wasted": "pilots for nothing"}
LEFT, PANEL, GAP, TOP, ROW = 90, 210, 30, 46, 26


def main() -> None:
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    limited = [name for name in MAKERS if name != "demand, no limit"]
    show_table("240 tasks on hostile grids", compare(seeds, MAKERS))
    long = compare(seeds, limited, bag=TaskBag(960))
    show_table("960 tasks on hostile grids", long)
    show_gains(long)
    show_table("240 tasks on good, uneven grids", compare(seeds, limited, draw_uneven_grid))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(long))


def show_table(title: str, results: dict[str, list[GridFigures]]) -> None:
    print(f"\n{title}\n\n| factory | " + " | ".join(FIGURES) + " |")
    print("|---" * (len(FIGURES) + 1) + "|")
    for name, measured in results.items():
        spreads = [MeanAndDeviation.of(figure(one) for one in measured) for figure in FIGURES.values()]
        print(f"| {name} | " + " | ".join(f"{spread.mean:.1f} ± {spread.deviation:.1f}" for spread in spreads) + " |")


def show_gains(results: dict[str, list[GridFigures]]) -> None:
    """Prints gains over random choice, seed by seed."""
    naive = results["at random"]
    for name in SHOWN[2:]:
        for title, figure in FIGURES.items():
            gain = gains(naive, results[name], figure)
            more = sum(figure(one) > figure(two) for one, two in zip(results[name], naive, strict=True))
            print(f"{name}, {title}: {gain.mean:+.1f}, error of the mean {gain.error:.1f}, more on {more} of {gain.count} grids")


def draw(results: dict[str, list[GridFigures]]) -> str:
    width, height = LEFT + len(PANELS) * (PANEL + GAP), TOP + len(SHOWN) * ROW + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    lines += [f'<text x="{LEFT - 10}" y="{height_of(row) + 4}" text-anchor="end">{name}</text>' for row, name in enumerate(SHOWN)]
    for number, (figure, title) in enumerate(PANELS.items()):
        spreads = [MeanAndDeviation.of(FIGURES[figure](one) for one in results[name]) for name in SHOWN]
        lines += draw_panel(LEFT + number * (PANEL + GAP), title, spreads)
    return "\n".join([*lines, "</svg>", ""])


def height_of(row: int) -> float:
    return TOP + (row + 0.5) * ROW


def draw_panel(left: float, title: str, spreads: list[MeanAndDeviation]) -> list[str]:
    """Draws a dot for the mean, a thick line for twice its standard error, and a thin line for the standard deviation over grids."""
    low = min(spread.mean - spread.deviation for spread in spreads)
    high = max(spread.mean + spread.deviation for spread in spreads)

    def across(value: float) -> str:
        return f"{left + (value - low) / (high - low) * PANEL:.1f}"

    bottom = TOP + len(spreads) * ROW
    lines = [f'<text x="{left + PANEL / 2}" y="{TOP - 16}" text-anchor="middle" font-weight="bold">{title}</text>']
    lines.append(f'<line x1="{left}" x2="{left + PANEL}" y1="{bottom}" y2="{bottom}" stroke="#999"/>')
    for mark in (low, (low + high) / 2, high):
        lines.append(f'<text x="{across(mark)}" y="{bottom + 16}" text-anchor="middle" fill="#666">{mark:.3g}</text>')
    for row, spread in enumerate(spreads):
        color, y = ("#888" if SHOWN[row] in NAIVE else "#1668a8"), height_of(row)
        for reach, thickness in ((spread.deviation, 1), (2 * spread.error, 5)):
            ends = f'x1="{across(spread.mean - reach)}" x2="{across(spread.mean + reach)}"'
            lines.append(f'<line {ends} y1="{y}" y2="{y}" stroke="{color}" stroke-width="{thickness}"/>')
        lines.append(f'<circle cx="{across(spread.mean)}" cy="{y}" r="4" fill="{color}"/>')
    return lines


if __name__ == "__main__":
    main()
