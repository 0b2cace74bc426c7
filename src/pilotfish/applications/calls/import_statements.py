"""Finds the modules that import statements name, in the source of a module and in the code of a function. Executes nothing."""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Iterator

_COMMENT = re.compile(r"#[^\n]*")
_NAMES = r"(\([^)]*\)|(?:[^\n;\\]|\\\n)+)"
"""Matches the names after ``import``: in parentheses, or up to the end of the statement."""
_IMPORT = re.compile(rf"(?:^|[;:])[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import\b[ \t]*{_NAMES}|import\b[ \t]+{_NAMES})", re.MULTILINE)
"""Finds import statements. A parser would be too slow: the first search of hundreds of modules should take milliseconds."""
_NAME = re.compile(r"[\w.]+")
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]


def imports_in_source(text: str, package: str) -> Iterator[str]:
    """Yields the names of modules that a source text possibly imports. For ``from a import b``, also yields ``a.b``, although b can be a
    function.

    ``package``: the package to which relative imports refer.
    """
    for origin, names, plain in _IMPORT.findall(_COMMENT.sub("", text)):
        if plain:
            for part in plain.split(","):
                if match := _NAME.match(part.strip()):
                    yield from _with_parents(match[0])
        else:
            yield from _from_import(_absolute(origin, package), (word for word in _NAME.findall(names) if word != "as"))


def imports_in_code(code: types.CodeType, package: str) -> Iterator[str]:
    """Yields the names of modules that a code object, or a function inside of it, possibly imports when it runs.

    ``package``: the package to which relative imports refer.
    """
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from imports_in_code(constant, package)
    if _IMPORT_NAME not in code.co_code[::2]:
        return
    level, names = None, None  # the two values that Python loads before it imports
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            dots = "." * level if isinstance(level, int) else ""
            yield from _from_import(_absolute(dots + instruction.argval, package), names if isinstance(names, tuple) else ())
        elif instruction.opname != "EXTENDED_ARG":
            level, names = names, instruction.argval


def _from_import(base: str, words: Iterator[str] | tuple[str, ...]) -> Iterator[str]:
    if base:
        yield from _with_parents(base)
    yield from (f"{base}.{word}" if base else word for word in words)


def _absolute(origin: str, package: str) -> str:
    dots = len(origin) - len(origin.lstrip("."))
    if not dots:
        return origin
    parts = package.split(".")[: len(package.split(".")) - dots + 1]
    return ".".join([*parts, *filter(None, [origin[dots:]])])


def _with_parents(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]
