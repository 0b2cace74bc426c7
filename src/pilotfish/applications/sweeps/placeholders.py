"""Replaces placeholders in commands.

``{alpha}`` becomes the value of the parameter alpha. ``{}`` becomes the line, or the value of the only parameter. ``{#}`` becomes the
number of the task. Only a name in braces is a placeholder: ``awk '{print $1}'``, ``{"json": 1}`` and ``${HOME}`` do not change. Double
braces, ``{{alpha}}``, become literal braces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pilotfish.applications.sweeps.axes import Row
from pilotfish.applications.sweeps.tables import LINE
from pilotfish.errors import BadInput, did_you_mean

NUMBER = "#"
PLACEHOLDER = re.compile(r"(?<![\{$])(\{+)([A-Za-z_][A-Za-z0-9_.-]*|#|)(\}+)")

Fill = Callable[[Row, int], str]


@dataclass(frozen=True, slots=True)
class Template:
    """A text with placeholders. ``fill`` replaces them. Its arguments are the values, in the order of the names, and the task number."""

    text: str
    uses: frozenset[str]
    fill: Fill


def make_template(text: str, names: Sequence[str], where: str) -> Template:
    """Makes a template from a text. ``where``: what errors call the text, such as "the command"."""
    pieces: list[str | int] = []
    uses: set[str] = set()
    literal, end = "", 0
    for match in PLACEHOLDER.finditer(text):
        opening, name, closing = match.groups()
        depth = min(len(opening), len(closing))
        literal += text[end : match.start()] + "{" * (len(opening) - depth + depth // 2)
        if depth % 2:
            known = _resolve(name, names, where)
            uses.add(known)
            pieces += [literal, -1 if known == NUMBER else names.index(known)]
            literal = ""
        else:
            literal += name
        literal += "}" * (len(closing) - depth + depth // 2)
        end = match.end()
    pieces.append(literal + text[end:])
    return Template(text, frozenset(uses), _filler(pieces))


def _resolve(name: str, names: Sequence[str], where: str) -> str:
    """Returns the parameter of a placeholder."""
    if name in names or name == NUMBER:
        return name
    if name == LINE:
        if len(names) == 1:
            return names[0]
        if not names:
            raise BadInput(
                f"{where} has {{}}, but nothing to put there",
                "Add --each-line FILE or --param name=values, or write {{}} to mean the braces.",
            )
        shown = ", ".join(f"{{{known}}}" for known in names)
        raise BadInput(f"{where} has {{}}, but there are several parameters", f"Name the one you mean: {shown}")
    message = f"{where} has {{{name}}}, but there is no parameter {name!r}"
    suggestion = did_you_mean(name, [known for known in names if known])
    raise BadInput(message, suggestion or f"Add --param {name}=values, or write {{{{{name}}}}} to mean the braces.")


def _filler(pieces: list[str | int]) -> Fill:
    """Returns the function that fills a template. Frequent cases have a fast function, because a sweep calls it for each task."""
    if len(pieces) == 1:
        whole = str(pieces[0])
        return lambda values, number: whole
    if len(pieces) == 3 and pieces[0] == pieces[2] == "" and isinstance(pieces[1], int) and pieces[1] >= 0:
        only = pieces[1]
        return lambda values, number: values[only]

    def fill(values: Row, number: int) -> str:
        parts = [piece if isinstance(piece, str) else str(number) if piece < 0 else values[piece] for piece in pieces]
        return "".join(parts)

    return fill


def check_all_used(templates: Sequence[Template], groups: Sequence[Row], where: str) -> None:
    """Checks that the templates use every parameter. For a table, one used column is enough."""
    used = frozenset().union(*(template.uses for template in templates))
    for names in groups:
        if used.isdisjoint(names):
            if names == (LINE,):
                raise BadInput(f"--each-line is given, but {where} does not use the lines", "Write {} where the line should go.")
            shown = " or ".join(f"{{{name}}}" for name in names)
            raise BadInput(
                f"the parameter {'/'.join(names)} is not used: {where} has no {shown}",
                f"Write {shown} where its value should go, or leave it out.",
            )
