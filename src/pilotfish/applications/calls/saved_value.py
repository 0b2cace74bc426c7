"""Turns the return value of a Python call into a file or into JSON.

- A plain value becomes JSON. Plain values are None, True, False, finite numbers and texts. Lists and tuples of plain values are plain
  values, too, and also dicts of plain values whose keys are texts.
- A numpy array without Python objects becomes ``.npy``.
- Any other value stays the pickle that the task made. It can be saved even if this program cannot unpickle it.
"""

from __future__ import annotations

import functools
import io
import json
import math
import pickle
import sys
from typing import Any, NamedTuple

from pilotfish.applications.calls.python_result import unpack_result
from pilotfish.portable.payload_format import Buffer


class NotPlain(Exception):
    """The value has no exact form in JSON."""


class SavedValue(NamedTuple):
    name: str
    data: bytes


def plain(value: Any) -> Any:
    """Returns the JSON form of a value. A tuple becomes a list, and a numpy number becomes a number. Raises NotPlain for other values."""
    try:
        return _plain(value)
    except RecursionError:
        raise NotPlain from None


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float and math.isfinite(value):
        return value
    if kind in (list, tuple):
        return [_plain(one) for one in value]
    if kind is dict and all(type(key) is str for key in value):
        return {key: _plain(one) for key, one in value.items()}
    numpy = sys.modules.get("numpy")  # if numpy was not imported, no value comes from numpy
    if numpy is not None and isinstance(value, numpy.generic) and type(value.item()) in (bool, int, float, str):
        return _plain(value.item())
    raise NotPlain


def value_as_text(value: Any) -> str:
    """Returns a value as the text of one table cell: a text unchanged, any other plain value as JSON, and all other values as Python shows
    them."""
    try:
        shown = plain(value)
    except NotPlain:
        return repr(value)
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)


def save_value(value: Any, payload: Buffer, readable: bool) -> SavedValue:
    """Returns the file for the value of a task. ``payload``: the result of the task, which contains the value. ``readable``: whether the
    value was unpickled."""
    if readable:
        try:
            return SavedValue("value.json", json.dumps(plain(value), ensure_ascii=True).encode() + b"\n")
        except NotPlain:
            pass
        numpy = sys.modules.get("numpy")
        if numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject:
            stream = io.BytesIO()
            numpy.save(stream, value, allow_pickle=False)
            return SavedValue("value.npy", stream.getvalue())
    return SavedValue("value.pickle", _whole_pickle(payload))


def _whole_pickle(payload: Buffer) -> bytes:
    """Returns the pickle in a result. If the result also has large buffers, returns a new pickle that contains the first pickle and the
    buffers."""
    _, data, _, _, *buffers = unpack_result(payload)
    if not buffers:
        return bytes(data)
    load = functools.partial(pickle.loads, buffers=[bytearray(buffer) for buffer in buffers])
    return pickle.dumps(_Loaded(load, bytes(data)), 5)


class _Loaded:
    """Is pickled as the call ``load(data)``, so that unpickling gives the value itself. Unpickling needs only the standard library."""

    def __init__(self, load: functools.partial[Any], data: bytes) -> None:
        self._call = load, (data,)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call
