from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import numpy
import pytest

from pilotfish.applications.calls.saved_value import NotPlain, plain, save_value, value_as_text
from pilotfish.portable.payload_format import pack


def result_of(value: Any) -> bytes:
    """Packs a value as a slot does: the large buffers are beside the pickle."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return pack([b"", data, b"", b"", *(buffer.raw() for buffer in buffers)])


def endless() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


PLAIN = [
    (None, "null"),
    (True, "true"),
    (10**30, str(10**30)),
    (0.1, "0.1"),
    ("é\n", "é\n"),
    ([1, "a", [None]], '[1, "a", [null]]'),
    ((1, 2.5), "[1, 2.5]"),
    ({"x": {"y": (1,)}}, '{"x": {"y": [1]}}'),
    (numpy.float64(0.5), "0.5"),
    ([numpy.int32(3), numpy.bool_(True)], "[3, true]"),
]
OTHER = [float("nan"), [float("inf")], {1: 2}, {1}, b"x", 1j, endless(), type("Text", (str,), {})("x"), numpy.datetime64("2026-01-01")]


@pytest.mark.parametrize(("value", "cell"), PLAIN)
def test_a_plain_value_is_saved_and_shown_as_json(value: Any, cell: str) -> None:
    name, data = save_value(value, b"", readable=True)
    assert (name, json.loads(data)) == ("value.json", plain(value))
    assert value_as_text(value) == cell


@pytest.mark.parametrize("value", OTHER, ids=lambda value: type(value).__name__)
def test_a_value_without_an_exact_form_in_json_is_not_plain(value: Any) -> None:
    with pytest.raises(NotPlain):
        plain(value)
    assert value_as_text(value) == repr(value)


def test_an_array_is_saved_as_npy_unless_it_holds_objects(tmp_path: Any) -> None:
    array = numpy.arange(6.0).reshape(2, 3)
    name, data = save_value(array, result_of(array), readable=True)
    (tmp_path / name).write_bytes(data)
    assert name == "value.npy" and (numpy.load(tmp_path / name) == array).all()
    objects = numpy.array([{}, None])
    name, data = save_value(objects, result_of(objects), readable=True)
    assert name == "value.pickle" and list(pickle.loads(data)) == [{}, None]


def test_other_values_keep_the_pickle_of_the_task_even_if_it_cannot_be_read_here() -> None:
    assert save_value({1: 2}, result_of({1: 2}), readable=True) == ("value.pickle", pickle.dumps({1: 2}, 5))
    unknown = b"cno_such_module\nThing\n."
    assert save_value(ImportError(), pack([b"", unknown, b"", b""]), readable=False) == ("value.pickle", unknown)


def test_buffers_beside_the_pickle_are_joined_with_it_and_stay_writable() -> None:
    value = {"masses": numpy.ones(3), "name": "a"}
    name, data = save_value(value, result_of(value), readable=True)
    again = pickle.loads(data)
    again["masses"] += 1
    assert name == "value.pickle" and list(again["masses"]) == [2, 2, 2] and again["name"] == "a"


def test_numpy_is_imported_only_for_values_of_numpy() -> None:
    program = """
import sys
from pilotfish.applications.calls.saved_value import save_value
save_value([1], b"", True)
print("numpy" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
