"""Names the parts of Gantt planning."""
