"""Calls use the main program as it is when they are submitted, also if it changed since the last call, and also with ``cache=True``.
Results use the classes of the program that reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.client.session import connect_if_served
from tests.support.scripted_master import PATIENCE_S


@pytest.fixture(autouse=True)
def stopped(pilotfish_home: Path) -> Iterator[None]:
    yield
    master = connect_if_served("shared")
    if master is not None:
        master.ask("stop", now=True)
        master.close()


def run(place: Path, program: str) -> Any:
    """Runs a program that prints one line of JSON."""
    (place / "program.py").write_text(program)
    done = subprocess.run([sys.executable, "program.py"], cwd=place, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


CHANGES = """
import functools, json
import pilotfish
class Settings:
    alpha = 1
CONFIG = {"function": lambda x: x, "scale": 1}
OPTIONS = {"scale": 1}
def by_class(): return Settings.alpha
def by_dict(): return CONFIG["scale"]
def by_default(options=OPTIONS): return options["scale"]
def by_keyword(*, options=OPTIONS): return options["scale"]
def by_attribute(): return by_attribute.scale
by_attribute.scale = 1
class Model:
    step = 1
    def __init__(self, *more): self.s, self.function = self.step, lambda: 0
model = Model()
def by_object(): return model.s
class Base:
    def go(self): return 1
class Sub(Base): pass
def by_base(): return Sub().go()
part = functools.partial(lambda options: options["scale"], OPTIONS)
def by_partial(): return part()
LARGE = bytearray(100_000)
def by_large(): return LARGE[5] + 1
def change():
    Settings.alpha = CONFIG["scale"] = OPTIONS["scale"] = by_attribute.scale = Model.step = model.s = 2
    LARGE[5] = 1
    Base.go = lambda self: 2
functions = [by_class, by_dict, by_default, by_keyword, by_attribute, by_object, by_base, by_partial]
def values(calls, *more):
    return [calls.submit(function).result() for function in [*functions, *more]] + [calls.submit(Model, 1).result().s]
with pilotfish.Run(pool="shared") as run:
    cached = run.options(cache=True)
    before = values(run, by_large), values(cached, by_large)
    change()
    print(json.dumps([*before, values(run, by_large), values(cached, by_large)]))
"""


def test_later_calls_get_every_change_of_the_main_program(tmp_path: Path) -> None:
    assert run(tmp_path, CHANGES) == [[1] * 10, [1] * 10, [2] * 10, [2] * 10]


CACHED = """
import functools, json, os
import pilotfish
@functools.lru_cache
def process(n): return os.getpid(), n
def uses(n): return process(n)[1]
with pilotfish.Executor(max_workers=1) as executor:
    found = [executor.submit(process, 1).result(), executor.submit(process, 2).result(), executor.submit(uses, 3).result()]
    found.append(executor.submit(process.cache_info).result()[1])
    found.append(executor.submit(lambda: process.__wrapped__(4)).result()[1])
print(json.dumps([found[0][1], found[1][1], *found[2:]]))
"""


def test_functions_with_a_cache_can_be_submitted_and_used(tmp_path: Path) -> None:
    assert run(tmp_path, CACHED) == [1, 2, 3, 0, 4]


CLASSES = """
import dataclasses, enum, json
import pilotfish
class Registered:
    names = []
    def __init_subclass__(cls, **more):
        super().__init_subclass__(**more)
        Registered.names.append(cls.__name__)
class Particle(Registered):
    made, registry = 0, {}
    def __init__(self, x):
        self.x = x
        Particle.made += 1
@dataclasses.dataclass(slots=True)
class Point:
    x: int
class Color(enum.Enum):
    RED = 1
def make(x): return Particle(x), Point(x), Color.RED
def take(made): return Particle.made, type(made[0]) is Particle, made[2] is Color.RED
def fail(x):
    class Broken(Exception):
        level = 3
    raise Broken(Particle(x))
with pilotfish.Executor(max_workers=1) as executor:
    Particle(0)
    future = executor.submit(make, 1)
    for number in range(10):
        Particle(number)
        Particle.registry[number] = number
    particle, point, color = future.result()
    seen = executor.submit(take, future).result()
    error = executor.submit(fail, 5).exception()
print(json.dumps([Particle.made, len(Particle.registry), type(particle) is Particle, particle.x, type(point) is Point, point.x,
                  color is Color.RED, Registered.names, seen[1:], error.level, type(error.args[0]) is Particle]))
"""


def test_a_result_does_not_change_the_classes_of_the_program(tmp_path: Path) -> None:
    assert run(tmp_path, CLASSES) == [11, 10, True, 1, True, 1, True, ["Particle"], [True, True], 3, True]


INITIALIZED = """
import functools, json
import pilotfish
VALUE, UNSET, FIXED, TABLE, SCALE = None, "unset", 1, {}, 1
class Model:
    level = 0
    def read(self): return VALUE, Model.level
    @staticmethod
    def static(): return VALUE
def start(value):
    global VALUE, NEW
    VALUE = NEW = value
    TABLE["key"] = value
    Model.level = value
    assert SCALE == FIXED == 1
def first(): return VALUE, NEW, TABLE, Model.level
def second(): return VALUE, NEW, TABLE, Model.level
def call(function): return function()
def scaled(): return SCALE, VALUE
def chunk(number): return VALUE
with pilotfish.Executor(max_workers=1, initializer=start, initargs=(7,)) as executor:
    found = [executor.submit(function).result() for function in (first, second, lambda: first())]
    more = [executor.submit(*call).result() for call in
            [(functools.partial(second),), (Model().read,), (Model.static,), (call, lambda: VALUE), (scaled,)]]
    SCALE = VALUE = 2
    more += [executor.submit(scaled).result(), *executor.map(chunk, range(3), chunksize=2)]
print(json.dumps([found, more]))
"""


def test_every_function_sees_what_the_initializer_sets(tmp_path: Path) -> None:
    found, more = run(tmp_path, INITIALIZED)
    assert found == [[7, 7, {"key": 7}, 7]] * 3
    assert more == [[7, 7, {"key": 7}, 7], [7, 7], 7, 7, [1, 7], [2, 7], 7, 7, 7]


VERSIONS = """
import json
import pilotfish
SCALE = 1
class Settings:
    alpha = 1
    def scale(self): return SCALE
class Seen:
    count = 0
def read(): return Settings.alpha, Settings().scale()
def extra(): return getattr(Settings, "extra", None)
def of_argument(value, *more): return type(value).alpha
def count():
    Seen.count += 1
    return Seen.count
def count_also(): return count()
with pilotfish.Executor(max_workers=1) as executor:
    found = []
    for value in (1, 2, 1):
        Settings.alpha = SCALE = value
        found.append([executor.submit(read).result(), executor.submit(of_argument, Settings()).result()])
    Settings.alpha = 5
    future = executor.submit(count)
    found.append(executor.submit(of_argument, Settings(), future).result())
    Settings.alpha = 1
    found.append(executor.submit(read).result())
    Settings.extra = 1
    found.append(executor.submit(extra).result())
    del Settings.extra
    found.append(executor.submit(extra).result())
    found.append([executor.submit(function).result() for function in (count, count_also, count)])
print(json.dumps(found))
"""


def test_each_call_gets_the_version_of_a_class_with_which_it_was_submitted(tmp_path: Path) -> None:
    versions = [[[1, 1], 1], [[2, 2], 2], [[1, 1], 1]]
    assert run(tmp_path, VERSIONS) == [*versions, 5, [1, 1], 1, None, [2, 3, 4]]


REDEFINED = """
import enum, json
import pilotfish
class Outer:
    class Color(enum.Enum):
        RED = 1
def make(): return Outer.Color.RED
def is_red(color): return color is Outer.Color.RED
with pilotfish.Executor(max_workers=1) as executor:
    assert executor.submit(make).result() is Outer.Color.RED
    class Outer:
        class Color(enum.Enum):
            BLUE = 2
            RED = 1
    found = [executor.submit(is_red, color).result() for color in (Outer.Color.RED, executor.submit(make), Outer.Color.BLUE)]
    again, red = executor.submit(make), executor.submit(lambda: Outer.Color.RED)
    found += [executor.submit(lambda one, other: one is other, again, red).result(), again.result() is Outer.Color.RED]
print(json.dumps(found))
"""


def test_results_belong_to_a_class_as_it_was_defined_again(tmp_path: Path) -> None:
    assert run(tmp_path, REDEFINED) == [True, True, False, True, True]


COMPARED = """
import dataclasses, enum, json, typing
from pilotfish import Executor, Run

class Verdict(enum.Enum):
    OK = 1
    BAD = 2

@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    @dataclasses.dataclass(frozen=True)
    class Mark:
        y: int

class Pair(typing.NamedTuple):
    a: Verdict
    b: Point

class Refused(Exception):
    pass

def judge(x):
    return (Verdict.OK if x % 2 == 0 else Verdict.BAD), Point(x), Point.Mark(x), Pair(Verdict.OK, Point(x))

def refuse(x):
    raise Refused(x)

def compare(value, x):
    return value == expected(x) and isinstance(value[3], Pair)

def compare_arguments(value, other):
    return value == other and type(value[1]) is type(other[1])

def expected(x):
    return (Verdict.BAD if x % 2 else Verdict.OK), Point(x), Point.Mark(x), Pair(Verdict.OK, Point(x))

def catch(future):
    try:
        future.result()
    except Refused as error:
        return error.args[0] == 5

def passed(futures, submit):
    calls = [submit(compare, future, x) for x, future in enumerate(futures)]
    calls += [submit(compare_arguments, future, expected(x)) for x, future in enumerate(futures)]
    return calls + [submit(compare_arguments, future, submit(expected, x)) for x, future in enumerate(futures)]

def seen(futures, submit):
    values = [future.result() for future in futures]
    mine = [value == expected(x) and value[0] is expected(x)[0] and type(value[3]) is Pair for x, value in enumerate(values)]
    return [*mine, *(submit(compare, value, x).result() for x, value in enumerate(values))]

found = []
with Run("other", pool="shared") as other, Executor(pool="shared", cache=True) as executor:
    futures = [executor.submit(judge, x) for x in range(2)]
    found += [future.result() for future in passed(futures, executor.submit)]
    found += seen(futures, executor.submit) + seen(futures, other.submit)
with Run("work", pool="shared", resume=True) as run:
    futures = [run.submit(judge, x) for x in range(2)]
    found += [future.result() for future in passed(futures, run.submit)]
    found += [*seen(futures, run.submit), catch(run.submit(refuse, 5))]
with Run("first" if FIRST else "later", pool="shared") as run:
    for future in [run.submit(judge, 0), run.submit(judge, 1), run.submit(refuse, 5)]:
        future.exception()
    *futures, refused = Run.find("first", pool="shared").futures()[:3]
    found += [*seen(futures, run.submit), catch(refused)]
print(json.dumps(found))
"""


def test_reused_and_found_values_belong_to_the_classes_of_the_program(tmp_path: Path) -> None:
    for is_first in (True, False):
        found = run(tmp_path, COMPARED.replace("FIRST", str(is_first)))
        assert [place for place, one in enumerate(found) if not one] == []
