"""Defines options that several commands share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from pilotfish.cli import completions
from pilotfish.cli.terminal.pool_hints import DEFAULT_POOL, POOL_VARIABLE, mean
from pilotfish.client.run_options import read_deadline, read_share

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _mean(context: click.Context, parameter: click.Parameter, pool: str) -> str:
    mean(pool)
    return pool


def pool_option(function: Decorated) -> Decorated:
    return click.option(
        "--pool",
        metavar="NAME",
        default=DEFAULT_POOL,
        envvar=POOL_VARIABLE,
        callback=_mean,
        show_default=True,
        shell_complete=completions.complete_pool,
        help="Which pool is meant.",
    )(function)


def json_option(function: Decorated) -> Decorated:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(function)


def _read_share(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, float] | None:
    return None if text is None else read_share(text, "--share")


def _read_deadline(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    return 0.0 if text == "none" else read_deadline(text, "--deadline", time.time())


def share_option(function: Decorated) -> Decorated:
    told = (
        "Shares get the pool in turns, WEIGHT times as much as others; runs of one share go in order.  [default: that of all runs without]"
    )
    return click.option("--share", metavar="NAME[:WEIGHT]", callback=_read_share, shell_complete=completions.complete_share, help=told)(
        function
    )


def deadline_option(function: Decorated) -> Decorated:
    told = "When it should have ended: 18:00, 2h from now, 2030-05-01T12:00, or none. It goes before others if it would be late."
    return click.option("--deadline", metavar="WHEN", callback=_read_deadline, help=told)(function)


def run_argument(offered: Callable[[dict[str, Any]], bool] = completions.any_run) -> Callable[[Decorated], Decorated]:
    """Argument RUN, by default the last run; ``offered`` selects the runs that completion suggests."""
    return click.argument("run", required=False, metavar="[RUN]", shell_complete=completions.complete_run(offered))
