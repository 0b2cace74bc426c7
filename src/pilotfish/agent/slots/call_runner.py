"""Runs Python calls, and calls of application workers, in the process of the slot. Catches the exceptions of user code."""

from __future__ import annotations

import json
import mmap
import sys
from os import getpid
from pickle import PickleBuffer, UnpicklingError
from pickle import dumps as to_pickle
from pickle import loads as from_pickle
from typing import Any, Callable, Dict, List, Optional, Tuple

from ...portable.failures import AttemptError, Failure
from ...portable.payload_format import PayloadFormatError, unpack
from ...portable.wire.frames import MAX_BODY
from .output_capture import OUTPUT_CAP, StreamCapture

QUICK_S = 0.0005
FLUSH_S = 0.001
MAX_MESSAGE_CHARACTERS = 2000
MAX_TRACEBACK_CHARACTERS = 20_000
ONE_PART = b"\0\0\0\1"
ONE_PART_HEADER_BYTES = 12
LARGE_BYTES = 64 * 1024
MAX_RESULT_BYTES = MAX_BODY - 2 * OUTPUT_CAP - (1 << 20)


class Terminated(BaseException):
    """Raised in user code that has exceeded its time limit."""


class CallSpec:
    """One spec of calls in this slot. Its function is loaded once."""

    def __init__(self, kind: str, launch: Dict[str, Any], code: bytes) -> None:
        self.kind = kind
        self.launch = launch
        self.code: Any = code
        self.function: Optional[Callable[..., Any]] = None
        self.instance: Any = None
        self.recent_s = 1.0

    def flush_after_s(self) -> float:
        """Returns how long reports of earlier attempts may wait when a call starts. No report can be sent while the call runs."""
        return FLUSH_S if self.recent_s <= QUICK_S else 0.0


class OutOfBandBytes:
    """Large bytes that are not copied into the pickle. The receiver gets them as ``bytes``."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> Tuple[Any, ...]:
        return bytes, (PickleBuffer(self._data),)


class CallRunner:
    """Runs calls. ``in_user_code``: whether user code runs now; signal handlers read this."""

    def __init__(self, capture: StreamCapture, bundle: str) -> None:
        self.in_user_code = False
        self.keep_children: List[int] = []
        self._capture = capture
        self._bundle = bundle
        self._specs_with_instances: List[CallSpec] = []

    def run(self, spec: CallSpec, body: memoryview) -> Tuple[Optional[Failure], List[Any]]:
        """Runs one call; returns (failure or None, parts of the result payload)."""
        buffers: List[Any] = []
        try:
            try:
                function = spec.function or self._prepare(spec)
                arguments = self._arguments(body)
                self.in_user_code = True
                try:
                    if spec.kind == "application":
                        value = function(arguments)
                    else:
                        value = function(*arguments[0], **arguments[1])
                finally:
                    self.in_user_code = False
                pickled = self._pickle(value, buffers)
            except Terminated:
                raise
            except AttemptError as error:
                return self._failed(error, error.failure)
            except BaseException as error:  # noqa: BLE001  user code may raise anything
                return self._failed(error, ["exception", "task", _describe(error)])
            out, error_output, out_dropped, error_dropped = self._capture.collect()
            meta = b""
            if out_dropped or error_dropped:
                meta = json.dumps({"stdout_dropped": out_dropped, "stderr_dropped": error_dropped}).encode()
            return None, [meta, pickled, out, error_output, *buffers]
        finally:
            self.in_user_code = False

    @staticmethod
    def _arguments(body: memoryview) -> Any:
        try:
            if body[:4] == ONE_PART:
                return from_pickle(body[ONE_PART_HEADER_BYTES:])
            # The arguments refer to the buffers, so the buffers must not be parts of the receive buffer. pickle makes a buffer read-only
            # if it was read-only at the sender.
            owned = body.obj.__class__ in (bytearray, mmap.mmap) and body.nbytes == len(body.obj)
            parts = unpack(body if owned else bytearray(body))
            return from_pickle(parts[0], buffers=parts[1:])
        except (PayloadFormatError, UnpicklingError, AttributeError, ImportError, EOFError, IndexError, TypeError, ValueError) as error:
            raise AttemptError("unpickle", "user", "the arguments cannot be loaded here: %s" % _describe(error)) from error

    def _pickle(self, value: Any, buffers: List[Any]) -> bytes:
        if value is None:
            return b"\x80\x05N."
        views: List[PickleBuffer] = []
        if type(value) is bytes and len(value) > LARGE_BYTES:
            value = OutOfBandBytes(value)
        try:
            pickled = to_pickle(value, 5, buffer_callback=views.append)
        except Exception:  # noqa: BLE001  user classes may raise anything while they are pickled
            views.clear()
            try:
                pickled = self._cloudpickle().dumps(value, protocol=5, buffer_callback=views.append)
            except Exception as error:  # noqa: BLE001  the same
                message = "the result, of type %s, cannot be pickled: %s" % (type(value).__name__, _describe(error))
                raise AttemptError("result", "user", message) from error
        buffers.extend(view.raw() for view in views)
        size = len(pickled) + sum(map(len, buffers))
        if size > MAX_RESULT_BYTES:
            buffers.clear()
            raise AttemptError("result", "user", "the result has %d bytes; one result may have %d at most" % (size, MAX_RESULT_BYTES))
        return pickled

    def _failed(self, error: BaseException, failure: Failure) -> Tuple[Failure, List[Any]]:
        out, error_output, out_dropped, error_dropped = self._capture.collect()
        import traceback

        shown: BaseException = error
        if isinstance(error, AttemptError) and error.__cause__ is not None:
            shown = error.__cause__
        lines = traceback.format_exception(type(shown), shown, _user_traceback(shown))
        meta: Dict[str, Any] = {"type": type(shown).__name__, "message": _clip(_safe_str(shown), MAX_MESSAGE_CHARACTERS)}
        meta["traceback"] = _clip("".join(lines))
        if out_dropped or error_dropped:
            meta.update(stdout_dropped=out_dropped, stderr_dropped=error_dropped)
        pickled = b"" if isinstance(error, AttemptError) else self._pickle_exception(error)
        return failure, [json.dumps(meta).encode(), pickled, out, error_output]

    def _pickle_exception(self, error: BaseException) -> bytes:
        """Pickles an exception. If it cannot be pickled and loaded again, returns b"". Then only the text of the exception is reported."""
        for dumps in (to_pickle, lambda value, protocol: self._cloudpickle().dumps(value, protocol)):
            try:
                pickled = bytes(dumps(error, 5))
                from_pickle(pickled)
                return pickled
            except Exception:  # noqa: BLE001  exceptions of users often cannot be pickled
                continue
        return b""

    # --- specs --------------------------------------------------------------------------------------------------------------------

    def _prepare(self, spec: CallSpec) -> Callable[..., Any]:
        launch = spec.launch
        if spec.kind not in ("python", "application"):
            raise AttemptError("spawn", "worker", "this agent does not know tasks of the kind %r" % spec.kind)
        form = launch.get("form", "pickle")
        if form == "pickle":
            function = self._load_pickled(launch, spec.code)
        else:
            function = _load_source(str(launch.get("name", "")), bytes(spec.code))
        if spec.kind == "application":
            function = self._make_instance(spec, function)
        spec.function = function
        spec.code = b""
        return function

    def _load_pickled(self, launch: Dict[str, Any], code: bytes) -> Callable[..., Any]:
        wanted = tuple(launch.get("python") or sys.version_info[:2])[:2]
        if wanted != sys.version_info[:2]:
            message = (
                "the function was pickled by Python %d.%d, this worker runs Python %d.%d: start the worker with Python %d.%d, or send the "
                "function as source" % (*wanted, *sys.version_info[:2], *wanted)
            )
            raise AttemptError("version", "user", message)
        try:
            self._cloudpickle()
            function: Callable[..., Any] = from_pickle(code)
            return function
        except Exception as error:  # noqa: BLE001  loading runs code of the user's modules
            raise AttemptError("unpickle", "user", "the function cannot be loaded here: %s" % _describe(error)) from error

    def _make_instance(self, spec: CallSpec, factory: Callable[..., Any]) -> Callable[..., Any]:
        """Creates the application worker of this slot; returns its method for tasks. Processes that it starts may outlive a task."""
        from ...portable.processes import children_of

        self.in_user_code = True
        try:
            instance = factory()
            initialize = getattr(instance, "initialize", None)
            if initialize is not None:
                initialize()
        finally:
            self.in_user_code = False
        spec.instance = instance
        self._specs_with_instances.append(spec)
        self.keep_children.extend(children_of(getpid()))
        do_work: Callable[..., Any] = instance.do_work
        return do_work

    def finalize(self) -> None:
        """Lets application workers clean up before the slot ends."""
        for spec in self._specs_with_instances:
            finalize = getattr(spec.instance, "finalize", None)
            if finalize is not None:
                try:
                    finalize()
                except BaseException:  # noqa: BLE001  the slot ends and cannot report it
                    continue

    def _cloudpickle(self) -> Any:
        """Returns the cloudpickle of the bundle. The function was pickled by the same version."""
        module = sys.modules.get("cloudpickle")
        if module is None:
            sys.path.insert(0, self._bundle)
            try:
                import cloudpickle as module  # type: ignore[import-untyped,no-redef]
            finally:
                sys.path.remove(self._bundle)
        return module


def _load_source(name: str, code: bytes) -> Callable[..., Any]:
    namespace: Dict[str, Any] = {"__name__": "pilotfish_source", "__builtins__": __builtins__}
    try:
        exec(compile(code.decode("utf-8"), "<source of %s>" % name, "exec"), namespace)
        function: Callable[..., Any] = namespace[name]
        return function
    except Exception as error:  # noqa: BLE001  the source is the user's
        raise AttemptError("unpickle", "user", "the source of the function %r cannot be used: %s" % (name, _describe(error))) from error


def _safe_str(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  __str__ of a user's exception may raise
        return "(its text cannot be shown)"


def _describe(error: BaseException) -> str:
    text = _safe_str(error)
    return _clip("%s: %s" % (type(error).__name__, text) if text else type(error).__name__, MAX_MESSAGE_CHARACTERS)


def _clip(text: str, limit: int = MAX_TRACEBACK_CHARACTERS) -> str:
    """Shortens a text, and replaces lone surrogates, because some JSON readers reject them."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else text[: limit // 2] + " … " + text[-limit // 2 :]


def _user_traceback(error: BaseException) -> Any:
    """Returns the traceback without the frames of this module."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__ and frames.tb_next is not None:
        frames = frames.tb_next
    return frames
