"""Loads arguments that contain the results of earlier calls.

An argument can contain futures of earlier calls. The client pickles each of these futures as a persistent id: a number. The payload of the
call has the arguments and the numbered results. Each result is in the form in which the slot of the earlier call pickled it. Of a large
result, the payload has only a reference: the result itself is in a shared file of the master or in the cache of this node.
"""

from __future__ import annotations

import json
import mmap
import os
from io import BytesIO
from typing import Any, Callable, Dict, List, Sequence

from ...portable.class_unpickler import ProgramUnpickler, classes_of_calls, load_result
from ...portable.failures import AttemptError, is_limit
from ...portable.payload_format import PayloadFormatError, split_files, unpack
from ...portable.payload_reference import read_payload
from ...portable.transfer.cache_directory import content_path


def load_with_results(body: Any, share: str, cache: str) -> Any:
    """Returns the arguments of a call. ``share``: directory of shared payloads, or "". ``cache``: directory of the content cache."""
    files, body = split_files(memoryview(body))
    head, arguments, *results = unpack(body)
    names = [str(name) for name in json.loads(bytes(head))["results"]]
    digests = {int(entry[0]): str(entry[2]) for entry in files}
    loader = _ArgumentLoader(names, results, digests, share, cache)
    return loader.arguments(arguments)


class _ArgumentUnpickler(ProgramUnpickler):
    def __init__(self, payload: Any, value: Callable[[int], Any]) -> None:
        pickled, *buffers = unpack(payload)
        super().__init__(BytesIO(pickled), buffers=_owned(buffers))
        self._value = value

    def persistent_load(self, number: int) -> Any:
        return self._value(number)


class _ArgumentLoader:
    """Loads each result once, even if several arguments contain it."""

    def __init__(self, names: List[str], results: Sequence[Any], digests: Dict[int, str], share: str, cache: str) -> None:
        self._names = names
        self._results = results
        self._digests = digests
        self._share = share
        self._cache = cache
        self._values: Dict[int, Any] = {}

    def arguments(self, payload: Any) -> Any:
        unpickler = _ArgumentUnpickler(read_payload(self._share, payload), self._value)
        value = unpickler.load()
        if unpickler.has_replaced and self._values:
            # Some results were loaded before a class of the call, so they use an older class. Load all results again.
            self._values.clear()
            value = _ArgumentUnpickler(read_payload(self._share, payload), self._value).load()
        return value

    def _value(self, number: int) -> Any:
        if number not in self._values:
            name = self._names[number]
            try:
                parts = unpack(self._payload(number))
                if len(parts) < 4:
                    raise PayloadFormatError("it has %d parts" % len(parts))
                self._values[number] = load_result(parts[1], classes_of_calls.get, _owned(parts[4:]))
            except (OSError, PayloadFormatError) as error:
                if isinstance(error, OSError) and is_limit(error):
                    raise
                text = "the result of task %s, which is in its arguments, cannot be read any more: %s" % (name, error)
                raise AttemptError("missing-input", "task", text) from error
            except Exception as error:  # noqa: BLE001  loading a result runs code of the user's modules
                text = "the result of task %s, which is in its arguments, cannot be loaded here" % name
                raise AttemptError("unpickle", "user", "%s: %s: %s" % (text, type(error).__name__, error)) from error
        return self._values[number]

    def _payload(self, number: int) -> Any:
        if number not in self._digests:
            return read_payload(self._share, self._results[number])
        descriptor = os.open(content_path(self._cache, self._digests[number]), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
        finally:
            os.close(descriptor)


def _owned(buffers: List[memoryview]) -> List[Any]:
    """Copies those buffers that are parts of a received frame. Without these copies, the loaded values would keep the whole frame in
    memory."""
    return [buffer if isinstance(buffer.obj, mmap.mmap) else bytearray(buffer) for buffer in buffers]
