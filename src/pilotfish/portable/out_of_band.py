"""Keeps large bytes objects out of pickles: they become parts of the payload beside the pickle, so that they are not copied."""

from __future__ import annotations

from pickle import PickleBuffer
from typing import Any, Tuple

MIN_BYTES = 64 * 1024
"""Bytes objects with more bytes than this stay out of the pickle."""


class OutOfBandBytes:
    """Wraps a bytes object. The receiver unpickles the wrapper as bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> Tuple[Any, ...]:
        return bytes, (PickleBuffer(self._data),)


def out_of_band(value: Any) -> Any:
    """Returns a large bytes object in a wrapper. Returns any other value unchanged."""
    return OutOfBandBytes(value) if type(value) is bytes and len(value) > MIN_BYTES else value
