"""Functions and classes of the main program are pickled by value, so that another process can use them without this package."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from pilotfish.applications.calls.function_pickler import dump_by_value

PROGRAM = """
import functools, math
@functools.lru_cache(maxsize=7, typed=True)
def fibonacci(n):
    "Of a number."
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
fibonacci.unit = "rabbits"
def caller(n): return fibonacci(n), fibonacci.cache_parameters(), fibonacci.__name__, fibonacci.__doc__, fibonacci.unit
class Table:
    @functools.cache
    def row(self, n): return n, Table.__name__
    @functools.cached_property
    def width(self): return 3
def method(n): return Table().row(n)
def make():
    base = 1
    @functools.cache
    def local(n): return n + base if n else local(1)
    return local
local = make()
root = functools.cache(math.sqrt)
of_partial = functools.lru_cache(functools.partial(lambda a, b: a + b, 1))
both = functools.wraps(fibonacci)(lambda n: fibonacci(n))
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fibonacci", 55),
        ("caller", (55, {"maxsize": 7, "typed": True}, "fibonacci", "Of a number.", "rabbits")),
        ("method", (10, "Table")),
        ("local", 11),
        ("root", 10**0.5),
        ("of_partial", 11),
        ("both", 55),
    ],
)
def test_a_cached_function_of_the_main_program_works_in_another_process(name: str, value: Any) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(PROGRAM if sys.version_info >= (3, 12) else PROGRAM.replace("@functools.cached_property", "@property"), names)
    load = "import pickle, sys; f = pickle.load(sys.stdin.buffer); print(repr(f(10))); assert 'pilotfish' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", load], input=dump_by_value(names[name]), capture_output=True, check=False)
    assert done.stdout.decode().strip() == repr(value), done.stderr


SLOTS = """
import collections, dataclasses, typing
@dataclasses.dataclass(slots=True)
class Point:
    x: int = 1
    y: list = dataclasses.field(default_factory=list)
@dataclasses.dataclass(slots=True, frozen=True)
class Fixed(Point.__base__):
    x: int = 1
class Private:
    __slots__ = ("__hidden", "__weakref__")
    def __init__(self): self.__hidden = 4
    def value(self): return self.__hidden
class Child(Private):
    __slots__ = "more"
class Empty(Private):
    __slots__ = ()
class Row(typing.NamedTuple):
    a: int = 2
Plain = collections.namedtuple("Plain", "a b")
def work(n):
    child = Child()
    child.more = 2
    free = [one for one in (child, Point(1), Row(), Plain(1, 2), Empty()) if hasattr(one, "__dict__")]
    return Point(n), Fixed(3), child.value(), child.more, free
"""


def test_a_class_with_slots_has_them_in_another_process() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(SLOTS, names)
    load = "import pickle, sys; f = pickle.load(sys.stdin.buffer); print(f(2))"
    done = subprocess.run([sys.executable, "-c", load], input=dump_by_value(names["work"]), capture_output=True, check=False)
    assert done.stdout.decode() == "(Point(x=2, y=[]), Fixed(x=3), 4, 2, [])\n", done.stderr
