"""Implements data: shows where files are, which files are being transferred, and from where workers fetched files."""

from __future__ import annotations

import os
from typing import Any

import click

from pilotfish.cli.shared_options import json_option, pool_option, run_argument
from pilotfish.cli.terminal.screen import Column, Screen, clean, describe_transfers, plural, size
from pilotfish.client.outputs.task_output import fetch_output
from pilotfish.client.session import PoolSession, connect_read_only, find_run
from pilotfish.errors import PilotfishError

SHOWN = 20
DIGITS = 12


@click.command()
@run_argument()
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help=f"Show at most N rows.  [default: {SHOWN}; with --json 10000]")
@click.option("--offset", type=click.IntRange(min=0), metavar="N", default=0, help="Skip the first N rows.")
@pool_option
@json_option
def data(run: str | None, limit: int | None, offset: int, pool: str, as_json: bool) -> None:
    """Show files, where they are, and transfers.

    RUN is the number or name of a run; by default all runs. Inputs and outputs up to 64 KiB are sent with their tasks and are not listed.
    Kept files of any size are listed. Files in transfer come first, then lost files, then all other files. Each of these three groups
    begins with the files that the most unfinished tasks need.
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
        screen.line(f"{whose} has kept files, or inputs or outputs larger than 64 KiB; smaller ones are sent with their tasks.")
        return
    _show_totals(screen, answer)
    if answer["sites"]:
        screen.line()
        # The counts of fetched files are not shown for a single run, because the master counts them for all runs together.
        screen.table(SITE_COLUMNS if chosen else (*SITE_COLUMNS, *FETCHED_COLUMNS), answer["sites"])
    if answer["contents"]:
        screen.line()
        names = _names(master, answer["contents"])
        screen.table(CONTENT_COLUMNS, [{**row, "shown_name": names.get(row["digest"])} for row in answer["contents"]])
    shown = offset + len(answer["contents"])
    if answer["total"] > shown:
        of_run = f" {chosen['run']}" if chosen else ""
        screen.line(f"... {answer['total'] - shown:,} more: pilotfish data{of_run} --offset {shown}")


def _check_user_file(row: dict[str, Any]) -> dict[str, Any]:
    """Check whether a file of the user was changed or deleted after submission. If so, and if the pool has no copy of the file, return new
    values for its row. Otherwise, return {}."""
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
    if parts:  # parts are empty before the first transfer of an output is complete
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
    """Describe from where tasks got their files: how many were cache hits, and from where workers fetched the others."""
    fetched = [f"{size(got[source]['bytes'])} {source_text}" for source, source_text in _FROM.items() if got[source]["contents"]]
    hits = f"Of {plural(_needed(got), 'file')} that tasks needed, {_cache_hits(got)} were cache hits"
    return f"{hits}{'; the others: ' if fetched else ''}{', '.join(fetched)}."


_FROM = {"peers": "from other workers", "storage": "from disks at the site", "master": "from the master"}


def _needed(got: dict[str, dict[str, int]]) -> int:
    return sum(row["contents"] for row in got.values())


def _cache_hits(got: dict[str, dict[str, int]]) -> str:
    needed = _needed(got)
    return f"{100 * got['here']['contents'] // needed} %" if needed else "-"


SITE_COLUMNS = (
    Column("SITE", lambda site: site["site"] or "-"),
    Column("WORKERS", lambda site: site["workers"], right=True),
    Column("FILES", lambda site: f"{site['contents']:,}", right=True),
    Column("SIZE", lambda site: size(site["bytes"]), right=True),
)
FETCHED_COLUMNS = (
    Column("NEEDED", lambda site: f"{_needed(site['got']):,}", right=True),
    Column("CACHE HITS", lambda site: _cache_hits(site["got"]), right=True),
    Column("FROM PEERS", lambda site: size(site["got"]["peers"]["bytes"]), right=True),
    Column("FROM STORAGE", lambda site: size(site["got"]["storage"]["bytes"]), right=True),
    Column("FROM MASTER", lambda site: size(site["got"]["master"]["bytes"]), right=True),
)


def _at_master(content: dict[str, Any]) -> str:
    return content.get("file") or ("yes" if content["home"] else "nowhere" if content["nowhere"] else "no")


def _workers(content: dict[str, Any]) -> str:
    return ", ".join(_holders(site, count, content["workers"]) for site, count in content["sites"].items())


CONTENT_COLUMNS = (
    Column("CONTENT", lambda content: content["digest"][:DIGITS]),
    Column("SIZE", lambda content: size(content["size"]), right=True),
    Column("NAME", lambda content: content["shown_name"] or "-", elastic=True),
    Column("NEEDED BY", lambda content: plural(content["needed_by"], "task") if content["needed_by"] else "-", right=True),
    Column("AT MASTER", _at_master),
    Column("WORKERS", lambda content: _workers(content) or "-", elastic=True),
    Column("TRANSFER", lambda content: ", ".join(map(_describe_transfer, content["moving"])) or "-", elastic=True),
)


def _holders(site: str, count: int, workers: list[str]) -> str:
    """Return how many workers at a site have a content, as text. If only one worker has the content, return the name of this worker."""
    return clean(workers[0]) if len(workers) == 1 else f"{site or 'elsewhere'} ({plural(count, 'worker')})"


def _describe_transfer(transfer: dict[str, Any]) -> str:
    percent = 100 * transfer["done_bytes"] // transfer["bytes"] if transfer["bytes"] else 100
    return f"{'from ' if transfer['to'] == 'master' else ''}{transfer['worker']} {percent} %"


def _below_here(path: str) -> str:
    relative = os.path.relpath(path)
    return "" if relative.startswith("..") else relative


def _names(master: PoolSession, rows: list[dict[str, Any]]) -> dict[str, str]:
    """Map the digest of each content to the name to show. An output is named ``3.0:mesh.bin``, as in ``run --input``."""
    names = {row["digest"]: f"made by {row['made_by']}" for row in rows if row["made_by"]}
    names |= {row["digest"]: _below_here(row["path"]) or row["name"] for row in rows if row["name"]}
    for maker in dict.fromkeys(row["made_by"] for row in rows if not row["name"] and row["made_by"]):
        try:
            output = fetch_output(master, master.ask("task", task=maker))
        except PilotfishError:
            continue  # the user has deleted the run
        if output.completed is not None:
            names.update((file.digest, f"{maker}:{name}") for name, file in output.completed.files.items() if file.digest)
    return names
