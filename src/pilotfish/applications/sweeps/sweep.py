"""Makes the values of each task of a sweep from parameters such as ``alpha=0.1:1.0:0.1``, ``seed=1..100`` or a table.

Each parameter or table is an axis of the sweep, with one or more rows. A sweep combines each row of an axis with all rows of the other
axes. A zipped sweep is different: its first task gets the first rows of all axes, its second task the second rows, and so on. Every value
is text for a command line. Numbers are exact decimals.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from pilotfish.applications.sweeps.axes import Axis, ListedValues, Row, chained, number_range
from pilotfish.applications.sweeps.tables import NAME, read_column, read_lines, read_table
from pilotfish.errors import BadInput, Correction

MAX_TASKS = 50_000_000
TASK_BYTES = 400
"""Approximate number of bytes that a task needs in the memory of the master."""
PYTHONIC = re.compile(r"\[.*\]|range\(.*\)|np\..*|numpy\..*|linspace\(.*\)")
"""Matches values in Python syntax, such as ``range(9)``. These values are refused."""
MAX_EXPONENT = 100
"""Maximum decimal exponent. A larger exponent is probably a typing error."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The rows of values of all tasks. Usually, the tasks get all combinations of the rows of the axes; the last axis changes fastest. If
    ``zipped`` is True, the first task gets the first row of every axis, the second task gets the second row of every axis, and so on.

    ``times``: number of tasks with the same row. These tasks come one after the other.
    """

    axes: tuple[Axis, ...]
    zipped: bool = False
    times: int = 1

    @property
    def names(self) -> Row:
        return tuple(name for axis in self.axes for name in axis.names)

    def __len__(self) -> int:
        return self.times * (len(self.axes[0]) if self.zipped else math.prod(len(axis) for axis in self.axes))

    def __iter__(self) -> Iterator[Row]:
        """Yields the values of each task in the order of ``names``."""
        rows = _pairs(self.axes) if self.zipped else _product(self.axes)
        return rows if self.times == 1 else (row for row in rows for _ in range(self.times))


def _product(axes: tuple[Axis, ...]) -> Iterator[Row]:
    # itertools.product would load all axes into memory.
    if not axes:
        yield ()
        return
    for row in axes[0]:
        for rest in _product(axes[1:]):
            yield row + rest


def _pairs(axes: tuple[Axis, ...]) -> Iterator[Row]:
    return (tuple(itertools.chain.from_iterable(rows)) for rows in zip(*axes, strict=True))


ValueList = tuple[str, Row]
"""A list after the command: its sign, ``:::`` or ``:::+``, and its values."""


def make_sweep(
    parameters: Iterable[str] = (),
    tables: Iterable[str] = (),
    each_line: str | None = None,
    zipped: bool = False,
    lists: Iterable[ValueList] = (),
    times: int = 1,
) -> Sweep:
    """Returns the sweep for the options ``--param``, ``--params-from``, ``--each-line``, ``--zip`` and ``--times``, and for ``:::`` lists.

    Raises BadInput if an option is invalid, if two axes have the same parameter, or if there are too many tasks.
    """
    axes: list[Axis] = []
    if each_line is not None:
        axes.append(read_lines(each_line))
    axes += [read_table(path) for path in tables]
    axes += [parse_parameter(text) for text in parameters]
    axes += _list_axes(lists)
    names = [name for axis in axes for name in axis.names]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"the parameter {name!r} is given twice", f"Give it once, with all its values: --param {name}=first,second")
    if zipped:
        _check_zip(axes)
    sweep = Sweep(tuple(axes), zipped, times)
    sizes = [len(axis) for axis in (axes[:1] if zipped else axes)] + [times] * (times > 1)
    check_count(math.prod(sizes), f"the sweep ({' x '.join(f'{size:,}' for size in sizes)})" if len(sizes) > 1 else "the sweep")
    return sweep


def check_count(count: int, what: str) -> None:
    """Raises BadInput if ``count`` tasks are too many for a run: after a typing error, a sweep can have billions of tasks. ``what``: the
    source of the tasks, for the message."""
    if count > MAX_TASKS:
        limit = f"a run may have {MAX_TASKS:,}, as the master keeps about {TASK_BYTES} bytes of each in memory"
        raise BadInput(
            f"{what} would make {count:,} tasks; {limit}",
            "Use fewer values or a larger step, let each task do many of them, or make several runs one after the other.",
        )


def _check_zip(axes: list[Axis]) -> None:
    if not axes:
        raise BadInput("--zip has nothing to put side by side", Correction("Add two or more --param, or leave --zip out.", "--zip", ""))
    lengths = {"/".join(axis.names) or "--each-line": len(axis) for axis in axes}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise BadInput(
            f"--zip needs as many values of each: {shown}",
            Correction("Make them the same length, or leave --zip out to get all combinations.", "--zip", ""),
        )


# --- ::: values ---------------------------------------------------------------------------------------------------------------------

LIST_SIGNS = (":::", ":::+")


def split_lists(words: Sequence[str]) -> tuple[Row, tuple[ValueList, ...]]:
    """Splits the words of a command into the command and the ``:::`` lists after it."""
    places = [place for place, word in enumerate(words) if word in LIST_SIGNS]
    ends = [*places[1:], len(words)]
    lists = tuple((words[place], tuple(words[place + 1 : end])) for place, end in zip(places, ends, strict=False))
    return tuple(words[: places[0]] if places else words), lists


def _list_axes(lists: Iterable[ValueList]) -> list[Axis]:
    """Returns the axes of the lists. The name of a list is its number: the first list has the name 1. If ``:::+`` links a list to the list
    before it, both are one axis."""
    axes: list[ListedValues] = []
    for number, (sign, values) in enumerate(lists, 1):
        if not values:
            raise BadInput(f"{sign} has no values: the sweep would be empty", "Write values after it, such as ::: a b c or ::: *.dat")
        if sign == ":::":
            axes.append(ListedValues((str(number),), [(value,) for value in values]))
            continue
        if not axes:
            raise BadInput(":::+ comes first, and has no list to be linked to", "Write ::: before the first list.")
        before = axes.pop()
        if len(values) != len(before):
            count = f"{len(values)} value{'' if len(values) == 1 else 's'}"
            raise BadInput(
                f":::+ has {count}, and the list before it has {len(before)}",
                "Give both as many values, or write ::: for all combinations",
            )
        axes.append(ListedValues((*before.names, str(number)), [(*row, value) for row, value in zip(before, values, strict=True)]))
    return list(axes)


CLOCK_TIME = re.compile(r"\d?\d:\d\d:00")
"""Matches a time of day such as 18:30:00. As a range, this text would have the step 0."""

DECIMAL_COMMAS = re.compile(r"[+-]?\d+(,\d+)?(:[+-]?\d+(,\d+)?){2}")
"""Matches a range such as 0,5:1,5:0,5, whose numbers have decimal commas."""

# --- --param name=values ------------------------------------------------------------------------------------------------------------


def parse_parameter(text: str) -> Axis:
    """Parses ``name=values``, where values are a range, a list or ``@file``."""
    name, equals, values = text.partition("=")
    if not equals:
        raise BadInput(f"--param {text!r} has no '='", "Write --param name=values, such as --param seed=1..100 or --param kind=fast,slow")
    if not NAME.fullmatch(name):
        raise BadInput(
            f"--param {text!r}: {name!r} cannot be a name", "A name starts with a letter and goes on with letters, digits, '_', '-' or '.'"
        )
    if not values:
        raise BadInput(
            f"--param {name}= has no values: the sweep would be empty",
            Correction(f"Write --param {name}=1..10, --param {name}=a,b,c or --param {name}=@file.csv", f"{name}=", f"{name}=1..10"),
        )
    if values.startswith("@"):
        return read_column(name, values[1:])
    if PYTHONIC.fullmatch(values):
        raise BadInput(
            f"--param {name}={values} looks like Python",
            f"Write --param {name}=1,2,3 or --param {name}=0..9; if it is meant as text, quote it: '{name}=\"{values}\"'",
        )
    items = _split_list(name, values)
    clock = next((item for item, quoted in items if not quoted and CLOCK_TIME.fullmatch(item)), "")
    if clock:
        right = ",".join(f'"{item}"' if quoted or ":" in item else item for item, quoted in items)
        raise BadInput(f"--param {name}={values}: {clock!r} looks like a time of day", Correction("Put times in quotes.", values, right))
    try:
        parts = [_parse_item(name, item, quoted) for item, quoted in items]
    except BadInput:
        _refuse_decimal_commas(name, values)
        raise
    if any(":" in item and len(part) == 1 for (item, quoted), part in zip(items, parts, strict=True) if not quoted):
        _refuse_decimal_commas(name, values)
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, ListedValues) for part in parts):
        return ListedValues((name,), [row for part in parts for row in part])
    return chained(name, parts)


_NUMBER = r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
"""Matches each number in only one way. Otherwise a long list that is no list of numbers would take hours."""
HABITS: tuple[tuple[str, Callable[[str], str]], ...] = (
    (r"\{-?\d+\.\.-?\d+\}", lambda values: values[1:-1]),
    (r"\{-?\d+\.\.-?\d+\.\.-?\d+\}", lambda values: values[1:-1].replace("..", ":")),
    (r"\{[^{}]*,[^{}]*\}", lambda values: values[1:-1]),
    (rf"(?=.*\s){_NUMBER}([,\s]\s*{_NUMBER})+", lambda values: re.sub(r"[,\s]\s*", ",", values)),
    (r"(?=.*-)\d+(-\d+)?(,\d+(-\d+)?)*", lambda values: values.replace("-", "..")),
)
"""Values as the shell and Slurm write them, and how they are written here: ``{1..3}`` in quotes, ``1 2 3``, ``1, 2`` and ``1-10``."""


def likely_parameter(text: str) -> str:
    """Returns the ``name=values`` that the user probably meant if the values are texts that look like a list or range of another program.
    Otherwise returns an empty text."""
    name, _, values = text.partition("=")
    for pattern, convert in HABITS:
        if re.fullmatch(pattern, values):
            meant = f"{name}={convert(values)}"
            with suppress(BadInput):  # 10-1 is no range
                parse_parameter(meant)
                return meant
    return ""


def _refuse_decimal_commas(name: str, values: str) -> None:
    """Raises BadInput if the values are a range whose numbers have decimal commas. Such values are also a list, such as ``1,3:5,7:9,11``,
    so this function is called only if the list has an error or a range of one value."""
    number, better = re.search(r"\d+,\d+", values), values.replace(",", ".")
    if number is None or not DECIMAL_COMMAS.fullmatch(values):
        return
    try:
        _decimal_range(name, better)
    except BadInput:
        return
    problem = f"--param {name}={values}: commas separate values, so {number[0]!r} is no number"
    raise BadInput(problem, Correction(f"Write numbers with a decimal point: {name}={better}", values, better))


def _split_list(name: str, values: str) -> list[tuple[str, bool]]:
    """Splits values at commas. Returns the items, and for each item whether it was in quotes. ``a,"b,c"`` has two items."""
    items: list[tuple[str, bool]] = []
    rest = values
    while True:
        if rest.startswith('"'):
            end = rest.find('"', 1)
            if end < 0 or rest[end + 1 : end + 2] not in ("", ","):
                raise BadInput(
                    f"--param {name}={values}: a quoted value does not end before a comma",
                    f"Quote whole values: --param '{name}=\"a,b\",c'",
                )
            items.append((rest[1:end], True))
            rest = rest[end + 1 :]
        else:
            item, comma, after = rest.partition(",")
            items.append((item, False))
            rest = comma + after
        if not rest:
            break
        rest = rest[1:]
    for number, (item, quoted) in enumerate(items, 1):
        if not item and not quoted:
            raise BadInput(
                f"--param {name}={values}: value {number} is empty",
                f'Leave out the extra comma, or write "" for an empty value: \'{name}="",b\'',
            )
    return items


def _parse_item(name: str, item: str, quoted: bool) -> Axis:
    if not quoted:
        if item.count(":") in (1, 2) and _meant_as_range(item.split(":")):
            return _decimal_range(name, item)
        left, dots, right = item.partition("..")
        if dots and _starts_like_number(left):
            return _integer_range(name, item, left, right)
    return ListedValues((name,), [(item,)])


def _starts_like_number(text: str) -> bool:
    return re.match(r"[+-]?\.?\d", text) is not None


def _meant_as_range(parts: list[str]) -> bool:
    """Tests whether the user meant a range. ``0.1:1.0:x`` is a range with an error. ``node1:/data`` and ``localhost:8080`` are texts."""
    if len(parts) == 3:
        return sum(_starts_like_number(part) for part in parts) >= 2
    return all(_starts_like_number(part) for part in parts)


def _decimal(name: str, item: str, part: str, what: str) -> Decimal:
    try:
        number = Decimal(part)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or abs(number.adjusted()) > MAX_EXPONENT:
        raise BadInput(
            f"--param {name}={item}: the {what} {part!r} is not a number",
            f"Write start:stop:step, such as {name}=0.1:1.0:0.1; a text with colons goes in quotes: '{name}=\"{item}\"'",
        )
    return number


def _decimal_range(name: str, item: str) -> Axis:
    parts = item.split(":")
    start = _decimal(name, item, parts[0], "start")
    stop = _decimal(name, item, parts[1], "stop")
    step = _decimal(name, item, parts[2], "step") if len(parts) == 3 else Decimal(1)
    shown = f"a step of {step}{'' if len(parts) == 3 else ' (the default)'}"
    if step == 0:
        problem = "the step is 0"
    elif (stop - start) * step < 0:
        problem = f"{shown} never gets from {parts[0]} to {parts[1]}, the sweep would be empty"
    elif 0 < abs(stop - start) < abs(step):
        problem = f"{shown} is larger than the range from {parts[0]} to {parts[1]}, so {parts[0]} would be the only value"
    else:
        return _range(name, item, start, stop, step)
    better = _better_range(parts, start, stop, step)
    text = f"Write {name}={better}; the order is START:STOP:STEP. A text with colons goes in quotes: '{name}=\"{item}\"'"
    raise BadInput(f"--param {name}={item}: {problem}", Correction(text, item, better))


def _better_range(parts: list[str], start: Decimal, stop: Decimal, step: Decimal) -> str:
    """Returns a range with more than one value that the user probably meant."""
    if _reaches_second_value(start, stop, -step):
        return f"{parts[0]}:{parts[1]}:{-step}"
    if len(parts) == 3 and _reaches_second_value(start, step, stop):
        return f"{parts[0]}:{parts[2]}:{parts[1]}"  # the order of MATLAB and Julia is START:STEP:STOP
    unit = Decimal(1).scaleb(min(0, *(int(number.as_tuple().exponent) for number in (start, stop))))
    return f"{parts[0]}:{parts[1]}:{unit if start <= stop else -unit:f}"


def _reaches_second_value(start: Decimal, stop: Decimal, step: Decimal) -> bool:
    return 0 < abs(step) <= abs(stop - start) and (stop - start) * step > 0


def _integer_range(name: str, item: str, left: str, right: str) -> Axis:
    try:
        first, last = int(left), int(right)
    except ValueError:
        raise BadInput(
            f"--param {name}={item}: '..' counts whole numbers, and {left!r} or {right!r} is none",
            f"Write {name}=1..100, or {name}=0.1:1.0:0.1 for a step; a text with dots goes in quotes: '{name}=\"{item}\"'",
        ) from None
    if last < first:
        raise BadInput(
            f"--param {name}={item}: {first} is above {last}, the sweep would be empty",
            Correction(f"Write {name}={right}..{left}, or {name}={first}:{last}:-1 to count down.", item, f"{right}..{left}"),
        )
    return _range(name, item, Decimal(first), Decimal(last), Decimal(1))


def _range(name: str, item: str, start: Decimal, stop: Decimal, step: Decimal) -> Axis:
    bounds = re.split(r":|\.\.", item)[:2]
    padded = all(re.fullmatch(r"[+-]?\d+", bound) for bound in bounds) and any(re.match(r"[+-]?0\d", bound) for bound in bounds)
    width = max(map(len, bounds)) if padded else 0
    axis = number_range(name, start, stop, step, width)
    check_count(axis.count, f"--param {name}={item}")
    return axis
