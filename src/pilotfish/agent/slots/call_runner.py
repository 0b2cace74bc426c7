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

from ...portable.class_unpickler import CLASS_STATE, ClassVersion, classes_of_calls, load_from_program, load_result
from ...portable.failures import AttemptError, Failure
from ...portable.out_of_band import out_of_band
from ...portable.payload_format import PayloadFormatError, begins_with, unpack
from ...portable.wire.frames import MAX_BODY
from .argument_loader import load_with_results
from .call_output import StreamCapture
from .output_capture import OUTPUT_CAP
from .own_modules_import import use_bundle
from .spooled_stream import EXCERPT_BYTES, MAX_OUTPUT

QUICK_S = 0.0005
FLUSH_S = 0.001
MAX_MESSAGE_CHARACTERS = 2000
MAX_TRACEBACK_CHARACTERS = 20_000
ONE_PART = b"\0\0\0\1"
ONE_PART_HEADER_BYTES = 12
JSON_MARK = b'{"'
"""Beginning of arguments to which results of earlier calls were added. A pickle begins with another byte."""
MAX_RESULT_BYTES = MAX_BODY - 2 * OUTPUT_CAP - (1 << 20)


class Terminated(BaseException):
    """Raised in the user code of a call that the agent terminates."""


class CallSpec:
    """One spec whose tasks are calls. Its function is loaded for the first call and kept for later calls."""

    def __init__(self, kind: str, launch: Dict[str, Any], code: bytes) -> None:
        self.kind = kind
        self.launch = launch
        self.code: Any = code
        self.bundle: Any = b""
        self.inputs: List[Any] = launch.get("inputs") or []
        self.files: List[Any] = []
        """Contents of the small files among ``inputs``. If there are inputs, each call runs in a sandbox that contains them."""
        if self.inputs or launch.get("modules"):
            self.code, self.bundle, *self.files = unpack(code)
        self.function: Optional[Callable[..., Any]] = None
        self.instance: Any = None
        self.classes: List[ClassVersion] = []
        """The versions of the classes of the main program that the function uses."""
        self.recent_s = 1.0
        self.max_output = int(launch.get("max_output") or MAX_OUTPUT)

    def flush_after_s(self) -> float:
        """Returns a time limit in seconds. If the last flush of reports is longer ago when a call of this spec begins, the collected
        reports of earlier calls are flushed before the call runs."""
        return FLUSH_S if self.recent_s <= QUICK_S else 0.0


class CallRunner:
    """Runs calls. ``in_user_code``: whether user code runs now; signal handlers read this."""

    def __init__(self, capture: StreamCapture, bundle: str, share: str, cache: str) -> None:
        self.in_user_code = False
        self.keep_children: List[int] = []
        self._capture = capture
        self._bundle = bundle
        self._share = share
        self._cache = cache
        self._specs_with_instances: List[CallSpec] = []

    def run(self, spec: CallSpec, body: memoryview) -> Tuple[Optional[Failure], List[Any]]:
        """Runs one call; returns (failure or None, parts of the result payload)."""
        buffers: List[Any] = []
        try:
            try:
                function = spec.function or self._prepare(spec)
                for version in spec.classes:
                    version.use()
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
                return self._failed(spec, error, error.failure)
            except BaseException as error:  # noqa: BLE001  user code may raise anything
                return self._failed(spec, error, ["exception", "task", _describe(error)])
            out, error_output, missing = self._capture.collect(spec.max_output)
            meta = json.dumps({**_upload_mark(missing, out, error_output), **missing}).encode() if missing else b""
            return None, [meta, pickled, out, error_output, *buffers]
        finally:
            self.in_user_code = False

    def _arguments(self, body: memoryview) -> Any:
        try:
            if body[:4] == ONE_PART:
                data = bytes(body[ONE_PART_HEADER_BYTES:])
                return from_pickle(data) if CLASS_STATE not in data else load_from_program(data)[0]
            if begins_with(body, JSON_MARK):
                return load_with_results(body, self._share, self._cache)
            # The arguments refer to the buffers, so the buffers must not be parts of the receive buffer. pickle makes a buffer read-only
            # if it was read-only at the sender.
            owned = body.obj.__class__ in (bytearray, mmap.mmap) and body.nbytes == len(body.obj)
            parts = unpack(body if owned else bytearray(body))
            return load_from_program(parts[0], parts[1:])[0]
        except (PayloadFormatError, UnpicklingError, AttributeError, ImportError, EOFError, IndexError, TypeError, ValueError) as error:
            raise AttemptError("unpickle", "user", "the arguments cannot be loaded here: %s" % _describe(error)) from error

    def _pickle(self, value: Any, buffers: List[Any]) -> bytes:
        if value is None:
            return b"\x80\x05N."
        views: List[PickleBuffer] = []
        value = out_of_band(value)
        try:
            pickled = to_pickle(value, 5, buffer_callback=views.append)
        except Exception:  # noqa: BLE001  user classes may raise anything while they are pickled
            views.clear()
            try:
                pickled = self._cloudpickle().dumps(value, protocol=5, buffer_callback=views.append)
            except Exception as error:  # noqa: BLE001  as above
                message = "the result, of type %s, cannot be pickled: %s" % (type(value).__name__, _describe(error))
                raise AttemptError("result", "user", message) from error
        buffers.extend(view.raw() for view in views)
        size = len(pickled) + sum(map(len, buffers))
        if size > MAX_RESULT_BYTES:
            buffers.clear()
            raise AttemptError("result", "user", "the result has %d bytes; one result may have %d at most" % (size, MAX_RESULT_BYTES))
        return pickled

    def _failed(self, spec: CallSpec, error: BaseException, failure: Failure) -> Tuple[Failure, List[Any]]:
        out, error_output, missing = self._capture.collect(spec.max_output)
        import traceback

        shown: BaseException = error
        if isinstance(error, AttemptError) and error.__cause__ is not None:
            shown = error.__cause__
        lines = traceback.format_exception(type(shown), shown, _user_traceback(shown))
        meta: Dict[str, Any] = _upload_mark(missing, out, error_output)
        meta.update({"type": type(shown).__name__, "message": _clip(_safe_str(shown), MAX_MESSAGE_CHARACTERS)})
        meta["traceback"] = _clip("".join(lines))
        meta.update(missing)
        pickled = b"" if isinstance(error, AttemptError) else self._pickle_exception(error)
        return failure, [json.dumps(meta).encode(), pickled, out, error_output]

    def _pickle_exception(self, error: BaseException) -> bytes:
        """Pickles an exception. Returns b"" if the exception cannot be pickled, or if its pickle cannot be loaded. Then only the text of
        the exception is reported."""
        for dumps in (to_pickle, lambda value, protocol: self._cloudpickle().dumps(value, protocol)):
            try:
                pickled = bytes(dumps(error, 5))
                load_result(pickled, classes_of_calls.get)
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
            function, spec.classes = self._load_pickled(launch, spec.code, spec.bundle)
        else:
            function = _load_source(str(launch.get("name", "")), bytes(spec.code))
        if spec.kind == "application":
            function = self._make_instance(spec, function)
        spec.function = function
        spec.code = spec.bundle = b""
        return function

    def _load_pickled(self, launch: Dict[str, Any], code: Any, bundle: Any) -> Tuple[Callable[..., Any], List[ClassVersion]]:
        wanted = tuple(launch.get("python") or sys.version_info[:2])[:2]
        if wanted != sys.version_info[:2]:
            message = (
                "the function was pickled by Python %d.%d, this worker runs Python %d.%d: start the worker with Python %d.%d, or send the "
                "function as source" % (*wanted, *sys.version_info[:2], *wanted)
            )
            raise AttemptError("version", "user", message)
        try:
            self._cloudpickle()
            if launch.get("modules"):
                use_bundle(bytes(bundle))
            return load_from_program(code)
        except Exception as error:  # noqa: BLE001  loading runs code of the user's modules
            raise AttemptError("unpickle", "user", "the function cannot be loaded here: %s" % _describe(error)) from error

    def _make_instance(self, spec: CallSpec, factory: Callable[..., Any]) -> Callable[..., Any]:
        """Creates the worker object of an application; returns its method ``do_work``. Processes that the object starts here are not killed
        when a task ends."""
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
        return load_cloudpickle(self._bundle)


def load_cloudpickle(bundle: str) -> Any:
    """Returns the module cloudpickle. If it is not imported yet, imports it from ``bundle``, which has the version that the client used. If
    ``bundle`` is empty, imports the installed version."""
    module = sys.modules.get("cloudpickle")
    if module is None:
        if bundle:
            sys.path.insert(0, bundle)
        try:
            import cloudpickle as module  # type: ignore[import-untyped,no-redef]
        finally:
            if bundle:
                sys.path.remove(bundle)
    return module


def _upload_mark(missing: Dict[str, Any], out: bytes, error_output: bytes) -> Dict[str, Any]:
    """Returns the first entry of a report, if a part of the output is in the outbox or was left out. The entry tells the agent to read the
    report.

    Returns no entry if the report has the whole output. Also returns no entry for a short report, because the agent looks for the entry
    only in long reports (see ``SlotProcess``).
    """
    return {"stow": True} if missing and len(out) + len(error_output) >= EXCERPT_BYTES else {}


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
    except Exception:  # noqa: BLE001  __str__ of a user's exception can raise
        return "(its text cannot be shown)"


def _describe(error: BaseException) -> str:
    text = _safe_str(error)
    return _clip("%s: %s" % (type(error).__name__, text) if text else type(error).__name__, MAX_MESSAGE_CHARACTERS)


def _clip(text: str, limit: int = MAX_TRACEBACK_CHARACTERS) -> str:
    """Shortens a text, and replaces lone surrogates, because some JSON readers reject them."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else text[: limit // 2] + " … " + text[-limit // 2 :]


def _user_traceback(error: BaseException) -> Any:
    """Returns the traceback without its first frames, because these frames belong to this module."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__ and frames.tb_next is not None:
        frames = frames.tb_next
    return frames
