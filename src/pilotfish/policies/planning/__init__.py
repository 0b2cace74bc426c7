"""Contains planning: the Gantt chart, the heuristics that fill this chart, and the matchers that assign tasks as the chart says."""
