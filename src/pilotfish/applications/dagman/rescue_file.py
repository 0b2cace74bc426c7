"""Reads and writes rescue files as DAGMan does: FILE.rescue001, FILE.rescue002, … The file with the highest number lists the DAG nodes that
are done."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pilotfish.applications.dagman.dag_text import read_lines
from pilotfish.errors import BadInput

MAX_RESCUES = 999
OLD = ".old"


class RescueFile(NamedTuple):
    """Selects a rescue file. ``number``: the number of a rescue file, None for the latest rescue file, or 0 for no rescue file. With a
    number, a file that was changed after the time ``written_before`` counts as missing."""

    number: int | None = None
    written_before: float = math.inf


LATEST = RescueFile()


def done_nodes(path: str, known: Iterable[str], which: RescueFile, unread: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    """Returns the path of the rescue file and the names of the nodes in it. Returns "" and [] if there is no rescue file. Raises BadInput
    if the rescue file has an unknown node.

    ``known``: names of all nodes of the DAG. ``unread``: for each sub-DAG that was not read yet, the prefix of its node names, such as
    ``B+``. A node whose name has such a prefix counts as known.
    """
    rescue = _find(path, which)
    if not rescue:
        return "", []
    names, done = set(known), []
    for line in read_lines(rescue):
        keyword, *words = line.text.split()
        if keyword.upper() == "DONE" and words:
            if words[0] not in names and not words[0].startswith(unread):
                raise BadInput(f"{line.where}: there is no node {words[0]!r}", f"If the DAG was changed since, delete it: rm {rescue}")
            done.append(words[0])
    return rescue, done


def _find(path: str, which: RescueFile) -> str:
    if which.number is None:
        return next((str(rescue) for rescue in reversed(_rescues(path))), "")
    if not which.number:
        return ""
    for name in (f"{path}.rescue{which.number:03}", f"{path}.rescue{which.number:03}{OLD}"):
        if os.path.exists(name) and os.stat(name).st_mtime <= which.written_before:
            return name
    raise BadInput(f"{path}: rescue file {which.number} is gone", "")


def number_of(rescue: str) -> int:
    """Returns the number in the name of a rescue file. Returns 0 for an empty name."""
    return int(rescue.removesuffix(OLD).rpartition(".rescue")[2]) if rescue else 0


def write_rescue(path: str, done: Iterable[str]) -> Path | None:
    """Writes a new rescue file with these nodes and returns its path. Returns None if it cannot be written."""
    found = _rescues(path)
    number = number_of(found[-1].name) + 1 if found else 1
    rescue = Path(f"{path}.rescue{min(number, MAX_RESCUES):03}")
    text = "".join(
        ["# Written by pilotfish: these nodes are done. Delete it to run all nodes again.\n", *(f"DONE {name}\n" for name in done)]
    )
    try:
        rescue.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return rescue


def retire_rescues(path: str) -> None:
    """Renames all rescue files after a complete run, so that the next run starts from the beginning."""
    for rescue in _rescues(path):
        try:
            rescue.rename(f"{rescue}{OLD}")
        except OSError:
            return


def _rescues(path: str) -> list[Path]:
    """Returns the rescue files, oldest first."""
    name = re.compile(re.escape(Path(path).name) + r"\.rescue[0-9]{3,9}")
    folder = Path(path).parent
    return sorted((folder / entry for entry in os.listdir(folder) if name.fullmatch(entry)), key=lambda rescue: number_of(rescue.name))
