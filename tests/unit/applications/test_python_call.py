import functools
import gc
import operator
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy
import pytest

from pilotfish.applications.calls import python_call as module
from pilotfish.applications.calls.python_call import SOURCE, CallEncoder, chunked
from pilotfish.applications.executables.program_environment import import_path
from pilotfish.errors import BadInput
from pilotfish.model.task import TaskSpec
from pilotfish.portable.payload_format import Buffer, join_pieces, unpack
from tests.support.fake_slot import function_code


class Register:
    """Numbers specs as a run does, but every one anew, so that a test sees what is registered twice."""

    def __init__(self) -> None:
        self.specs: list[tuple[TaskSpec, bytes]] = []

    def __call__(self, spec: TaskSpec, code: bytes) -> int:
        self.specs.append((spec, function_code(spec, code)))
        return len(self.specs) - 1


def double(x: int) -> int:
    return 2 * x


def arguments(payload: bytes | list[Buffer]) -> Any:
    head, *buffers = unpack(join_pieces(payload))
    return pickle.loads(head, buffers=buffers)


def test_a_function_is_pickled_once_and_found_again_by_identity() -> None:
    register = Register()
    calls = CallEncoder(register)
    numbers = {calls.encode(double, (i,), {})[0] for i in range(100)}
    assert numbers == {0}
    assert len(register.specs) == 1
    assert register.specs[0][0].name == "double"
    assert register.specs[0][0].launch["python"] == list(sys.version_info[:2])


def test_arguments_travel_with_the_task() -> None:
    _, payload = CallEncoder(Register()).encode(double, (1, "two"), {"three": 3})
    assert arguments(payload) == ((1, "two"), {"three": 3})


def test_a_bound_method_travels_with_its_object_each_time() -> None:
    register = Register()
    calls = CallEncoder(register)
    things: list[int] = [1]
    for size in (1, 2):
        number, payload = calls.encode(things.count, (1,), {})
        (function, value), _ = arguments(payload)
        assert function(value) == size
        things.append(1)
    assert len(register.specs) == 1
    assert pickle.loads(register.specs[number][1]) is operator.call


def test_a_partial_travels_each_time_under_the_name_of_its_function() -> None:
    register = Register()
    _, payload = CallEncoder(register).encode(functools.partial(pow, 2), (5,), {})
    (function, value), _ = arguments(payload)
    assert function(value) == 32
    assert register.specs[0][0].name == "pow"


def test_a_callable_with_state_is_not_searched_because_it_travels_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = CallEncoder(Register())
    monkeypatch.setattr(module, "FunctionBindings", lambda *given: pytest.fail("the object is searched"))
    for function in (bytearray(1 << 20).find, functools.partial(max, bytes(1 << 20))):
        calls.encode(function, (b"x",), {})


def test_the_source_of_a_compiled_function_is_its_import() -> None:
    calls = CallEncoder(register := Register(), form="source")
    assert [calls.encode(numpy.sqrt, (4.0,), {})[0] for _ in range(2)] == [0, 0]
    assert register.specs[0][1] == b"from numpy import sqrt as sqrt"


@pytest.mark.parametrize("wrap", [lambda future: future, lambda future: [future]])
def test_a_future_of_another_executor_is_refused_with_the_fix(wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(BadInput, match="is a future of another executor") as caught:
        CallEncoder(Register()).encode(double, (wrap(Future()),), {})
    assert caught.value.hint == "pass its .result()"


def test_many_closures_over_one_code_do_not_become_as_many_specs() -> None:
    register = Register()
    calls = CallEncoder(register)

    def adder(n: int) -> Callable[[int], int]:
        return lambda x: x + n

    for n in range(100):
        number, payload = calls.encode(adder(n), (1,), {})
        args, _ = arguments(payload)
        function = pickle.loads(register.specs[number][1])
        assert function(*args) == n + 1
    assert len(register.specs) == module._CLOSURES_PER_CODE + 1


def test_a_function_that_nobody_holds_is_not_kept_and_its_place_not_mistaken() -> None:
    register = Register()
    calls = CallEncoder(register)

    def make(n: int) -> Callable[[], int]:
        return lambda: n

    for n in range(10):
        calls.encode(make(n), (), {})
        gc.collect()
    assert not calls._known
    assert {pickle.loads(code)() for _, code in register.specs} == set(range(10))


def test_a_large_buffer_is_not_copied_into_the_pickle() -> None:
    data = bytearray(1_000_000)
    _, payload = CallEncoder(Register()).encode(double, (pickle.PickleBuffer(data),), {})
    (_, _, view) = payload
    assert isinstance(view, memoryview)
    assert view.obj is data
    head, buffer = unpack(join_pieces(payload))
    assert len(head) < 1000
    assert len(buffer) == 1_000_000


def test_large_bytes_are_not_copied_and_arrive_as_bytes() -> None:
    data, more = bytes(1_000_000), b"x" * 500_000
    _, payload = CallEncoder(Register()).encode(double, (data, 7), {"more": more})
    (_, _, first, second) = payload
    assert isinstance(first, memoryview) and isinstance(second, memoryview)
    assert first.obj is data and second.obj is more
    assert arguments(payload) == ((data, 7), {"more": more})


def test_what_plain_pickle_cannot_do_is_left_to_cloudpickle() -> None:
    _, payload = CallEncoder(Register()).encode(double, (lambda: 42,), {})
    (function,), _ = arguments(payload)
    assert function() == 42


def test_a_class_of_main_is_sent_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    made = type("Made", (), {"__module__": "__main__", "answer": 42})
    monkeypatch.setattr(main, "Made", made, raising=False)
    _, payload = CallEncoder(Register()).encode(double, (made,), {})
    assert b"answer" in payload


def test_a_spec_of_source_has_the_name_of_its_function_and_no_installed_packages() -> None:
    number, _ = CallEncoder(register := Register(), form=SOURCE).encode(double, (1,), {})
    spec, code = register.specs[number]
    names: dict[str, Any] = {}
    exec(code, names)
    assert names[spec.launch["name"]](4) == 8
    assert spec.python == "" and not any("site-packages" in place for place in spec.launch["path"])


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(BadInput, match="form: 'json'"):
        CallEncoder(Register(), form="json")


def test_the_import_path_has_our_directories_and_not_the_standard_library() -> None:
    path = import_path()
    assert not any(place.endswith((f"python{sys.version_info.major}.{sys.version_info.minor}", "lib-dynload")) for place in path)
    assert any("site-packages" in place for place in path)


def test_a_chunk_calls_the_function_over_its_rows_without_our_package() -> None:
    CallEncoder(register := Register()).encode(chunked(abs), ([(-1,), (2,)],), {})
    (spec, code) = register.specs[0]
    assert spec.name == "abs (chunk)"
    there = "import pickle, sys; sys.modules['pilotfish'] = None; print(pickle.load(sys.stdin.buffer)([(-1,), (2,)]))"
    assert subprocess.run([sys.executable, "-c", there], input=code, capture_output=True, check=True).stdout == b"[1, 2]\n"
