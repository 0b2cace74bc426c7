"""Implements data: where files are, current transfers, and where files came from."""

from __future__ import annotations

import os
from typing import Any

import click

from pilotfish.cli.shared_options import json_option, pool_option, run_argument
from pilotfish.cli.terminal.screen import Column, Screen, clean, describe_transfers, plural, size
from pilotfish.client.session import PoolSession, connect_read_only, find_run
from pilotfish.client.task_output import fetch_output
from pilotfish.errors import PilotfishError

SHOWN = 20
DIGITS = 12
SITE_COLUMNS = (
    Column("SITE"),
    Column("WORKERS", right=True),
    Column("FILES", right=True),
    Column("SIZE", right=True),
    Column("NEEDED", right=True),
    Column("CACHE HITS", right=True),
    Column("FROM PEERS", right=True),
    Column("FROM STORAGE", right=True),
    Column("FROM MASTER", right=True),
)
HELD = 4
CONTENT_COLUMNS = (
    Column("CONTENT"),
    Column("SIZE", right=True),
    Column("NAME", elastic=True),
    Column("NEEDED BY", right=True),
    Column("AT MASTER"),
    Column("WORKERS", elastic=True),
    Column("TRANSFER", elastic=True),
)
FETCHED = ("peers", "storage", "master")


@click.command()
@run_argument()
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help=f"Show at most N rows.  [default: {SHOWN}; with --json 10000]")
@click.option("--offset", type=click.IntRange(min=0), metavar="N", default=0, help="Skip the first N rows.")
@pool_option
@json_option
def data(run: str | None, limit: int | None, offset: int, pool: str, as_json: bool) -> None:
    """Show files, where they are, and transfers.

    RUN is its number or name; by default all runs. Files up to 64 KiB are sent with their tasks and are not listed. Files in transfer
    come first, then files that most tasks need.
    """
    screen = Screen.of()
    master = connect_read_only(pool)
    chosen = {} if run is None else {"run": find_run(master, run)["run"]}
    limits = {"limit": limit or SHOWN} if limit or not as_json else {}
    answer = master.ask("data", offset=offset, **chosen, **limits)
    for row in answer["contents"]:
        row.update(_check_user_file(row))
    if as_json:
        screen.json(answer)
        return
    if not answer["total"] and not answer["moving"]:
        whose = f"No task of run {chosen['run']}" if chosen else "No task"
        screen.line(f"{whose} needs or made a file larger than 64 KiB; smaller files are sent with their tasks.")
        return
    _show_totals(screen, answer)
    if answer["sites"]:
        screen.line()
        # What workers fetched is counted for all runs together.
        columns = SITE_COLUMNS if not chosen else SITE_COLUMNS[:HELD]
        screen.table(columns, [_site_cells(row)[: len(columns)] for row in answer["sites"]])
    if answer["contents"]:
        screen.line()
        names = _names(master, answer["contents"])
        screen.table(CONTENT_COLUMNS, [_content_cells(row, names) for row in answer["contents"]])
    shown = offset + len(answer["contents"])
    if answer["total"] > shown:
        of_run = f" {chosen['run']}" if chosen else ""
        screen.line(f"... {answer['total'] - shown:,} more: pilotfish data{of_run} --offset {shown}")


def _check_user_file(row: dict[str, Any]) -> dict[str, Any]:
    """Check whether a user's file, if the pool has no copy, is still as it was at submission."""
    if not row["path"] or row.get("stored"):
        return {}
    try:
        status = os.stat(row["path"])
    except (FileNotFoundError, NotADirectoryError):
        return {"home": False, "file": "gone"}
    except OSError:
        return {}
    same = (status.st_size, status.st_mtime_ns) == (row["size"], row.get("mtime_ns"))
    return {} if same else {"home": False, "file": "changed"}


def _show_totals(screen: Screen, answer: dict[str, Any]) -> None:
    inputs = answer["inputs"]
    made = answer["total"] - inputs["contents"]
    parts = [f"{inputs['contents']:,} of yours ({size(inputs['bytes'])})"] if inputs["contents"] else []
    parts += [f"{made:,} made by tasks ({size(answer['bytes'] - inputs['bytes'])})"] if made else []
    if parts:  # a new output is counted when it has arrived
        screen.line(f"{plural(answer['total'], 'file')}, {size(answer['bytes'])}: {', '.join(parts)}.")
    if answer["moving"]:
        screen.line(screen.paint(f"{describe_transfers(answer['moving'])}.", "blue"))
    if answer["waiting_tasks"]:
        waiting = answer["waiting_tasks"]
        screen.line(
            f"{plural(waiting, 'task')} {'waits' if waiting == 1 else 'wait'} at workers for {'its' if waiting == 1 else 'their'} inputs."
        )
    if answer["nowhere"]:
        text = f"{plural(answer['nowhere'], 'file')} stayed on workers that are not connected"
        screen.line(f"{screen.paint('warning:', 'yellow')} {text}; the next worker on the same node has what its cache still holds")
    if answer["run"] is None and _needed(answer["got"]):
        screen.line(_describe_sources(answer["got"]))


def _describe_sources(got: dict[str, dict[str, int]]) -> str:
    """Describe cache hits and sources in one sentence."""
    fetched = [f"{size(got[source]['bytes'])} {source_text}" for source, source_text in _FROM.items() if got[source]["contents"]]
    hits = f"Of {plural(_needed(got), 'file')} that tasks needed, {_share(got['here']['contents'], _needed(got))} were cache hits"
    return f"{hits}{'; the others: ' if fetched else ''}{', '.join(fetched)}."


_FROM = {"peers": "from other workers", "storage": "from disks at the site", "master": "from the master"}


def _needed(got: dict[str, dict[str, int]]) -> int:
    return sum(row["contents"] for row in got.values())


def _share(part: int, whole: int) -> str:
    return f"{100 * part // whole} %" if whole else "-"


def _site_cells(row: dict[str, Any]) -> list[object]:
    got = row["got"]
    needed = _needed(got)
    fetched = [size(got[source]["bytes"]) for source in FETCHED]
    return [
        row["site"] or "-",
        row["workers"],
        f"{row['contents']:,}",
        size(row["bytes"]),
        f"{needed:,}",
        _share(got["here"]["contents"], needed),
        *fetched,
    ]


def _content_cells(row: dict[str, Any], names: dict[str, str]) -> list[object]:
    return [
        row["digest"][:DIGITS],
        size(row["size"]),
        names.get(row["digest"]) or (f"made by {row['made_by']}" if row["made_by"] else "-"),
        plural(row["needed_by"], "task") if row["needed_by"] else "-",
        row.get("file") or ("yes" if row["home"] else "nowhere" if row["nowhere"] else "no"),
        ", ".join(_holders(site, count, row["workers"]) for site, count in row["sites"].items()) or "-",
        ", ".join(_describe_transfer(transfer) for transfer in row["moving"]) or "-",
    ]


def _holders(site: str, count: int, workers: list[str]) -> str:
    """Return the one worker that has the content, or the number of workers at the site."""
    return clean(workers[0]) if len(workers) == 1 else f"{site or 'elsewhere'} ({plural(count, 'worker')})"


def _describe_transfer(transfer: dict[str, Any]) -> str:
    percent = 100 * transfer["done_bytes"] // transfer["bytes"] if transfer["bytes"] else 100
    return f"{'from ' if transfer['to'] == 'master' else ''}{transfer['worker']} {percent} %"


def _below_here(path: str) -> str:
    relative = os.path.relpath(path)
    return "" if relative.startswith("..") else relative


def _names(master: PoolSession, rows: list[dict[str, Any]]) -> dict[str, str]:
    """Map digests to names. Names of outputs are in their tasks' results; ``run --input`` accepts them as shown."""
    names = {row["digest"]: _below_here(row["path"]) or row["name"] for row in rows if row["name"]}
    for maker in dict.fromkeys(row["made_by"] for row in rows if not row["name"] and row["made_by"]):
        try:
            output = fetch_output(master, master.ask("task", task=maker))
        except PilotfishError:
            continue  # the run was deleted
        if output.completed is not None:
            names.update((file.digest, f"{maker}:{name}") for name, file in output.completed.files.items() if file.digest)
    return names
