"""Completes names of runs, tasks, sites and pools in the shell.

Completion asks the master of the pool. If no master runs, completion does not start one. After an error, completion suggests nothing.
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

TIMEOUT_S = 2.0
"""Seconds until completion gives up, because a hanging shell is worse than no suggestion."""
MAX_RUNS = 50
ONE_WORD = re.compile(r"[\w@%+=:,./-]+")
"""Matches names that need no quotes in any shell."""
MAX_TASKS = 100

Row = dict[str, Any]
Rows = list[Row]


def any_run(row: Row) -> bool:
    return True


def unfinished(row: Row) -> bool:
    return bool(row["state"] != "done")


def unsuccessful(row: Row) -> bool:
    return bool(row["counts"].get("failed") or row["counts"].get("cancelled"))


Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_run(is_offered: Callable[[Row], bool] = any_run, with_tasks: bool = False) -> Complete:
    """Complete the numbers and names of runs that the command accepts. ``with_tasks``: after a run and a dot, complete tasks of the run."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        rows = _query_pool(context, _runs)
        number, dot, index = incomplete.partition(".")
        if not (with_tasks and dot and number.isdigit()):
            return _run_items(rows, is_offered, incomplete)
        # The numbers of tasks are made from their count, because asking for a million tasks would take too long.
        counts = [int(row["tasks"]) for row in rows if str(row["run"]) == number]
        return [CompletionItem(f"{number}.{task}") for count in counts for task in _numbers_like(index, count)]

    return complete


def complete_running_task(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete ids of tasks. Before the user has typed a dot, suggest only running tasks, because users want these most often."""
    if "." in incomplete:
        return complete_run(with_tasks=True)(context, parameter, incomplete)
    return _items((row["id"] for row in _query_pool(context, _running)), incomplete)[:MAX_TASKS]


def complete_subject(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete runs, tasks, workers and sites."""
    workers = _items((row["worker"] for row in _query_pool(context, lambda master: master.ask("workers", all=False))), incomplete)
    return [*complete_run(with_tasks=True)(context, parameter, incomplete), *workers, *complete_site(context, parameter, incomplete)]


def complete_site(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete sites from ``sites.toml``, without a master."""
    from pilotfish.client.sites_file import sites_path
    from pilotfish.config import read_tables

    try:
        written = read_tables(sites_path())
    except (PilotfishError, OSError):
        return []
    found = {name: str(table.get("backend", "")) if isinstance(table, dict) else "" for name, table in written.items()}
    return [CompletionItem(name, help=kind) for name, kind in found.items() if name.startswith(incomplete)]


def complete_what_if(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a CHANGE argument of whatif. The suggestions contain the names of the configured sites."""
    sites = [item.value for item in complete_site(context, parameter, "")]
    forms = [f"policy={name}" for name in plugins.names("policies")] + ["cores=", "+8 cores"]
    for site in sites:
        forms += [f"+10 pilots {site}", f"+site {site}", f"speed {site}=2"]
    return _items(forms, incomplete)


def complete_share(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the shares of the runs in the pool."""
    names = dict.fromkeys(row["share"] for row in _query_pool(context, _runs) if row.get("share"))
    return _items(filter(ONE_WORD.fullmatch, names), incomplete)


def complete_site_key(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from pilotfish.config import SITE_KEYS

    return [CompletionItem(f"{key}=") for key in SITE_KEYS if key.startswith(incomplete)] if "=" not in incomplete else []


def complete_add(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete ``pilots add SITE``."""
    given = context.params.get(parameter.name or "") or ()
    if not given:
        return [CompletionItem("add", help="ask a site for pilots")] if "add".startswith(incomplete) else []
    return complete_site(context, parameter, incomplete) if len(given) == 1 else []


def complete_pool(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from pilotfish.client.pools import find_pools

    return _items((pool.name for pool in find_pools() if not pool.temporary), incomplete)


def complete_code(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from pilotfish.cli.terminal.error_messages import CAUSES, EXPLANATIONS

    known = {**{code: explanation.meaning for code, explanation in EXPLANATIONS.items()}, **CAUSES}
    return [CompletionItem(code, help=meaning) for code, meaning in known.items() if code.lower().startswith(incomplete.lower())]


def complete_command(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    texts = {name: entry.text for section in plugins.SECTIONS.values() for name, entry in section.items()}
    return [CompletionItem(name, help=texts.get(name, "")) for name in plugins.names("commands") if name.startswith(incomplete)]


def _items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _run_items(rows: Rows, is_offered: Callable[[Row], bool], incomplete: str) -> list[CompletionItem]:
    """List the runs. The newest run comes first, because users want it most often."""
    found: dict[str, CompletionItem] = {}
    for row in sorted(rows, key=lambda row: -int(row["run"])):
        name = str(row["name"])
        for word in (str(row["run"]), *([name] if ONE_WORD.fullmatch(name) else [])):
            if is_offered(row) and word.startswith(incomplete) and word not in found:
                found[word] = CompletionItem(word, help=f"{row['tasks']:,} tasks: {row['command']}")
    return list(found.values())[:MAX_RUNS]


def _numbers_like(start: str, count: int) -> list[int]:
    """Return the numbers below ``count`` whose first digits are ``start``: for 1, these are 1, 10 to 19, 100 to 199 and so on."""
    if start and not (start.isascii() and start.isdigit()):
        return []
    if not start:
        return list(range(min(count, MAX_TASKS)))
    first, width = int(start), 1
    found: list[int] = []
    while first * width < count and len(found) < MAX_TASKS:
        found += [number for number in range(first * width, min((first + 1) * width, first * width + MAX_TASKS)) if number < count]
        if start == "0":
            break
        width *= 10
    return [number for number in found if str(number).startswith(start)][:MAX_TASKS]


def _runs(master: PoolSession) -> Rows:
    rows: Rows = master.ask("runs")
    return rows


def _running(master: PoolSession) -> Rows:
    unfinished_runs = [row["run"] for row in _runs(master) if unfinished(row)]
    return [task for run in unfinished_runs for task in master.ask("tasks", run=run, state="running", limit=MAX_TASKS)]


def _query_pool(context: click.Context, query: Callable[[PoolSession], Rows]) -> Rows:
    """Send a query to the master and return the rows of its answer. Return no rows if no master runs or if the master does not answer in
    time."""
    try:
        with _at_most(TIMEOUT_S):
            master = connect_if_served(context.params.get("pool") or DEFAULT_POOL)
            return query(master) if master is not None else []
    except (PilotfishError, OSError, TimeoutError):
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
