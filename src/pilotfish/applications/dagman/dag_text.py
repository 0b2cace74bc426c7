"""Splits DAGMan files and submit descriptions into lines and words."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pilotfish.errors import BadInput, did_you_mean

MAX_BYTES = 256 << 20
MAX_NUMBER = 1_000_000


@dataclass(frozen=True, slots=True)
class DagLine:
    """A line joined with its continuation lines. ``where``: the file and the line number, for errors."""

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class NodeScript:
    """A PRE or POST script. ``words``: the program and its arguments. An argument can be a macro such as $RETURN."""

    where: str
    words: tuple[str, ...]


def read_lines(path: str, where: str = "") -> Iterator[DagLine]:
    """Yields the lines of a file, without comments. A backslash at the end of a line joins the line with the next line. ``where``: the file
    and line that name ``path``, for errors."""
    try:
        if not os.path.isfile(path):
            raise FileNotFoundError(2, "no such file")
        if os.path.getsize(path) > MAX_BYTES:
            raise OSError(27, "file too large")
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else "it is not UTF-8 text"
        place = f"{where}: " if where else ""
        folder, name = os.path.split(path)
        near = did_you_mean(name, os.listdir(folder or ".")) if os.path.isdir(folder or ".") and not os.path.exists(path) else ""
        hint = near or f"Paths count from where you are: ls {shlex.quote(os.getcwd())}"
        raise BadInput(f"{place}{path[:200]!r}: {reason}", hint) from None
    return _joined(path, text)


def _joined(path: str, text: str) -> Iterator[DagLine]:
    pieces: list[str] = []
    first = 0
    for number, raw in enumerate(text.split("\n"), 1):
        stripped = raw.strip()
        if not stripped or stripped.startswith(("#", "//")):
            continue
        first = first if pieces else number
        pieces.append(stripped.removesuffix("\\"))
        if not stripped.endswith("\\"):
            joined = " ".join(pieces).strip()
            pieces = []
            if joined:
                yield DagLine(f"{path}, line {first}", joined)
    if " ".join(pieces).strip():
        yield DagLine(f"{path}, line {first}", " ".join(pieces).strip())


def words_of(line: DagLine) -> list[str]:
    """Splits a line at blanks. A text in quotes is one word. Inside quotes, the character after a backslash has no special meaning."""
    if '"' not in line.text and "'" not in line.text:
        return line.text.split()
    words: list[str] = []
    word, quote, begun, escaped = "", "", False, False
    for character in line.text:
        if escaped:
            word, escaped = word + character, False
        elif quote:
            if character == "\\":
                escaped = True
            elif character == quote:
                quote = ""
            else:
                word += character
        elif character in "\"'":
            quote, begun = character, True
        elif character.isspace():
            words += [word] if word or begun else []
            word, begun = "", False
        else:
            word += character
    if quote:
        raise BadInput(f"{line.where}: a quote is not closed", f"Put a {quote} where it ends.")
    words += [word] if word or begun else []
    return words if words and words[0] else ["''", *words[1:]]


def take_two(line: DagLine, words: list[str], form: str) -> tuple[str, str, list[str]]:
    if len(words) < 2 or not words[0] or not words[1]:
        raise BadInput(f"{line.where}: something is missing", f"Write: {form}")
    return words[0], words[1], words[2:]


def read_number(text: str, line: DagLine, what: str, least: int = -MAX_NUMBER) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,7}", text) or not least <= int(text) <= MAX_NUMBER:
        raise BadInput(
            f"{line.where}: {what}: {text[:40]!r} is not a whole number" + (f" from {least} on" if least >= 0 else ""), "Write a number."
        )
    return int(text)


def closing_of(opening: str) -> str:
    """Returns the word that ends a submit description inside a DAG file. ``opening``: the word that begins the submit description. "{"
    gives "}", and "@=end" gives "@end". Any word that does not begin a submit description gives ""."""
    if opening.startswith("{"):
        return "}"
    return "@" + opening[2:] if opening.startswith("@=") and len(opening) > 2 else ""


def read_inline(line: DagLine, opening: str, lines: Iterator[DagLine]) -> tuple[tuple[DagLine, ...], list[str]]:
    """Reads a submit description that is in the DAG file itself. Returns its lines, and the words after its closing word."""
    end = closing_of(opening)
    found: list[DagLine] = []
    for inner in lines:
        if inner.text == end or inner.text.startswith(end + " "):
            return tuple(found), words_of(DagLine(inner.where, inner.text))[1:]
        found.append(inner)
    raise BadInput(f"{line.where}: the description does not end", f"Put {end} on a line of its own behind it.")
