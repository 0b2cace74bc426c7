"""Writes tables, colours and safe text.

Task output, names and host names pass through ``clean`` before they are shown, so that no task can move the cursor, set the title or
forge a line. Only ``logs --raw`` and ``tail --raw`` write the bytes of a task unchanged to a terminal.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from pilotfish.cli.terminal.pool_hints import with_pool, with_pool_in_data
from pilotfish.model.quantities import show_bytes, show_seconds

ELLIPSIS = "…"
GAP = "  "
MIN_WIDTH = 6
"""Minimum width of a column, even on a narrow terminal."""

COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "bold": "1", "dim": "2"}
STATE_COLOURS = {
    "done": "green",
    "failed": "red",
    "lost": "red",
    "cancelled": "yellow",
    "incomplete": "yellow",
    "running": "blue",
    "waiting": "dim",
    "left": "dim",
    "paused": "yellow",
}


def clean(text: object) -> str:
    r"""Return the text as one line in which control characters are visible. For example, an escape becomes ``\x1b``."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(_visible(character) for character in shown)


def _visible(character: str) -> str:
    if character in "\n\r\t":
        return " "
    # Cc: control characters. Cf: direction changes and invisible characters. Cs: bytes that were not UTF-8.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return character


def width_of(text: str) -> int:
    """Return the number of terminal cells that the text fills."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def cut(text: str, width: int) -> str:
    """Cut the text to ``width`` cells. A cut text ends with an ellipsis."""
    if width_of(text) <= width:
        return text
    kept, used = [], 0
    for character in text:
        used += width_of(character)
        if used > width - 1:
            break
        kept.append(character)
    return "".join(kept) + ELLIPSIS


@dataclass(slots=True)
class Screen:
    """An output stream. It knows its width, and whether it can show colours."""

    stream: TextIO
    is_terminal: bool
    coloured: bool
    width: int

    @classmethod
    def of(cls, stream: TextIO | None = None) -> Screen:
        stream = stream or sys.stdout
        is_terminal = stream.isatty()
        # Any value of NO_COLOR that is not empty switches colours off: see https://no-color.org.
        coloured = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(stream, is_terminal, coloured, shutil.get_terminal_size((100, 24)).columns if is_terminal else 0)

    @property
    def is_utf8(self) -> bool:
        return (self.stream.encoding or "").lower().replace("-", "") == "utf8"

    def line(self, text: str = "") -> None:
        """Write one line of text, and add ``--pool`` to the commands in the text. The caller must call ``clean`` on text of the user."""
        self._write(with_pool(text))

    def _write(self, text: str) -> None:
        """Write one line. Replace characters that the encoding of the stream does not have, because an error would hide the whole line."""
        encoding = self.stream.encoding
        if not text.isascii() and encoding and not self.is_utf8:
            text = text.encode(encoding, "replace").decode(encoding)
        self.stream.write(text + "\n")

    def paint(self, text: str, colour: str) -> str:
        if not self.coloured or colour not in COLOURS:
            return text
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"

    def table(self, columns: Sequence[Column], rows: Iterable[Any]) -> None:
        for line in lay_out(columns, _cells(columns, rows), self.width):
            self._write(self._painted_states(line))

    def _painted_states(self, line: str) -> str:
        if not self.coloured:
            return line
        words = line.split(" ")
        return " ".join(self.paint(word, STATE_COLOURS[word]) if word in STATE_COLOURS else word for word in words)

    def fields(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Write names and values, one pair per line."""
        listed = [(name, clean(value)) for name, value in pairs]
        longest = max((len(name) for name, _ in listed), default=0)
        for name, value in listed:
            self._write(f"{self.paint(name.ljust(longest), 'dim')}  {value}")

    def json(self, data: Any) -> None:
        """Write one JSON document. It is in ASCII, so that it is safe on any terminal."""
        self._write(json.dumps(with_pool_in_data(data), indent=2 if self.is_terminal else None, default=str))

    def csv(self, rows: Iterable[Sequence[object]]) -> None:
        """Write lines of CSV. On a terminal, control characters are escaped. Files and pipes get the text unchanged."""
        line = io.StringIO(newline="")
        # Before Python 3.13, csv quotes "\r" and "\n" in a value only if the line terminator contains them.
        writer = csv.writer(line, lineterminator="\r\n")
        for row in rows:
            writer.writerow([clean(cell) if self.is_terminal and isinstance(cell, str) else cell for cell in row])
            text = line.getvalue().removesuffix("\r\n")
            self._write(text if text.isascii() else text.encode("utf-8", "backslashreplace").decode())
            line.seek(0)
            line.truncate()

    def json_list(self, items: Iterable[Any]) -> None:
        """Write one JSON list item by item, because a long list possibly does not fit into memory."""
        between, encode = "[", json.JSONEncoder(indent=2 if self.is_terminal else None, default=str).encode
        for item in items:
            self.stream.write(between + (encode(item) if self.is_terminal else _compact_json(item) or encode(item)))
            between = ",\n" if self.is_terminal else ", "
        self.line("]" if between != "[" else "[]")


def _compact_json(item: Any) -> str:
    """Return the item as JSON. This is much faster than the module ``json``. Return an empty text if the item has characters that are not
    ASCII, or if msgspec refuses the item. The caller then uses ``json``."""
    from msgspec.json import encode  # imported here, because the help does not need it

    try:
        encoded = encode(item, enc_hook=str)
    except (TypeError, ValueError, OverflowError):
        return ""
    return encoded.decode("ascii") if encoded.isascii() else ""


@dataclass(frozen=True, slots=True)
class Column:
    """A table column. ``cell`` returns the value to show for a row. On a narrow terminal, ``elastic`` columns shrink before the other
    columns.
    """

    title: str
    cell: Callable[[Any], object]
    right: bool = False
    elastic: bool = False


def lay_out(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return the lines of the table. A width of 0 means no limit, because output to a file or pipe is never cut."""
    widths = [max([width_of(column.title), *(width_of(row[place]) for row in rows)]) for place, column in enumerate(columns)]
    if width:
        _squeeze(widths, columns, width - len(GAP) * (len(columns) - 1))
    lines = [_join([column.title for column in columns], columns, widths)]
    lines += [_join(row, columns, widths) for row in rows]
    return lines


def _cells(columns: Sequence[Column], rows: Iterable[Any]) -> list[list[str]]:
    return [[clean(column.cell(row)) for column in columns] for row in rows]


def fits(columns: Sequence[Column], rows: Iterable[Any], width: int) -> bool:
    """Return whether the table fits into ``width`` terminal cells without cut text."""
    return max(map(width_of, lay_out(columns, _cells(columns, rows), 0))) <= width


def _squeeze(widths: list[int], columns: Sequence[Column], room: int) -> None:
    """Shrink the widest column again and again until the table fits. Shrink elastic columns first, then all columns. No column becomes
    narrower than MIN_WIDTH."""
    for candidates in ([place for place, column in enumerate(columns) if column.elastic], list(range(len(columns)))):
        while sum(widths) > room and candidates:
            widest = max(candidates, key=lambda place: widths[place])
            if widths[widest] <= MIN_WIDTH:
                break
            widths[widest] -= 1


def _join(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    parts = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        shown = cut(cell, width)
        padding = " " * (width - width_of(shown))
        parts.append(padding + shown if column.right else shown + padding)
    return GAP.join(parts).rstrip()


def duration(seconds: float | None) -> str:
    """Format a number of seconds for people. Return a dash for None."""
    if seconds is None:
        return "-"
    if 0 < seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1000:.1f} ms" if 0.001 <= seconds < 0.01 else show_seconds(max(0.0, seconds))


def size(amount: float | None) -> str:
    return "-" if not amount else show_bytes(amount)


def rate(per_second: float | None) -> str:
    if not per_second:
        return "-"
    if per_second >= 100:
        return f"{per_second:,.0f}/s"
    if per_second >= 0.1:
        return f"{per_second:.1f}/s"
    return f"{per_second * 60:.1f}/min" if per_second * 60 >= 0.1 else f"{per_second * 3600:.1f}/h"


def describe_transfers(moving: dict[str, Any] | None) -> str:
    """Describe the current transfers: ``3 files in transfer, 2.1 GiB of 5 GiB, 120 MiB/s, about 25 s``. Without transfers, return ""."""
    if not moving:
        return ""
    parts = [f"{plural(moving['contents'], 'file')} in transfer", f"{show_bytes(moving['done_bytes'])} of {show_bytes(moving['bytes'])}"]
    if moving.get("rate_bytes_per_s"):
        parts.append(f"{show_bytes(moving['rate_bytes_per_s'])}/s")
    if moving.get("eta_s"):
        parts.append(f"about {show_seconds(max(1, round(moving['eta_s'])))}")
    return ", ".join(parts)


def plural(count: int, noun: str) -> str:
    """Return the count with its noun: ``1 task``, ``1,000 tasks``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class StatusLine:
    """One line of a terminal that is redrawn in place. ``text``: the text that the line shows now, or an empty text."""

    def __init__(self, screen: Screen) -> None:
        self.text = ""
        self._screen = screen

    def draw(self, text: str) -> None:
        # The text is set before it is drawn. If Ctrl-C comes between the two steps, ``clear`` still removes the line.
        self.text = text
        self._screen.stream.write(f"\r\x1b[K{text}")
        self._screen.stream.flush()

    def clear(self) -> None:
        """Remove the line, so that ordinary output can follow."""
        if self.text:
            self._screen.stream.write("\r\x1b[K")
            self._screen.stream.flush()
            self.text = ""
