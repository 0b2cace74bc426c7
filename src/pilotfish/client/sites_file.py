"""Changes sites.toml without losing its comments.

The text is split into statements: a header, a key with its value, a comment or a blank line. Each statement is kept, replaced or removed.
The new text is parsed and checked before it is written: it must have the wanted values, and all other sites must be unchanged.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotfish.config import home, parse_toml, read_toml
from pilotfish.errors import BadInput
from pilotfish.store.keyring import write_private
from pilotfish.store.pool_directory import make_private_directory

BARE = re.compile(r"[A-Za-z0-9_-]+")
Table = dict[str, Any]


def sites_path() -> Path:
    return home() / "sites.toml"


def write_site(path: Path, name: str, table: Table | None) -> None:
    """Writes the table of one site and keeps all other tables. If ``table`` is None, removes the site."""
    text = read_toml(path)
    before = parse_toml(path, text)
    wanted = {key: value for key, value in before.items() if key != name} | ({name: table} if table is not None else {})
    if table is None:
        after = without_table(text, name)
    elif name in before:
        after = with_changes(text, name, before[name], table)
    else:
        after = with_table(text, name, table)
    try:
        as_wanted = tomllib.loads(after) == wanted
    except (ValueError, RecursionError):
        as_wanted = False
    if not as_wanted:
        raise BadInput(
            f"{path}: site {name} is written in a way that cannot be changed from here",
            f"write it as a table, [{show_key(name)}], or edit it",
        )
    try:
        # If the path is a symbolic link, the target of the link is written: some users keep their settings in a different directory.
        write_private(path.resolve(), after.encode())
    except UnicodeEncodeError:
        raise BadInput(f"site {name}: what is to be written is not UTF-8", "use other characters") from None


@contextmanager
def editing(path: Path) -> Iterator[None]:
    """Locks the directory of the file during the ``with`` block, so that no other process changes the file between reading and writing."""
    directory = os.open(make_private_directory(path.parent), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


# --- statements -----------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TomlStatement:
    """One statement of TOML. ``header``: in a header, the path of the table that begins here. ``key``: in a key with its value, the first
    part of the key. A comment or blank line has neither."""

    text: str
    header: tuple[str, ...] = ()
    key: str | None = None


def statements(text: str) -> list[TomlStatement]:
    """Splits a text into statements. A statement can have several lines. It ends as soon as its lines together are valid TOML."""
    found: list[TomlStatement] = []
    waiting = ""
    for line in text.splitlines(keepends=True):
        waiting += line
        try:
            parsed = tomllib.loads(waiting)
        except tomllib.TOMLDecodeError:
            continue
        if waiting.lstrip().startswith("["):
            found.append(TomlStatement(waiting, header=_path_of(parsed)))
        else:
            found.append(TomlStatement(waiting, key=next(iter(parsed), None)))
        waiting = ""
    return [*found, *([TomlStatement(waiting)] if waiting else [])]


def _path_of(parsed: Any) -> tuple[str, ...]:
    path: tuple[str, ...] = ()
    while isinstance(parsed, dict) and parsed:
        (key, parsed), *_ = parsed.items()
        path += (key,)
    return path


# --- changes --------------------------------------------------------------------------------------------------------------------------


def with_table(text: str, name: str, table: Mapping[str, Any]) -> str:
    """Returns the text with a new table at its end."""
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return f"{text}{gap}[{show_key(name)}]\n" + "".join(f"{show_key(key)} = {show_value(value)}\n" for key, value in table.items())


def with_changes(text: str, name: str, before: Table, table: Table) -> str:
    """Returns the text with the changed table. Changed keys keep their place. New keys are added at the end of the table. Keys that are in
    ``before`` and not in ``table`` are removed."""
    pending = {key: value for key, value in table.items() if key not in before or before[key] != value}
    changed = {*pending, *(key for key in before if key not in table)}
    lines: list[TomlStatement] = []
    inside: tuple[str, ...] = ()
    last = 0
    for statement in statements(text):
        inside = statement.header or inside
        # If a changed key is a subtable, its lines are removed here, because the whole key is written again.
        if inside[:1] == (name,) and len(inside) > 1 and inside[1] in changed:
            continue
        if inside == (name,) and statement.key is not None and statement.key in changed:
            if statement.key in pending:
                value = f"{show_key(statement.key)} = {show_value(pending.pop(statement.key))}"
                lines.append(TomlStatement(f"{value}{_trailing_comment(statement.text)}\n"))
                last = len(lines)
            continue
        lines.append(statement)
        if inside == (name,) and (statement.header or statement.key is not None):
            last = len(lines)
    if lines and not lines[last - 1].text.endswith("\n"):
        lines[last - 1].text += "\n"
    lines[last:last] = [TomlStatement(f"{show_key(key)} = {show_value(value)}\n") for key, value in pending.items()]
    return "".join(statement.text for statement in lines)


def without_table(text: str, name: str) -> str:
    """Returns the text without a table, its subtables and the comment directly above it. A comment directly above the next table stays."""
    kept: list[TomlStatement] = []
    removed: list[TomlStatement] = []
    inside: tuple[str, ...] = ()
    for statement in statements(text):
        if statement.header and inside[:1] == (name,) and statement.header[:1] != (name,):
            kept += _comments_above(removed)
            removed = []
        if statement.header[:1] == (name,) and inside[:1] != (name,):
            del kept[len(kept) - len(_comments_above(kept)) :]
        inside = statement.header or inside
        (removed if inside[:1] == (name,) else kept).append(statement)
    return "".join(statement.text for statement in kept)


def _comments_above(lines: list[TomlStatement]) -> list[TomlStatement]:
    count = 0
    while count < len(lines) and lines[-1 - count].text.lstrip().startswith("#"):
        count += 1
    return lines[len(lines) - count :]


def _trailing_comment(text: str) -> str:
    """Returns the comment after a value, with the space before the comment."""
    parsed = tomllib.loads(text)
    for place in (match.start() for match in re.finditer(r"\s*#", text)):
        try:
            if tomllib.loads(text[:place]) == parsed:
                return text[place:].rstrip("\n")
        except tomllib.TOMLDecodeError:
            continue
    return ""


# --- values ---------------------------------------------------------------------------------------------------------------------------


def show_key(key: str) -> str:
    return key if BARE.fullmatch(key) else show_value(key)


def show_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{show_key(key)} = {show_value(statement)}" for key, statement in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return "[" + ", ".join(show_value(statement) for statement in value) + "]"
