"""Replaces placeholders in commands.

- ``{alpha}`` becomes the value of the parameter alpha, and ``{alpha:.2f}`` the formatted value.
- ``{}`` becomes the line of the ``--each-line`` file or the value of the ``:::`` list. If there is neither, ``{}`` becomes the value of the
  only parameter.
- ``{#}`` becomes the index of the task in its run.
- Other braces do not change: ``awk '{print $1}'``, ``{"json": 1}`` and ``${HOME}``.
- Double braces around the name of a parameter, ``{{alpha}}``, become literal braces.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from pilotfish.applications.sweeps.axes import Axis, Row
from pilotfish.applications.sweeps.script_arguments import script_arguments
from pilotfish.applications.sweeps.tables import LINE, NAME
from pilotfish.errors import BadInput, Correction, did_you_mean

NUMBER = "#"
BRACES = re.compile(r"(?<![\{$])(\{+)([^{}\s\"']*)(\}+)")
FORMAT = re.compile(r"(?:.?[<>=^])?[-+]?#?0?\d{0,3},?(?:\.\d{1,2})?[bdoxXeEfFgG%s]")
ARITHMETIC = re.compile(r"[\w.]+(?:(?:\*\*|//|[-+*/%^])[\w.]+)+")
OTHER_TOOLS = re.compile(r"-?\d*(?:%|##|/?\.{2,3}|\+/|\+\.{1,3})|-\d+(?:/?\.|//?)?|=.*=")
"""Placeholders of GNU parallel that Pilotfish lacks."""
PLAIN_VALUE = re.compile(r"[\w@%+=:,./-]*")
"""Matches values that no interpreter can mistake for code: they have no spaces, quotes, parentheses or shell operators."""
BEFORE_VALUE = ("", *" =,:;/'\"")
AFTER_VALUE = (*BEFORE_VALUE, *"\n._-)<>&")
"""Characters that can be directly before and after ``{2}`` if it stands for a value of a list. Between other characters, it is probably a
repetition in a pattern, as in ``[0-9]{2}`` and ``a {2}b``."""
SHOWN_VALUES = 3
MAX_EXPONENT = 400
"""Maximum decimal exponent of a number to format. It covers all floating-point numbers."""

Fill = Callable[[Row, int], str]
Change = Callable[[str], str]
"""A function that formats a value. It raises BadInput if the value does not fit the format."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text with placeholders. ``fill``: a function that replaces the placeholders. Its arguments are the values, in the order of the
    parameters, and the task number."""

    text: str
    uses: frozenset[str]
    fill: Fill
    changes: tuple[tuple[str, Change], ...] = ()
    """Pairs of a parameter and a function that formats or checks its value."""


class _Field(NamedTuple):
    """A placeholder in a template. ``place``: the index of its value, or -1 for the task number."""

    place: int
    change: Change | None


def make_template(text: str, names: Sequence[str] | None, where: str, recipe: str = "") -> Template:
    """Makes a template from a text. ``names``: the parameters, or None if there is no sweep. ``where``: name of the text in error messages,
    such as "the command".

    ``recipe``: if the text is a script, a hint how to pass a value to the script as an argument; otherwise empty. In a script, a value is
    refused if an interpreter can mistake the value for code.
    """
    pieces: list[str | _Field] = []
    uses: list[tuple[str, Change | None]] = []
    literal, end = "", 0
    for match in BRACES.finditer(text):
        opening, content, closing = match.groups()
        depth = min(len(opening), len(closing))
        if not _is_placeholder(content, names, _is_apart(match)):
            continue
        literal += text[end : match.start()] + "{" * (len(opening) - depth + depth // 2)
        if depth % 2:
            name, change = _read_placeholder(content, names or (), where)
            if recipe and name != NUMBER:
                change = _only_plain(change, f"{where} has {{{content}}} in a script", recipe.format(f"{{{content}}}"))
            uses.append((name, change))
            pieces += [literal, _Field(-1 if name == NUMBER or names is None else names.index(name), change)]
            literal = ""
        else:
            literal += content
        literal += "}" * (len(closing) - depth + depth // 2)
        end = match.end()
    pieces.append(literal + text[end:])
    changes = tuple((name, change) for name, change in uses if change is not None and name != NUMBER)
    return Template(text, frozenset(name for name, _ in uses), _filler(pieces), changes)


def make_command_templates(command: Sequence[str], names: Sequence[str] | None) -> tuple[Template, ...]:
    """Makes a template from each word of a command."""
    scripts = script_arguments(command)
    return tuple(make_template(word, names, "the command", scripts.get(place, "")) for place, word in enumerate(command))


def find_placeholders(text: str) -> Iterator[str]:
    """Yields the parts of a text that would be placeholders in the command of a sweep."""
    for match in BRACES.finditer(text):
        if _is_placeholder(match[2], (), _is_apart(match)):
            yield match[0]


# --- which braces are placeholders ------------------------------------------------------------------------------------------------------


def _split(content: str) -> tuple[str, str]:
    """Splits the text between braces into name and form: ``alpha:.2f`` into alpha and .2f. After the number of a list, there is no colon:
    ``1/.`` becomes 1 and /."""
    listed = re.fullmatch(r"(\d*)(/?\.|//?)", content)
    if listed:
        return listed[1], listed[2]
    name, _, form = content.partition(":")
    return name, form


def _is_apart(match: re.Match[str]) -> bool:
    """Tests whether the characters before and after the braces are in BEFORE_VALUE and AFTER_VALUE."""
    text, start, end = match.string, match.start(), match.end()
    return text[max(start - 1, 0) : start] in BEFORE_VALUE and text[end : end + 1] in AFTER_VALUE


def _is_placeholder(content: str, names: Sequence[str] | None, is_apart: bool) -> bool:
    """Tests whether a text between braces is a placeholder, or is probably meant as one. If there is no sweep (``names`` is None), only
    these are placeholders: ``{}``, a name, a form for paths such as ``{/}``, and ``{#}`` with or without a format.

    ``is_apart``: see ``_is_apart``.
    """
    name, form = _split(content)
    if content in ("", NUMBER) or NAME.fullmatch(content) or content in PATH_FORMS or (name == NUMBER and form):
        return True
    if names is None:
        return False
    if OTHER_TOOLS.fullmatch(content):
        return True
    if name.isdecimal() and (form or name == content):
        return "1" in names or (name == content and is_apart)
    if form in PATH_FORMS or FORMAT.fullmatch(form):
        return name == LINE or NAME.fullmatch(name) is not None
    first = re.match(r"[A-Za-z_]\w*", content)
    if first and first[0] in names and content[first.end()] in "!:[" and "," not in content:
        return True
    return ARITHMETIC.fullmatch(content) is not None and re.search(r"[A-Za-z_]", content) is not None


def _read_placeholder(content: str, names: Sequence[str], where: str) -> tuple[str, Change | None]:
    """Returns the parameter of a placeholder, and the function that formats its value. The function is None if the placeholder has no
    format. Raises BadInput if there is no such parameter. ``content``: the text between the braces."""
    if content in names and content != LINE:
        return content, None
    if OTHER_TOOLS.fullmatch(content):
        fix = f"For paths there are {{.}}, {{/}}, {{//}} and {{/.}}. To mean the braces, write {{{{{content}}}}}."
        raise BadInput(f"{where} has {{{content}}}, which is not a placeholder of Pilotfish", fix)
    name, form = _split(content)
    if name in names or name in (NUMBER, LINE):
        known = _only_name(names, where, content, form) if name == LINE else name
        return known, _read_form(form, f"{where} has {{{content}}}", content) if form else None
    literal = f"write {{{{{content}}}}} to mean the braces"
    if not (NAME.fullmatch(name) or name.isdecimal()):
        words = re.findall(r"[A-Za-z_]\w*", content)
        near = next((f"{did_you_mean(word, names)} " for word in words if word not in names and did_you_mean(word, names)), "")
        known = next((word for word in words if word in names), "NAME")
        fix = f"{near}Write {{{known}}} and let the program compute, or {literal}."
        if known in names:
            fix = Correction(fix, f"{{{content}}}", f"{{{known}}}")
        raise BadInput(f"{where} has {{{content}}}, but nothing is computed in braces", fix)
    message = f"{where} has {{{content}}}, but there is no parameter {name!r}"
    if name.isdecimal():
        raise BadInput(f"{where} has {{{content}}}, but there are fewer lists", f"Add ::: values, or {literal}.")
    head = re.match(r"\w+", name)
    if name.endswith(".") and head and head[0] in names:
        raise BadInput(message, f"To leave out the file name extension write {{{head[0]}:.}}")
    raise BadInput(message, did_you_mean(name, list(filter(None, names))) or f"Add --param {name}=values, or {literal}.")


def _only_name(names: Sequence[str], where: str, content: str, form: str) -> str:
    """Returns the parameter that ``{}`` means: the line, the value of the only list, or the only parameter."""
    lists = [name for name in names if name.isdecimal()]
    if LINE in names:
        return LINE
    if len(lists) == 1 or len(names) == 1:
        return (lists or names)[0]
    if not names:
        fix = f"Add --each-line FILE, ::: values or --param name=values, or write {{{{{content}}}}} to mean the braces."
        raise BadInput(f"{where} has {{{content}}}, but nothing to put there", fix)
    shown = ", ".join(f"{{{known}:{form}}}" if form else f"{{{known}}}" for known in names)
    raise BadInput(f"{where} has {{{content}}}, but there are several parameters", f"Name the one you mean: {shown}")


# --- formats ----------------------------------------------------------------------------------------------------------------------------


def _without_extension(path: str) -> str:
    return re.sub(r"\.[^/.]*\Z", "", path.rstrip("/"))


def _basename(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _directory(path: str) -> str:
    head, slash, _ = path.rstrip("/").rpartition("/")
    return head or slash or "."


PATH_FORMS: dict[str, Change] = {
    ".": _without_extension,
    "/": _basename,
    "//": _directory,
    "/.": lambda path: _without_extension(_basename(path)),
}


def _read_form(form: str, shown: str, content: str) -> Change:
    """Returns the function that formats a value. ``shown``: beginning of the error messages."""
    if form in PATH_FORMS:
        return PATH_FORMS[form]
    convert = str if form[-1:] == "s" else _whole_number if form[-1:] in "bdoxX" else _decimal if form[-1:] in "fF%" else float
    try:
        if not FORMAT.fullmatch(form):
            raise ValueError
        format(convert("0"), form)
    except ValueError:
        fix = f"Write :03d, :.2f, :.3e, :g or :>8s, or one of :. :/ :// :/. for a path; {{{{{content}}}}} means the braces."
        plain = f"{{{content.removesuffix(form).rstrip(':')}}}"
        raise BadInput(f"{shown}, and {form!r} is not a format", Correction(fix, f"{{{content}}}", plain)) from None
    kind = "whole number" if convert is _whole_number else "number"

    def change(value: str) -> str:
        try:
            return format(convert(value), form)
        except ValueError:
            raise BadInput(f"{shown}, and {value!r} is not a {kind}", "Leave out the format, or change the values.") from None

    return change


def _decimal(value: str) -> Decimal:
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ValueError(value) from None
    if not number.is_finite() or abs(number.adjusted()) > MAX_EXPONENT:
        raise ValueError(value)
    return number


def _whole_number(value: str) -> int:
    number = _decimal(value)
    if number != number.to_integral_value():
        raise ValueError(value)
    return int(number)


def _only_plain(change: Change | None, shown: str, recipe: str) -> Change:
    def checked(value: str) -> str:
        text = change(value) if change is not None else value
        if not PLAIN_VALUE.fullmatch(text):
            raise BadInput(f"{shown}, where the value {text!r} could run as code", f"Pass it as an argument: {recipe}")
        return text

    return checked


def _filler(pieces: list[str | _Field]) -> Fill:
    """Returns the function that fills a template. Simple templates get a faster function, because a sweep calls it for each task."""
    if len(pieces) == 1:
        whole = str(pieces[0])
        return lambda values, number: whole
    if len(pieces) == 3 and pieces[0] == pieces[2] == "" and isinstance(pieces[1], _Field) and pieces[1].place >= 0:
        only, change = pieces[1]
        if change is None:
            return lambda values, number: values[only]

    def fill(values: Row, number: int) -> str:
        return "".join(piece if isinstance(piece, str) else _fill_field(piece, values, number) for piece in pieces)

    return fill


def _fill_field(field: _Field, values: Row, number: int) -> str:
    value = str(number) if field.place < 0 else values[field.place]
    return value if field.change is None else field.change(value)


# --- checks -----------------------------------------------------------------------------------------------------------------------------


def check_values(templates: Iterable[Template], axes: Iterable[Axis]) -> None:
    """Formats all values of the axes. In this way, a value that does not fit its format is found before the first task starts."""
    changes = [one for template in templates for one in template.changes]
    for axis in axes:
        wanted = [(axis.names.index(name), change) for name, change in changes if name in axis.names]
        for row in axis if wanted else ():
            for place, change in wanted:
                change(row[place])


def check_all_used(templates: Sequence[Template], axes: Sequence[Axis], where: str) -> None:
    """Raises BadInput if an axis is not used. An axis is used if a template has one of its names."""
    used = frozenset().union(*(template.uses for template in templates))
    for axis in axes:
        names = axis.names
        if used.isdisjoint(names):
            if names == (LINE,):
                raise BadInput(f"--each-line is given, but {where} does not use the lines", "Write {} where the line should go.")
            if names[0].isdecimal():
                fix = f"Write {{{names[0]}}} where its values should go ({{}} if there is one list), or put the ::: into sh -c '...'."
                first = [shlex.quote(row[0]) for row in itertools.islice(axis, SHOWN_VALUES)]
                values = " ".join([*first, "..."] if len(axis) > len(first) else first)
                raise BadInput(f"the list ::: {values} is not used: {where} has no {{{names[0]}}}", fix)
            shown = " or ".join(f"{{{name}}}" for name in names)
            raise BadInput(
                f"the parameter {'/'.join(names)} is not used: {where} has no {shown}",
                f"Write {shown} where its value should go, or leave it out.",
            )
