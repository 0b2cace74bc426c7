"""Unpickles values whose pickles contain classes, such as the classes of the main program.

cloudpickle gives each class an id. If a process already has a class with the same id as a class in a pickle, cloudpickle uses the class of
the process, but overwrites its attributes with those in the pickle. With this module, these rules hold instead:

- The id of a class contains its module and name. An object in a result gets the class that the reader (the program or a call) has under
  this name, even if the result comes from an earlier start of the program. So comparisons, ``isinstance`` and ``except`` work.
- A result never changes a class that the reader has. For readers that do not have the class, the pickle of the result also contains the
  class, with the attributes that it had in the slot.
- If there are several versions of a class of the main program, a slot still has only one class object for all of them. Each call gets the
  version that it was submitted with. While the version stays the same, the slot keeps what earlier calls have assigned to attributes of the
  class.
"""

from __future__ import annotations

import sys
from io import BytesIO
from pickle import Unpickler
from pickle import loads as from_pickle
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple
from weakref import WeakKeyDictionary

CLASS_STATE = b"_class_setstate"
"""The name of a function of cloudpickle. A pickle that contains a class contains this name."""
_MODULE = "cloudpickle.cloudpickle"
_MAKERS = ("_make_skeleton_class", "_make_skeleton_enum")


classes_of_calls: Dict[str, type] = {}
"""In a slot: maps the name of a class to the class that the running call uses."""


def name_in_id(identifier: Any) -> str:
    """Returns the module and qualified name in the id of a class, or "" if the id contains no name."""
    return str(identifier).rpartition(":")[0]


def class_of_program(name: str) -> Optional[type]:
    """Returns the class of this program that has the name ``module:qualified name``. Returns None if there is no such class."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def load_result(data: Any, class_of: Callable[[str], Optional[type]], buffers: Optional[Iterable[Any]] = None) -> Any:
    """Unpickles a result. ``class_of``: function that returns the reader's class with a given name. ``buffers``: the large buffers of the
    result."""
    data = bytes(data)
    if CLASS_STATE in data:
        return _ResultUnpickler(BytesIO(data), class_of, buffers).load()
    return from_pickle(data, buffers=buffers)


class _ResultUnpickler(Unpickler):
    def __init__(self, file: BytesIO, class_of: Callable[[str], Optional[type]], buffers: Optional[Iterable[Any]]) -> None:
        super().__init__(file, buffers=buffers)
        self._class_of = class_of
        self._made: Set[type] = set()
        """The classes that this process did not have before."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if module == _MODULE and name in _MAKERS:
            return lambda *arguments: self._find_or_make(found, arguments)
        if module == _MODULE and name == "_class_setstate":
            return lambda made, state: found(made, state) if made in self._made else made
        return found

    def _find_or_make(self, make: Callable[..., type], arguments: Any) -> type:
        identifier = arguments[-2]
        name = name_in_id(identifier)
        known = self._class_of(name)
        if known is None:
            known = make.__globals__["_DYNAMIC_CLASS_TRACKER_BY_ID"].get(identifier)
        if known is None:
            known = make(*arguments)
            self._made.add(known)
            if name:
                classes_of_calls.setdefault(name, known)
        return known


class ClassVersion:
    """One version of a class in a slot. ``state``: the attributes of the class, as cloudpickle sets them with ``set_state``."""

    current: "WeakKeyDictionary[type, Tuple[Any, Tuple[str, ...]]]" = WeakKeyDictionary()
    """The number of the version that each class has now in this process, and the names of the attributes of this version."""

    def __init__(self, made: type, name: str, number: Any, state: Any, set_state: Callable[..., Any]) -> None:
        self.made, self.name, self.number, self.state, self.set_state = made, name, number, state, set_state

    def use(self) -> None:
        """Gives the class the attributes of this version, if it has a different version now. Results among the arguments of the call then
        use this class."""
        if self.name:
            classes_of_calls[self.name] = self.made
        number, names = self.current.get(self.made, (None, ()))
        if number == self.number and number is not None:
            return
        for name in names:
            if name not in self.state[0] and name in vars(self.made):
                delattr(self.made, name)
        self.set_state(self.made, self.state)
        self.current[self.made] = self.number, tuple(self.state[0])


def load_from_program(data: Any, buffers: Optional[Iterable[Any]] = None) -> Tuple[Any, List[ClassVersion]]:
    """Unpickles a function or arguments. Returns the value, and the versions of the classes in the pickle. The classes in this process now
    have these versions."""
    data = bytes(data)
    if CLASS_STATE not in data:
        return from_pickle(data, buffers=buffers), []
    unpickler = ProgramUnpickler(BytesIO(data), buffers=buffers)
    return unpickler.load(), unpickler.versions


class ProgramUnpickler(Unpickler):
    """Unpickles a function or arguments. ``versions``: the versions of the classes in the pickle. ``has_replaced``: whether a class in the
    pickle replaced another class with the same name."""

    def __init__(self, file: BytesIO, buffers: Optional[Iterable[Any]]) -> None:
        super().__init__(file, buffers=buffers)
        self._known: Dict[type, Tuple[str, Any]] = {}
        """The name and the version of each class."""
        self.versions: List[ClassVersion] = []
        self.has_replaced = False

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if module == _MODULE and name in _MAKERS:
            return lambda *arguments: self._make(found, arguments)
        if module == _MODULE and name == "_class_setstate":
            return lambda made, state: self._set_state(made, state, found)
        return found

    def _make(self, make: Callable[..., type], arguments: Any) -> type:
        made = make(*arguments)
        self._known[made] = name_in_id(arguments[-2]), (arguments[-1] or {}).get("version")
        return made

    def _set_state(self, made: type, state: Any, set_state: Callable[..., Any]) -> None:
        version = ClassVersion(made, *self._known.get(made, ("", None)), state, set_state)
        self.has_replaced |= classes_of_calls.get(version.name, made) is not made
        version.use()
        self.versions.append(version)
