"""Calls the initializer of an executor once in each slot.

The initializer can set global variables of the main program and attributes of its classes. All functions of the executor must see these
values. But each function arrives in a pickle of its own, with its own copy of the global variables. So the slot notes what the initializer
has changed, and repeats the changes for each function that it loads later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pilotfish.api.shared_locks import LockServer, dump_with_locks, is_managed, reduce_managed
from pilotfish.errors import BadInput

State = tuple[Any, bytes | None]
"""A value, and what ``state_of`` returns for it."""


def _make_comparison() -> tuple[Callable[[Any], dict[str, State]], Callable[[State | None, Any], bool]]:
    """Defines two functions. ``states_of`` notes the state of each value of a dict. ``has_changed`` tests whether a value has changed since
    then. Both are pickled by value, like the class that uses them."""

    def states_of(names: Any) -> dict[str, State]:
        return {name: (value, state_of(value)) for name, value in list(names.items())}

    def has_changed(before: State | None, value: Any) -> bool:
        return before is None or before[0] is not value or before[1] is None or before[1] != state_of(value)

    def state_of(value: Any) -> bytes | None:
        """Returns a hash of the pickle of a value. Returns empty bytes for values that are compared only by identity, such as numbers,
        texts, classes and functions. Returns None if the value cannot be pickled. Such a value counts as changed."""
        import types
        from hashlib import blake2b

        import cloudpickle  # type: ignore[import-untyped]

        digest = blake2b()
        if isinstance(value, (type, types.FunctionType, types.ModuleType, str, bytes, int, float)):
            return b""

        class Hasher:
            def write(self, data: Any) -> None:
                digest.update(data)

        try:
            cloudpickle.Pickler(Hasher(), 5, buffer_callback=lambda buffer: digest.update(buffer.raw())).dump(value)
        except Exception:  # noqa: BLE001 (the classes of values may raise anything)
            return None
        return digest.digest()

    return states_of, has_changed


def _make_effects_class() -> type:
    """Defines the class of the effects in a slot. The class is pickled by value, so it must not use names of this module."""
    states_of, has_changed = _make_comparison()

    class Effects:
        """Records and repeats the changes that an initializer makes. ``name``: name of the list to which the slot adds the global variables
        of loaded functions."""

        def __init__(self, name: str) -> None:
            self._loaded_name = name
            self._changes: list[tuple[Any, dict[str, Any]]] = []
            """Pairs of an owner and its changes. Owners are names of modules with their changed global variables, and classes with their
            changed attributes."""

        def run(self, initializer: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
            """Calls the initializer, and notes what it changes."""
            noted: list[tuple[Any, Any, dict[str, State]]] = []
            for names in self._loaded():
                noted.append((names.get("__name__"), names, states_of(names)))
                for value in list(names.values()):
                    if isinstance(value, type) and value.__module__ == names.get("__name__"):
                        noted.append((value, vars(value), states_of(vars(value))))
            initializer(*arguments)
            for owner, names, before in noted:
                now = vars(owner) if isinstance(owner, type) else names
                changed = {name: value for name, value in list(now.items()) if has_changed(before.get(name), value)}
                self._changes.append((owner, {name: value for name, value in changed.items() if name[:2] != "__"}))

        def apply(self) -> None:
            """Repeats the changes for the functions that were loaded since the last call of ``apply``."""
            loaded = self._loaded()
            for owner, changes in self._changes:
                if isinstance(owner, type):
                    for name, value in changes.items():
                        if vars(owner).get(name, self) is not value:
                            setattr(owner, name, value)
                else:
                    for names in loaded:
                        if names.get("__name__") == owner:
                            names.update(changes)
            loaded.clear()

        def _loaded(self) -> list[dict[str, Any]]:
            import sys

            found: list[dict[str, Any]] = sys.__dict__.setdefault(self._loaded_name, [])
            return found

    return Effects


_Effects = _make_effects_class()


def initialized(function: Callable[..., Any], initializer: Callable[..., Any], initargs: tuple[Any, ...], token: str) -> Callable[..., Any]:
    """Wraps a function of an executor. The first wrapper that is called in a slot calls the initializer before its function. ``token``:
    unique name of the executor. The wrapper must not import this package, because slots do not have this package."""
    effects = _Effects(slot_globals_name(token))

    def run_initialized(*args: Any, **kwargs: Any) -> Any:
        import sys
        from concurrent.futures import BrokenExecutor

        done = sys.__dict__.setdefault("_pilotfish_initialized", {})
        if token not in done:
            try:
                effects.run(initializer, initargs)
                done[token] = effects
            except BaseException as error:  # noqa: BLE001 (user code may raise anything)
                done[token] = f"the initializer failed: {type(error).__name__}: {error}"
        if isinstance(done[token], str):
            raise BrokenExecutor(done[token])
        done[token].apply()
        return function(*args, **kwargs)

    run_initialized.__name__ = getattr(function, "__name__", "call")
    run_initialized.__qualname__ = getattr(function, "__qualname__", run_initialized.__name__)
    return run_initialized


def slot_globals_name(token: str) -> str:
    return f"_pilotfish_globals_{token}"


class Initializer:
    """The initializer of one executor.

    ``serves_locks``: whether the slots can use locks of this program. They can, if the pool is private.
    """

    def __init__(self, function: Callable[..., object], arguments: tuple[Any, ...], token: str, serves_locks: bool) -> None:
        self._function = function
        self._arguments = arguments
        self._token = token
        self._serves_locks = serves_locks
        self._server: LockServer | None = None
        self.slot_globals = slot_globals_name(token)

    def dump(self, function: Callable[..., Any]) -> bytes:
        """Pickles a function in a wrapper. In a slot that has not called the initializer yet, the wrapper calls the initializer before the
        function.

        The function and the initializer are in one pickle, so that they have the same global variables in the slot.
        """
        try:
            wrapped = initialized(function, self._function, self._arguments, self._token)
            return dump_with_locks(wrapped, self._proxy, self.slot_globals)
        except RuntimeError as error:  # multiprocessing refuses to pickle its objects
            text = f"initargs: {error}"
            raise BadInput(text, "give locks and semaphores; create queues, events and conditions with multiprocessing.Manager") from error

    def _proxy(self, lock: Any) -> Any:
        if not self._serves_locks:
            text = f"initargs: {lock!r} belongs to this program, and workers of a shared pool or of a site cannot use it"
            raise BadInput(text, "leave out pool= and sites=: the workers of a private pool can use it; or do without it")
        if is_managed(lock):
            return reduce_managed(lock)
        self._server = self._server or LockServer()
        return self._server.proxy(lock)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
