"""Contains Gantt planning: the chart, the heuristics that fill the chart, and the matchers that assign tasks by the chart."""
