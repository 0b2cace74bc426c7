"""A function that is pickled by value is pickled again if a name that it uses has another value."""

from __future__ import annotations

import math
import os
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from pilotfish.applications.calls import function_bindings
from pilotfish.applications.calls.function_bindings import FunctionBindings
from pilotfish.applications.calls.python_call import CallEncoder
from tests.unit.applications.test_python_call import Register, double


def cell(text: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Runs a cell of a notebook. Its functions are pickled by value."""
    names = {"__name__": "__main__", "os": os} if names is None else names
    exec(text, names)
    return names


CLASS = "class Solver:\n    def do_work(self, x):\n        return helper(x)\n"


@pytest.mark.parametrize(
    "used", ["def work(x):\n    return helper(x)\n", "def work(x):\n    return [helper(y) for y in [x]]\n", CLASS + "work = Solver\n"]
)
@pytest.mark.parametrize("change", ["LIMIT = 7", "def helper(x):\n    return x\n", "del LIMIT"])
def test_a_changed_value_is_noticed_also_in_functions_that_it_calls(used: str, change: str) -> None:
    names = cell("LIMIT = 5\ndef helper(x):\n    return os.path.join(x, str(LIMIT))\n" + used)
    bindings = FunctionBindings(names["work"])
    assert bindings.are_current
    cell("unrelated = 1", names)
    assert bindings.are_current
    cell(change, names)
    assert not bindings.are_current


def test_a_function_that_is_pickled_by_reference_costs_nothing() -> None:
    for function in (double, math.sqrt, types.SimpleNamespace):
        assert not FunctionBindings(function)


STATE = """
import abc, enum, functools, threading, types
class Settings:
    alpha = 1
    registry = {}
    callback = lambda self: 0
class Base:
    def go(self): return 1
class Sub(Base):
    @staticmethod
    def fixed(): return 1
class Shape(abc.ABC):
    sides = 0
class Kind(enum.Enum):
    ONE = {"a": 1}
CONFIG = {"f": lambda x: x, "scale": 1}
class Model:
    def __init__(self): self.s, self.f = 1, lambda: 0
    def big(self): return LARGE
model = Model()
nested = types.SimpleNamespace(inner=[model])
part = functools.partial(lambda d: d["k"], {"k": 1})
LARGE = bytearray(1 << 20)
maker = os
@functools.cache
def cached(x): return CONFIG["scale"]
def by_class(): return Settings.alpha
def by_dict(): return CONFIG["scale"]
def by_default(opt=CONFIG): return opt["scale"]
def by_keyword(*, opt=CONFIG): return opt["scale"]
def by_attribute(): return by_attribute.scale
def by_object(): return model.s
def by_nested(): return nested.inner[0].s
def by_base(): return Sub().go()
def by_partial(): return part()
def by_cached(): return cached(1)
def by_shape(): return Shape.sides
def by_kind(): return Kind.ONE
def by_module(): return maker
def by_absent(): return absent
def by_large(): return len(LARGE)
by_wrapped = functools.wraps(by_dict)(lambda: by_dict())
"""
SCALE = 'CONFIG["scale"] = 2'
CHANGES = [
    ("by_class", "Settings.alpha = 2"),
    ("by_class", "Settings.registry[1] = Settings"),
    ("by_class", "Settings.callback = lambda self: 1"),
    ("by_class", "Settings.new = 1"),
    ("by_class", "del Settings.alpha"),
    *((name, SCALE) for name in ("by_dict", "by_default", "by_keyword", "by_cached", "by_wrapped", "cached")),
    ("by_dict", 'CONFIG["f"] = lambda x: x + 1'),
    ("by_default", "by_default.__defaults__ = (1,)"),
    ("by_keyword", "by_keyword.__kwdefaults__ = {'opt': 1}"),
    ("by_dict", "by_dict.__code__ = by_class.__code__"),
    ("by_attribute", "by_attribute.scale = 1"),
    ("by_wrapped", "by_wrapped.__dict__['more'] = 1"),
    ("by_object", "model.s = 2"),
    ("by_object", "Model.big = None"),
    ("by_nested", "model.s = 2"),
    ("by_base", "Base.go = lambda self: 2"),
    ("by_base", "Sub.__bases__ = (Model,)"),
    ("by_partial", 'part.args[0]["k"] = 2'),
    ("by_shape", "Shape.sides = 4"),
    ("by_kind", "Kind.ONE.value['a'] = 2"),
    ("by_module", "maker = types"),
    ("by_absent", "absent = 1"),
    ("Model", "Model.n = 2"),
]


@pytest.mark.parametrize(("used", "change"), CHANGES)
def test_every_change_of_what_a_function_uses_is_noticed(used: str, change: str) -> None:
    names = cell(STATE)
    bindings = FunctionBindings(names[used])
    assert bindings.are_current and bindings.are_current
    cell(change, names)
    assert not bindings.are_current


def test_large_values_are_compared_at_each_call_for_a_limited_time_only_and_a_late_notice_is_told(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    names = cell(STATE)
    new, quick, complete = (FunctionBindings(names["by_large"], compares_large=one) for one in (False, False, True))
    monkeypatch.setattr(function_bindings, "LARGE_CHECKS_S", -1)
    monkeypatch.setattr(function_bindings, "_CHECK_SHARE", 1e-9)
    assert [one.are_current for one in (quick, complete)] == [True, True]
    cell("LARGE[5] = 1", names)
    assert [one.are_current for one in (new, complete, quick, quick)] == [False, False, True, True]
    assert not recwarn
    quick._check_at = 0.0
    assert not quick.are_current
    (message,) = (str(one.message) for one in recwarn)
    assert message.startswith("a large value of type bytearray, which the function of this call uses, was changed in place. Up to 2 calls")


def test_a_value_that_cannot_be_compared_makes_the_function_outdated() -> None:
    names = cell(STATE + "LOCK = threading.Lock()\ndef locked(): return LOCK\n")
    assert not FunctionBindings(names["locked"]).are_current


def test_a_watched_function_can_be_deleted() -> None:
    names = cell("def make(value=[]):\n    def work():\n        return value\n    return work\n")
    work = names["make"]()
    bindings, reference = FunctionBindings(work), weakref.ref(work)
    del work
    assert reference() is None and not bindings.are_current


def test_a_closure_variable_is_watched_and_a_function_may_call_itself() -> None:
    def make() -> tuple[Callable[[], Any], Callable[[int], None]]:
        value = 1

        def work() -> Any:
            return value or work()

        def put(new: int) -> None:
            nonlocal value
            value = new

        return work, put

    work, put = make()
    bindings = FunctionBindings(work)
    assert bindings.are_current
    put(2)
    assert not bindings.are_current


def test_the_encoder_makes_one_spec_per_version() -> None:
    calls = CallEncoder(register := Register())
    names = cell("LIMIT = 5\ndef work():\n    return LIMIT\n")
    first = [calls.encode(names["work"], (), {})[0] for _ in range(3)]
    cell("LIMIT = 6", names)
    second = [calls.encode(names["work"], (), {})[0] for _ in range(3)]
    assert first == [0] * 3 and second == [1] * 3 and len(register.specs) == 2
