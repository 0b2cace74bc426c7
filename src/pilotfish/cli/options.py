"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from pilotfish.cli import completions
from pilotfish.cli.hints import DEFAULT_POOL, POOL_VARIABLE, mean

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


def run_argument(offered: Callable[[dict[str, Any]], bool] = completions.any_run) -> Callable[[Decorated], Decorated]:
    """A run, by default the last; ``offered`` says which of them are worth a suggestion by the shell."""
    return click.argument("run", required=False, metavar="[RUN]", shell_complete=completions.complete_run(offered))
