"""Defines options and arguments that several commands share, and options with former names."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TypeVar, cast

import click

from pilotfish.cli import completions
from pilotfish.cli.terminal.pool_hints import DEFAULT_POOL, POOL_VARIABLE, set_hint_pool
from pilotfish.client.descriptions.run_options import read_deadline, read_share

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _set_hint_pool(context: click.Context, parameter: click.Parameter, pool: str) -> str:
    set_hint_pool(pool)
    return pool


pool_option = click.option(
    "--pool",
    metavar="NAME",
    default=DEFAULT_POOL,
    envvar=POOL_VARIABLE,
    callback=_set_hint_pool,
    shell_complete=completions.complete_pool,
    help=f"Pool to use.  [env: {POOL_VARIABLE}; default: {DEFAULT_POOL}]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _read_deadline(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    return 0.0 if text == "none" else read_deadline(text, "--deadline", time.time())


share_option = click.option(
    "--share",
    metavar="NAME[:WEIGHT]",
    callback=lambda context, parameter, text: None if text is None else read_share(text, "--share"),
    shell_complete=completions.complete_share,
    help="Fair share of the run, and the weight of this share.  [default: one share for all runs without --share]",
)
deadline_option = click.option(
    "--deadline",
    metavar="WHEN",
    callback=_read_deadline,
    help="Time at which the run should be finished: 18:00, 2h, 2030-05-01T12:00 or none. Runs that would be late go first.",
)
sites_option = click.option(
    "--site",
    "sites",
    metavar="NAME[:N]",
    multiple=True,
    shell_complete=completions.complete_site,
    help="Run only at this site from now on, with N pilots; local is this machine. Repeatable.",
)


def run_argument(offered: Callable[[dict[str, Any]], bool] = completions.any_run) -> Callable[[Decorated], Decorated]:
    """Return the argument RUN. Its default is the last run. ``offered`` decides which runs completion suggests."""
    return click.argument("run", required=False, metavar="[RUN]", shell_complete=completions.complete_run(offered))


def samples_option(function: Decorated) -> Decorated:
    """Add the option --samples of predict and whatif."""
    text = "Number of simulated continuations.  [default: depends on the tasks left]"
    return click.option("--samples", type=click.IntRange(1, 10_000), metavar="N", help=text)(
        old_option("--replicas", "--samples")(function)
    )


def timeout_option(function: Decorated) -> Decorated:
    """Add the option --timeout of doctor and site test."""
    text = "Maximum wait for the test pilot."
    return click.option("--timeout", metavar="DURATION", default="5m", show_default=True, help=text)(
        old_option("--patience", "--timeout")(function)
    )


def note_time_unit(limit: str | None) -> None:
    """Print a note about a time limit without a unit, because such a time limit of Slurm is in minutes."""
    if limit is not None and limit.isdecimal():
        print(f"note: --time {limit} is {limit} seconds. For minutes: --time {limit}m", file=sys.stderr)


# --- former names ---------------------------------------------------------------------------------------------------------------------


def note_new_name(old: str, new: str) -> None:
    print(f"note: {old} is now {new}", file=sys.stderr)


class OldOption(click.Option):
    """A hidden option with the former name of an option. It passes its value to the option with the new name."""

    def __init__(self, names: list[str], new: str, **attributes: Any) -> None:
        # The option is eager, so that click processes it before the option that gets its value.
        super().__init__(names, hidden=True, expose_value=False, is_eager=True, help=f"Former name of {new}.", **attributes)
        self.new = new

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> Any:
        if self.name in opts:
            note_new_name(self.opts[0], self.new)
            new_name = next(parameter.name for parameter in ctx.command.params if self.new in parameter.opts)
            cast(MutableMapping[str | None, Any], opts).setdefault(new_name, opts[self.name])
        return super().consume_value(ctx, opts)


class OldWords(click.Argument):
    """A hidden argument for the words of a former form of a command, such as ``workers add SITE``."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        return []


def old_option(old: str, new: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    """Add a hidden option with a former name. The name of its parameter begins with ``old_``, so that it differs from all other
    parameters."""
    return click.option(old, f"old_{old.strip('-')}", cls=OldOption, new=new, **attributes)
