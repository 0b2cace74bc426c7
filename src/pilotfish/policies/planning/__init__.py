"""Gantt planning: the chart, the heuristics that fill it, and the matchers that follow it."""
