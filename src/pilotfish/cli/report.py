"""What came of a run, and where its time went."""

from __future__ import annotations

from pilotfish.cli.follow import Outcome
from pilotfish.cli.pool import Master
from pilotfish.cli.render import Screen, duration
from pilotfish.cli.results import show_results

SHOWN_RESULTS = 12


def show_report(screen: Screen, master: Master, outcome: Outcome) -> None:
    """A table of results, then queue, run, overhead and how busy the workers were."""
    rows = master.ask("tasks", run=outcome.run, limit=SHOWN_RESULTS)
    show_results(screen, master, master.ask("run", run=outcome.run), rows)
    if outcome.tasks > len(rows):
        screen.line(f"... and {outcome.tasks - len(rows):,} more: pilotfish results {outcome.run} --limit {outcome.tasks}")
    workers = master.ask("workers", all=False)
    cores = sum(worker["capacity"].get("cores", 0) for worker in workers) or 1.0
    show_times(screen, outcome, cores)


def show_times(screen: Screen, outcome: Outcome, cores: float) -> None:
    shares = outcome.timing.shares(cores)
    screen.line()
    screen.line("Where the time went")
    screen.fields(
        [
            ("  from start to end", duration(shares["elapsed_s"])),
            ("  until the first result", duration(shares["until_first_result_s"])),
            ("  a task waited", f"{duration(shares['mean_queue_s'])} on average for a free core"),
            ("  a task ran", f"{duration(shares['mean_run_s'])} on average, {duration(shares['mean_cpu_s'])} of it computing"),
            ("  overhead", f"{duration(shares['overhead_per_task_s'])} of a core per task: starting, sending, waiting for the last one"),
            ("  workers busy", f"{shares['utilisation']:.0%} of {cores:g} core{'' if cores == 1 else 's'}"),
        ]
    )
    screen.line()
