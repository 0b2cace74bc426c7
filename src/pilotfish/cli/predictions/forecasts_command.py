"""Implements forecasts: shows learned task times, link speeds and queue waits, each with the error of its recent forecasts."""

from __future__ import annotations

from typing import Any

import click

from pilotfish.cli.shared_options import json_option, pool_option
from pilotfish.cli.terminal.screen import Column, Screen, clean, duration, size
from pilotfish.client.session import connect_read_only


def _forecast(row: dict[str, Any]) -> str:
    value = row["forecast"]
    if value is None:
        return "-"
    return duration(value) if row["unit"] == "s" else f"{size(value)}/s"


COLUMNS = (
    Column("ITEM", lambda row: row["what"], elastic=True),
    Column("FORECAST", _forecast, right=True),
    Column("MEDIAN ERROR", lambda row: "-" if row.get("error") is None else f"{row['error']:.0%}", right=True),
    Column("SAMPLES", lambda row: f"{row['samples']:,}" if row.get("samples") else "-", right=True),
    Column("PREDICTOR", lambda row: row.get("predictor") or "-", elastic=True),
)


@click.command()
@pool_option
@json_option
def forecasts(pool: str, as_json: bool) -> None:
    """Show learned task times, link speeds and queue waits.

    ITEM is a task class, the queue wait of pilots at a site, or the link to a site. For a task class, the value is the time of a task of
    cost 1 on a worker of average speed. Moldable tasks have a value for each number of cores: "on N cores". For a queue wait, the value is
    a time. For a link, the value is the bandwidth. MEDIAN ERROR is the median error of recent forecasts. PREDICTOR is the method whose
    recent forecasts had the smallest error.
    """
    screen = Screen.of()
    answer = connect_read_only(pool).ask("forecasts")
    if as_json:
        screen.json(answer)
        return
    if not answer["forecasts"]:
        screen.line("There are no forecasts yet: no task has ended, no pilot has started, and no file was sent to a site.")
        return
    screen.table(COLUMNS, answer["forecasts"])
    screen.line()
    screen.line(f"Policy {answer['policy']}" + (f": {clean(answer['reason'])}." if answer["reason"] else "."))
