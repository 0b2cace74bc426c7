"""Submits calls. The arguments of a call can contain futures of other calls. In this case, the workers pass the results to each other, and
this program does not transfer them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from pilotfish.api.futures import TaskFuture, root_cause
from pilotfish.api.run_futures import FutureType, RunFutures
from pilotfish.applications.calls.future_arguments import FutureArguments, FutureFound, Known
from pilotfish.applications.calls.python_call import CallEncoder
from pilotfish.applications.reuse.call_keys import Call
from pilotfish.applications.reuse.result_reuse import ResultReuse
from pilotfish.applications.task_needs import NO_NEEDS, TaskNeeds
from pilotfish.errors import BadInput, TaskFailed
from pilotfish.model.states import DONE
from pilotfish.model.task import DEPENDENCY
from pilotfish.portable.payload_format import PackedPayload

Encode = Callable[[FutureArguments], tuple[int, PackedPayload]]
AddRecord = Callable[[TaskNeeds, int, FutureArguments], TaskNeeds]
"""A function that adds a record to the needs of a call. With a record, the result of the call can be reused. The arguments of the function
are the needs, the number of the spec and the futures in the call. The function returns the needs with the record."""


def submit_call(
    session: RunFutures, future: FutureType, calls: CallEncoder, call: Call, needs: TaskNeeds = NO_NEEDS, reuse: ResultReuse | None = None
) -> FutureType:
    """Submits a call. ``reuse``: if it is not None, the call can get the result of an equal earlier call."""
    try:
        spec, payload = calls.encode(*call)
    except FutureFound:
        add_record = None if reuse is None else partial(reuse.call, call)
        return submit_with_futures(session, future, partial(calls.encode, *call), needs, add_record)
    if reuse is not None:
        needs = reuse.call(call, needs, spec)
    return session.submit(future, spec, payload, needs)


def submit_with_futures(
    session: RunFutures, future: FutureType, encode: Encode, needs: TaskNeeds = NO_NEEDS, add_record: AddRecord | None = None
) -> FutureType:
    """Submits a call that has futures in its arguments. If one of these futures fails or is cancelled, the future of the call fails too."""
    arguments = FutureArguments(partial(_find_result, session))
    with session.using_results():
        try:
            spec, payload = encode(arguments)
        except TaskFailed as error:
            future.set_exception(error)
            return future
        causes: list[BaseException] = []
        future._causes = causes
        for maker in arguments.futures:
            maker.add_done_callback(partial(_note_failure, causes))
        needs = needs._replace(future_files=arguments.needed)
        if add_record is not None:
            needs = add_record(needs, spec, arguments)
        return session.submit(future, spec, payload, needs)


def _note_failure(causes: list[BaseException], maker: Future[Any]) -> None:
    """Adds the error of ``maker`` to ``causes``, if ``maker`` has an error. ``maker``: a future in the arguments of a call. The future of
    this call keeps only ``causes``. If it kept ``maker``, it would also keep the result of ``maker``, which can be large."""
    error = _error_of(maker)
    if error is not None:
        causes.append(error)


def _error_of(maker: Future[Any]) -> BaseException | None:
    return CancelledError("it was cancelled") if maker.cancelled() else maker.exception()


def _find_result(session: RunFutures, future: Any) -> int | Known:
    """Returns what is sent in place of a future in the arguments of a call.

    Usually, this is the index of the future's task, and the pool passes the result to the call. In three cases, it is the result itself:
    the task is an executable, the task belongs to a different run, or the pool has possibly deleted the result. In these cases, a future
    that is not done raises BadInput, and a task that failed or was cancelled raises TaskFailed.
    """
    if not isinstance(future, TaskFuture):
        raise BadInput(f"{future!r} is the result of a listed task", "only tasks of the same list can have it as an argument")
    if future._session is session and future.index >= 0 and not future._is_executable and not future.cancelled():
        ended = future._ended
        if not future.done() or not session.owned or (ended is not None and ended.state != DONE):
            return future.index
    if not future.done():
        what = "an executable" if future._is_executable else "a task of another run"
        fix = "pass its .result(), or submit both calls to the same Run or Executor"
        if future._is_executable:
            fix = 'pass its .result(), or options(after=[future]) if only the order matters, or inputs=[future.file("name")] for its files'
        raise BadInput(f"the future of {what} ({future.task_id}) is an argument, and it is not done", fix)
    error = _error_of(future)
    if error is None:
        return Known(future.result())
    if isinstance(error, TaskFailed) and error.cause == DEPENDENCY:
        raise TaskFailed(str(error), "", DEPENDENCY) from root_cause(error)
    name = f"task {future.task_id}" if future.index >= 0 else "a call that could not be sent"
    raise TaskFailed(f"{name}, which it needs, {'was cancelled' if future.cancelled() else 'failed'}", "", DEPENDENCY) from error
