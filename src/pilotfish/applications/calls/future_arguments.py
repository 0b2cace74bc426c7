"""Finds futures in the arguments of a call.

Each call is first pickled with the usual pickler. If the arguments contain a future, this raises FutureFound, and the call is pickled again
with a pickler of this module.

The pickler of this module finds futures wherever they are: in lists, in dicts, in attributes of objects. In the pickle, a persistent id
replaces each future whose result this program does not have. In the slot, the result of the task replaces the persistent id.
"""

from __future__ import annotations

import io
import operator
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

from pilotfish.applications.calls.function_pickler import FunctionPickler
from pilotfish.model.contents import RESULT, ExpectedFile


class FutureFound(pickle.PicklingError):
    """A future was found while a value was pickled."""


class FutureResult:
    """Base class of futures, and of ``ListedResult`` in a TaskList. In the arguments of a call, such an object stands for the result of
    its task."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise FutureFound(f"{self!r} cannot be pickled: give it to submit as an argument of the call, not inside of its function")


class Known(NamedTuple):
    """A result that this program already has. The result is sent with the arguments of the call."""

    value: Any


Find = Callable[[Any], int | Known]
"""A function that gets a future and returns its result or the index of its task. It raises an error if the future cannot be an argument."""


class FutureArguments:
    """The futures in the arguments of one call."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._found: dict[int, tuple[Any, int | Known]] = {}
        """Maps the ``id`` of a future to the future, and to its result or the index of its task. Each future is looked up only once, so all
        its occurrences are treated alike, even if its task ends between two of them."""
        self._numbers: dict[int, int] = {}

    @property
    def futures(self) -> list[Any]:
        """Returns the futures whose results this program does not have. The workers get these results from each other."""
        return [future for future, found in self._found.values() if not isinstance(found, Known)]

    @property
    def needed(self) -> tuple[ExpectedFile, ...]:
        """Returns the results that the call waits for."""
        return tuple(ExpectedFile(maker, RESULT, str(number)) for maker, number in self._numbers.items())

    def dump(self, value: object, by_value: bool, slot_globals: str = "") -> tuple[bytes, list[pickle.PickleBuffer]]:
        """Pickles a value, with cloudpickle if ``by_value``. Returns the pickle and its large buffers. ``slot_globals``: see
        ``FunctionPickler``."""
        self._numbers.clear()
        buffers: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        pickler: _CloudPickler | _Pickler
        if by_value:
            pickler = _CloudPickler(file, 5, buffer_callback=buffers.append)
            pickler.slot_globals = slot_globals
        else:
            pickler = _Pickler(file, 5, buffer_callback=buffers.append)
        pickler.arguments = self
        pickler.dump(value)
        return file.getvalue(), buffers

    def look_up(self, future: FutureResult) -> int | Known:
        known = self._found.get(id(future))
        if known is None:
            known = self._found[id(future)] = future, self._find(future)
        return known[1]

    def number(self, value: object) -> int | None:
        """If ``value`` is a future whose result this program does not have, returns a number for the result. The first such future that the
        pickler finds has the number 0. Returns None for any other value."""
        if not isinstance(value, FutureResult):
            return None
        maker = self.look_up(value)
        return None if isinstance(maker, Known) else self._numbers.setdefault(maker, len(self._numbers))

    def reduce(self, value: object) -> Any:
        if not isinstance(value, FutureResult):
            return NotImplemented
        known = self.look_up(value)
        assert isinstance(known, Known), known
        return operator.getitem, ((known.value,), 0)  # a call of the standard library, because slots do not have this package


class _Pickler(pickle.Pickler):
    arguments: FutureArguments

    def persistent_id(self, value: Any) -> int | None:
        return self.arguments.number(value)

    def reducer_override(self, value: Any) -> Any:
        return self.arguments.reduce(value)


class _CloudPickler(FunctionPickler):
    arguments: FutureArguments

    def persistent_id(self, value: Any) -> int | None:
        return self.arguments.number(value)

    def reducer_override(self, value: Any) -> Any:
        reduced = self.arguments.reduce(value)
        return super().reducer_override(value) if reduced is NotImplemented else reduced
