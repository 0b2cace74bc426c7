"""What a shell offers when Tab is pressed: runs, tasks and pools.

It asks a master that is there, and starts none: nobody who presses Tab wants a process. Whatever goes wrong, nothing is offered.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.shell_completion import CompletionItem

from pilotfish import plugins
from pilotfish.cli.terminal.pool_hints import DEFAULT_POOL
from pilotfish.client.session import PoolSession, connect_if_served
from pilotfish.errors import PilotfishError

ANSWER_S = 2.0
"""A shell that hangs is worse than one that offers nothing."""
MOST_RUNS = 50
ONE_WORD = re.compile(r"[\w@%+=:,./-]+")
"""Other names would have to be quoted, each shell in its own way."""
MOST_TASKS = 100

Row = dict[str, Any]
Rows = list[Row]


def any_run(row: Row) -> bool:
    return True


def unfinished(row: Row) -> bool:
    return bool(row["state"] != "done")


def failed(row: Row) -> bool:
    return bool(row["counts"].get("failed"))


def complete_run(
    wanted: Callable[[Row], bool] = any_run,
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Numbers and names of the runs that a command can do something with."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [item for rows in _asked(context, _runs) for item in _run_items(rows, wanted, incomplete)]

    return complete


def complete_task(wanted: Callable[[Row], bool] = any_run) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Tasks, once a run and a dot are there; before that the runs."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [item for rows in _asked(context, _runs) for item in _task_or_run_items(rows, wanted, incomplete)]

    return complete


def complete_running_task(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tasks, and as long as no run is named those that run just now: they are what somebody wants to see the end of."""
    if "." in incomplete:
        return complete_task()(context, parameter, incomplete)
    running = [str(row["id"]) for rows in _asked(context, _running) for row in rows]
    return [CompletionItem(name) for name in running if name.startswith(incomplete)][:MOST_TASKS]


def complete_subject(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Runs, tasks, workers and sites."""
    workers = [str(row["worker"]) for rows in _asked(context, _workers) for row in rows]
    found = [*complete_task()(context, parameter, incomplete), *(CompletionItem(name) for name in workers if name.startswith(incomplete))]
    return [*found, *complete_site(context, parameter, incomplete)]


def complete_site(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """From what is written: nobody need be asked."""
    from pilotfish.client.sites_file import read_tables, sites_path

    try:
        written = read_tables(sites_path())
    except (PilotfishError, OSError):
        return []
    found = {name: str(table.get("backend", "")) if isinstance(table, dict) else "" for name, table in written.items()}
    return [CompletionItem(name, help=kind) for name, kind in found.items() if name.startswith(incomplete)]


def complete_what_if(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The forms in which something can be asked, with the sites that are written."""
    sites = [item.value for item in complete_site(context, parameter, "")]
    forms = [f"policy={name}" for name in plugins.names("policies")] + ["cores="]
    for site in sites:
        forms += [f"+10 workers {site}", f"+site {site}", f"speed {site}=2"]
    return [CompletionItem(form) for form in forms if form.startswith(incomplete)]


def complete_share(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shares that runs of the pool have."""
    names = {row["share"]: None for rows in _asked(context, _runs) for row in rows if row.get("share")}
    return [CompletionItem(name) for name in names if name.startswith(incomplete) and ONE_WORD.fullmatch(name)]


def complete_site_key(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from pilotfish.config import SITE_KEYS

    return [CompletionItem(f"{key}=") for key in SITE_KEYS if key.startswith(incomplete)] if "=" not in incomplete else []


def complete_add(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """``workers add SITE``."""
    given = context.params.get(parameter.name or "") or ()
    if not given:
        return [CompletionItem("add", help="ask a site for pilots")] if "add".startswith(incomplete) else []
    return complete_site(context, parameter, incomplete) if len(given) == 1 else []


def complete_pool(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from pilotfish.client.pools import find_pools

    return [CompletionItem(pool.name) for pool in find_pools() if not pool.temporary and pool.name.startswith(incomplete)]


def complete_code(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from pilotfish.cli.terminal.error_messages import CAUSES, EXPLANATIONS

    known = {**{code: told.meaning for code, told in EXPLANATIONS.items()}, **CAUSES}
    return [CompletionItem(code, help=meaning) for code, meaning in known.items() if code.lower().startswith(incomplete.lower())]


def complete_command(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    texts = {name: entry.text for section in plugins.SECTIONS.values() for name, entry in section.items()}
    return [CompletionItem(name, help=texts.get(name, "")) for name in plugins.names("commands") if name.startswith(incomplete)]


def _task_or_run_items(rows: Rows, wanted: Callable[[Row], bool], incomplete: str) -> list[CompletionItem]:
    number, dot, index = incomplete.partition(".")
    if dot and number.isdigit():
        return [item for row in rows if str(row["run"]) == number for item in _task_items(row, index)]
    return _run_items(rows, wanted, incomplete)


def _run_items(rows: Rows, wanted: Callable[[Row], bool], incomplete: str) -> list[CompletionItem]:
    """The newest first, as those are meant most often."""
    found: dict[str, CompletionItem] = {}
    for row in sorted(rows, key=lambda row: -int(row["run"])):
        name = str(row["name"])
        for word in (str(row["run"]), *([name] if ONE_WORD.fullmatch(name) else [])):
            if wanted(row) and word.startswith(incomplete) and word not in found:
                found[word] = CompletionItem(word, help=f"{row['tasks']:,} tasks: {row['command']}")
    return list(found.values())[:MOST_RUNS]


def _task_items(row: Row, index: str) -> list[CompletionItem]:
    """Made from the number of tasks alone: a run may have a million of them."""
    return [CompletionItem(f"{row['run']}.{number}") for number in _numbers_like(index, int(row["tasks"]))]


def _numbers_like(start: str, count: int) -> list[int]:
    """The numbers below ``count`` that begin like this: 1 gives 1, 10 to 19, 100 to 199."""
    if start and not (start.isascii() and start.isdigit()):
        return []
    if not start:
        return list(range(min(count, MOST_TASKS)))
    first, width = int(start), 1
    found: list[int] = []
    while first * width < count and len(found) < MOST_TASKS:
        found += [number for number in range(first * width, min((first + 1) * width, first * width + MOST_TASKS)) if number < count]
        if start == "0":
            break
        width *= 10
    return [number for number in found if str(number).startswith(start)][:MOST_TASKS]


def _runs(master: PoolSession) -> Rows:
    rows: Rows = master.ask("runs")
    return rows


def _running(master: PoolSession) -> Rows:
    unfinished_runs = [row["run"] for row in _runs(master) if unfinished(row)]
    return [task for run in unfinished_runs for task in master.ask("tasks", run=run, state="running", limit=MOST_TASKS)]


def _workers(master: PoolSession) -> Rows:
    rows: Rows = master.ask("workers", all=False)
    return rows


def _asked(context: click.Context, question: Callable[[PoolSession], Rows]) -> Iterable[Rows]:
    """The answer of the pool that is meant; none when there is no master, or it takes too long."""
    try:
        with _at_most(ANSWER_S):
            master = connect_if_served(context.params.get("pool") or DEFAULT_POOL)
            if master is not None:
                return [question(master)]
    except (PilotfishError, OSError, TimeoutError):
        pass
    return []


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    def give_up(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
