"""Reads parameter values from text files with one value per line, and from CSV, TSV and JSON files."""

from __future__ import annotations

import atexit
import csv
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pilotfish import plugins
from pilotfish.applications.sweeps.axes import Axis, ListedValues, Row, file_axis
from pilotfish.errors import BadInput, did_you_mean

LINE = ""
"""Name of the parameter with the lines of ``--each-line``. ``{}`` stands for the value of this parameter."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
SMALL_FILE_BYTES = 1 << 20
MAX_PIPE_BYTES = 1 << 30
"""Maximum number of bytes that are read from a pipe, because a device such as /dev/zero has no end."""


def read_lines(path: str) -> Axis:
    """Reads one value per line of a file, without blank lines. The path '-' means standard input."""
    option = f"--each-line {path}"
    if path == "-":
        return _not_empty(ListedValues((LINE,), list(_values_of(without_nul(sys.stdin, option)))), option)
    return _not_empty(_from_file(existing_file(path, "--each-line"), (LINE,), _lines_of), option)


def read_table(path: str) -> Axis:
    """Reads a table. The suffix of the file selects the reader; an unknown suffix means CSV. Each column is a parameter."""
    file = existing_file(path, "--params-from")
    suffix = file.suffix[1:]
    return _not_empty(_from_plugin(suffix if suffix in plugins.names("sweeps") else "csv", str(file)), f"--params-from {path}")


def _from_plugin(name: str, path: str) -> Axis:
    axis = plugins.load("sweeps", name)(path)
    if not isinstance(axis, Axis):
        plugin = plugins.find("sweeps", name)
        raise plugins.PluginBroken(f"{plugin} gave no Axis with names and rows", f"pip uninstall {plugin.distribution}")
    return axis


def read_csv(path: str) -> Axis:
    return _from_file(Path(path), _csv_names(Path(path)), _csv_rows)


def read_json(path: str) -> Axis:
    return ListedValues(*_json_table(Path(path)))


def read_column(name: str, path: str) -> Axis:
    """Reads the values of ``name=@file``. In a table, the values are the column ``name``. In a JSON list, they are the items. In any other
    file, they are the lines."""
    option = f"--param {name}=@{path}"
    return _not_empty(_column_axis(name, existing_file(path, option)), option)


def _column_axis(name: str, file: Path) -> Axis:
    if file.suffix == ".json":
        content = _load_json(file)
        if isinstance(content, list) and not any(isinstance(item, dict | list) for item in content):
            return ListedValues((name,), [(_scalar(file, name, item),) for item in content])
    if file.suffix in (".csv", ".tsv"):
        column = _column(file, _csv_names(file), name)
        return _from_file(file, (name,), lambda source: ((row[column],) for row in _csv_rows(source)))
    if file.suffix[1:] in plugins.names("sweeps"):
        table = _from_plugin(file.suffix[1:], str(file))
        column = _column(file, table.names, name)
        return ListedValues((name,), [(row[column],) for row in table])
    return _from_file(file, (name,), _lines_of)


def _from_file(file: Path, names: Row, read: Callable[[Path], Iterator[Row]]) -> Axis:
    if file.stat().st_size <= SMALL_FILE_BYTES:
        return ListedValues(names, list(read(file)))
    return file_axis(names, file, read)


def existing_file(path: str, option: str) -> Path:
    """Returns the path of an existing file. For a pipe, returns the path of a copy of its content, because the values are read more than
    once. Raises BadInput if there is no file."""
    file = Path(path)
    if not file.is_file():
        if file.exists() and not file.is_dir():
            return _copy_of_pipe(file, option)
        what = "is a directory" if file.is_dir() else "does not exist"
        siblings = [entry.name for entry in file.parent.iterdir() if entry.is_file()] if file.parent.is_dir() else []
        raise BadInput(f"{option}: the file {path!r} {what}", did_you_mean(file.name, siblings) or f"Look where it is: ls {file.parent}")
    return file


def _copy_of_pipe(pipe: Path, option: str) -> Path:
    """Copies the content of a pipe to a temporary file, which is deleted at the end of the process."""
    copy = tempfile.NamedTemporaryFile(prefix="pilotfish-", suffix=pipe.suffix)  # noqa: SIM115
    atexit.register(copy.close)
    try:
        with pipe.open("rb") as source:
            while chunk := source.read(SMALL_FILE_BYTES):
                if copy.tell() + len(chunk) > MAX_PIPE_BYTES:
                    raise BadInput(f"{option}: more than {MAX_PIPE_BYTES >> 20} MiB from {pipe}", "Write the values to a file first.")
                copy.write(chunk)
    except OSError as error:
        raise BadInput(
            f"{option}: {pipe}: {(error.strerror or 'cannot be read').lower()}", f"Look at its permissions: ls -lL {pipe}"
        ) from None
    copy.flush()
    return Path(copy.name)


def _not_empty(axis: Axis, what: str) -> Axis:
    if len(axis) == 0:
        raise BadInput(
            f"{what} has no values: the sweep would be empty", "Put at least one value into it; lines that are blank do not count."
        )
    return axis


def _column(file: Path, names: Row, name: str) -> int:
    if name not in names:
        raise BadInput(
            f"--param {name}=@{file}: the table has no column {name!r}, only {', '.join(names)}",
            did_you_mean(name, names) or f"To use all its columns write --params-from {file}",
        )
    return names.index(name)


def text_of(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            yield from without_nul(lines, str(file))
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} is not text in UTF-8 (byte {error.start})", f"Convert it: iconv -t utf-8 {file}") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}", f"Look at its permissions: ls -l {file}") from None


def without_nul(lines: Iterable[str], source: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if "\0" in line:
            fix = "No program can be given one. If it ends the values (find -print0), make lines of them: tr '\\0' '\\n' < OLD > NEW"
            raise BadInput(f"{source}, line {number}: it has a NUL character", fix)
        yield line


def _lines_of(file: Path) -> Iterator[Row]:
    return _values_of(text_of(file))


def _values_of(lines: Iterable[str]) -> Iterator[Row]:
    return ((line.rstrip("\r\n"),) for line in lines if line.strip())


def _csv_reader(file: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(text_of(file), delimiter="\t" if file.suffix == ".tsv" else ",", skipinitialspace=True, strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise BadInput(f"{file}, line {reader.line_num}: {error}", 'Quotes in a CSV file are doubled: "a ""b"" c".') from None


def _csv_names(file: Path) -> Row:
    _, header = next(_csv_reader(file), (0, []))
    names = tuple(name.strip() for name in header)
    _check_names(file, names)
    return names


def _csv_rows(file: Path) -> Iterator[Row]:
    rows = _csv_reader(file)
    _, header = next(rows, (0, []))
    for line, row in rows:
        if len(row) != len(header):
            raise BadInput(
                f"{file}, line {line}: {len(row)} values for {len(header)} columns ({', '.join(header)})",
                "Give every row as many values as the first line has names.",
            )
        yield tuple(row)


def _check_names(file: Path, names: Row) -> None:
    hint = "The first line (or the keys) are the parameters' names: letters, digits, '_', '-' and '.', each once."
    if not names:
        raise BadInput(f"{file} is empty: the sweep would be empty", hint)
    for name in names:
        if not NAME.fullmatch(name):
            raise BadInput(f"{file}: the column {name!r} cannot be a parameter's name", hint)
        if names.count(name) > 1:
            raise BadInput(f"{file}: there are two columns {name!r}", hint)


def _load_json(file: Path) -> Any:
    try:
        # Numbers keep their notation: 0.10 does not become 0.1.
        return json.loads("".join(text_of(file)), parse_float=str, parse_int=str)
    except json.JSONDecodeError as error:
        raise BadInput(f"{file}, line {error.lineno}: not JSON ({error.msg})", f"Check it: python3 -m json.tool {file}") from None


def _json_table(file: Path) -> tuple[Row, list[Row]]:
    """Reads a JSON file that contains a list of objects with equal keys, or an object with lists of equal length. Returns the names and the
    rows."""
    content = _load_json(file)
    hint = 'Write a list of objects, [{"a": 1, "b": 2}, ...], or an object of lists, {"a": [1, 2], "b": [3, 4]}.'
    if isinstance(content, dict) and content and all(isinstance(column, list) for column in content.values()):
        lengths = {key: len(column) for key, column in content.items()}
        if len(set(lengths.values())) > 1:
            raise BadInput(f"{file}: its lists differ in length: {lengths}", hint)
        content = [dict(zip(content, row, strict=True)) for row in zip(*content.values(), strict=True)]
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise BadInput(f"{file} is no table", hint)
    names: Row = tuple(content[0]) if content else ("none",)
    _check_names(file, names)
    rows = []
    for number, item in enumerate(content, 1):
        if set(item) != set(names):
            odd = sorted(set(item) ^ set(names))
            raise BadInput(f"{file}, item {number}: its keys differ from the first item's ({', '.join(odd)})", hint)
        rows.append(tuple(_scalar(file, name, item[name]) for name in names))
    return names, rows


def _scalar(file: Path, name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and "\0" not in value:
        return value
    raise BadInput(f"{file}: {name} is {json.dumps(value)}, which cannot stand on a command line", "Use texts, numbers, true or false.")
