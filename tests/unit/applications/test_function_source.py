"""The source of a self-contained function runs where neither its module nor its notebook exists."""

from __future__ import annotations

import functools
import gc
import linecache
import math
import operator
import os.path
from collections.abc import Callable
from dataclasses import dataclass
from math import pi
from typing import Any, Optional

import pytest

from pilotfish.applications.calls.function_source import source_of
from pilotfish.errors import BadInput

LIMIT = 3


@dataclass
class OfThisModule:
    value: int = 1


def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function as a slot with another Python does: in an empty module."""
    name, text = source_of(function)
    namespace: dict[str, Any] = {"__name__": "pilotfish_source"}
    exec(compile(text.decode(), "<source>", "exec", dont_inherit=True), namespace)
    return namespace[name](*args, **kwargs)


def plain(x: int, *more: int, scale: int = 2, **rest: int) -> list[int]:
    return [x * scale, *more, *rest.values()]


def annotated(thing: OfThisModule, other: Optional[OfThisModule] = None) -> OfThisModule:  # noqa: UP045
    local: OfThisModule = thing
    return local


def with_imports(x: float) -> list[Any]:
    return [math.floor(x), os.path.basename("a/b"), pi > 3, operator.add(1, 2), functools.reduce(operator.mul, [2, 3])]


@functools.lru_cache(maxsize=64)
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return 2 * function(*args)

    return wrapper


@doubled
def decorated_here(x: int) -> int:
    return x


square = lambda x: x * x  # noqa: E731
pair = [lambda x: x + 1, lambda x: x - 1]
with_options = [lambda x, *, y=(1, 2): (x, y)]


class Tools:
    @staticmethod
    def triple(x: int) -> int:
        return 3 * x

    def method(self, x: int) -> int:
        return x


def nested() -> tuple[Callable[..., Any], Callable[..., Any]]:
    def inner(x: int) -> str:
        text = """
not indented"""
        return text * x

    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    return inner, factorial


def with_names_inside(x: int) -> Any:
    import json

    def helper(y: int) -> int:
        return y + x

    return json.dumps([helper(value) for value in range(2)])


def uses_later_name() -> Any:
    return not_defined_anywhere  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "arguments", "value"),
    [
        (plain, (2, 9), [4, 9]),
        (annotated, (7,), 7),
        (with_imports, (2.5,), [2, "b", True, 3, 6]),
        (fibonacci, (30,), 832040),
        (square, (5,), 25),
        (pair[0], (5,), 6),
        (pair[1], (5,), 4),
        (with_options[0], (0,), (0, (1, 2))),
        (lambda x: x, (1,), 1),
        (Tools.triple, (4,), 12),
        (Tools.method, (None, 4), 4),
        (nested()[0], (1,), "\nnot indented"),
        (nested()[1], (5,), 120),
        (with_names_inside, (3,), "[3, 4]"),
        (len, ("abc",), 3),
        (math.sqrt, (9,), 3.0),
        (gc.isenabled, (), gc.isenabled()),
    ],
)
def test_a_self_contained_function_runs_in_an_empty_module(function: Callable[..., Any], arguments: tuple[Any, ...], value: Any) -> None:
    assert run(function, *arguments) == value


def test_the_function_of_a_notebook_is_found_and_so_is_its_new_version() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, text in enumerate(["import math\ndef area(r):\n    return math.pi * r\n", "def area(r):\n    return 2 * math.pi * r\n"]):
        file = f"<cell {number}>"
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
        exec(compile(text, file, "exec"), namespace)
        assert run(namespace["area"], 1) == (number + 1) * math.pi


def uses_constant() -> int:
    return LIMIT


def uses_own_class() -> int:
    return OfThisModule().value


def has_own_default(limit: int = LIMIT) -> int:
    return limit


def outer(n: int) -> Callable[[], int]:
    return lambda: n


@pytest.mark.parametrize(
    ("function", "problem", "fix"),
    [
        (uses_constant, "uses LIMIT of its module", "pass it as an argument"),
        (uses_own_class, "uses OfThisModule of its module", "define it in the function"),
        (has_own_default, "uses LIMIT of its module", "pass it"),
        (decorated_here, "uses doubled of its module", "define it"),
        (outer(1), "uses n of the function around it", "pass it as an argument"),
        (Tools().method, "a method with its object", "write a function that calls it"),
        (functools.partial(plain, 1), "of type partial", 'form="pickle"'),
        (functools.lru_cache(plain), "a decorator was called outside", "with @"),
        (eval("lambda: 1"), "its source cannot be found", "write it to a file"),
    ],
)
def test_a_function_that_needs_more_is_refused_with_the_name_and_the_fix(function: Callable[..., Any], problem: str, fix: str) -> None:
    with pytest.raises(BadInput, match=problem) as caught:
        source_of(function)
    assert fix in caught.value.hint


factorial: Callable[[int], int] = lambda n: 1 if n < 2 else n * factorial(n - 1)  # noqa: E731
branches = (lambda n: n if n else -1), (lambda n: n if n else -2)


def test_a_lambda_with_a_condition_is_found_and_may_call_itself() -> None:
    assert run(factorial, 5) == 120
    assert [run(one, 0) for one in branches] == [-1, -2]


def test_a_name_that_nothing_defines_is_an_error_of_the_function_itself() -> None:
    with pytest.raises(NameError, match="not_defined_anywhere"):
        run(uses_later_name)
