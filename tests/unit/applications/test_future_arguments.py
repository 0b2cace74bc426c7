"""Futures in the arguments of calls: found by the pickler wherever they are, replaced by results in the slot."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest

from pilotfish.agent.slots.argument_loader import load_with_results
from pilotfish.applications.calls.future_arguments import FutureArguments, FutureFound, FutureResult, Known
from pilotfish.applications.calls.python_call import CallEncoder, worker_payload
from pilotfish.applications.task_list import TaskList
from pilotfish.errors import BadInput
from pilotfish.model.contents import RESULT, ExpectedFile
from pilotfish.portable.failures import AttemptError
from pilotfish.portable.payload_format import add_files, join_pieces, pack, unpack
from pilotfish.portable.payload_reference import write_payload
from pilotfish.portable.transfer.cache_directory import content_path


class Listed(FutureResult):
    def __init__(self, maker: int) -> None:
        self.maker = maker


class Holder:
    """Refers to a future in a way that only a pickler sees."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> Any:
        return Holder, (self._value,)


@dataclass
class Point:
    x: Any


def maker_of(future: Listed) -> int | Known:
    return future.maker


def result_of(value: Any) -> bytes:
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return pack([b"", pickled, b"out", b"", *(buffer.raw() for buffer in buffers)])


def encode(function: Any, *args: Any, **kwargs: Any) -> tuple[bytes, FutureArguments]:
    arguments = FutureArguments(maker_of)
    _, payload = CallEncoder(lambda spec, code: 0).encode(function, args, kwargs, arguments)
    return join_pieces(payload), arguments


def with_results(payload: bytes, *results: bytes) -> bytes:
    """Packs a payload as the master does."""
    return pack([b'{"results": ["7.0", "7.1"]}', payload, *results])


def test_a_future_is_found_wherever_it_is_and_each_result_is_one_object() -> None:
    one, two = Listed(4), Listed(9)
    payload, arguments = encode(print, [one, (two, {"deep": one})], Holder({"k": two}), point=Point(x=[one]))
    assert arguments.needed == (ExpectedFile(4, RESULT, "0"), ExpectedFile(9, RESULT, "1"))
    first, second = {"a": 1}, [2]
    args, kwargs = load_with_results(with_results(payload, result_of(first), result_of(second)), "", "")
    assert args[0] == [first, (second, {"deep": first})] and args[1]._value == {"k": second} and kwargs["point"] == Point([first])
    assert args[0][0] is args[0][1][1]["deep"] is kwargs["point"].x[0], "one result is one object, as one future is"


def test_a_partial_and_a_lambda_can_contain_futures() -> None:
    future = Listed(1)
    payload, arguments = encode(partial(pow, future), 3)
    (args, _) = load_with_results(with_results(payload, result_of(2)), "", "")
    assert args[0](*args[1:]) == 8 and len(arguments.needed) == 1
    payload, _ = encode(map, lambda x: (x, future))
    (args, _) = load_with_results(with_results(payload, result_of(2)), "", "")
    assert args[0](1) == (1, 2)


def test_without_futures_nothing_is_searched_and_with_them_the_encoder_says_so() -> None:
    encoder = CallEncoder(lambda spec, code: 0)
    with pytest.raises(FutureFound):
        encoder.encode(abs, ([Listed(1)],), {})
    with pytest.raises(FutureFound, match="as an argument of the call, not inside of its function"):
        pickle.dumps(Listed(1))
    future = Listed(3)
    with pytest.raises(FutureFound, match="as an argument"):
        encode(lambda: future)


def test_a_known_result_is_sent_with_the_arguments() -> None:
    future = Listed(0)
    value = numpy.arange(1000)
    arguments = FutureArguments(lambda found: Known(value))
    _, payload = CallEncoder(lambda spec, code: 0).encode(abs, ([future, future],), {}, arguments)
    assert arguments.needed == ()
    (args, _) = _plain(join_pieces(payload))
    assert (args[0][0] == value).all() and args[0][0] is args[0][1]


def _plain(payload: bytes) -> Any:
    pickled, *buffers = unpack(payload)
    return pickle.loads(pickled, buffers=[bytearray(buffer) for buffer in buffers])


def test_a_future_that_ends_while_the_call_is_pickled_is_looked_up_once() -> None:
    answers: list[int | Known] = [5, Known("late")]
    arguments = FutureArguments(lambda found: answers.pop(0))
    future = Listed(5)
    CallEncoder(lambda spec, code: 0).encode(abs, (future, lambda: 1, future), {}, arguments)
    assert arguments.needed == (ExpectedFile(5, RESULT, "0"),) and arguments.futures == [future]


def test_large_results_come_from_shared_files_and_from_the_cache_and_may_be_changed(tmp_path: Path) -> None:
    share, cache = tmp_path / "share", tmp_path / "cache"
    share.mkdir()
    one, two = numpy.arange(5.0), numpy.ones(7)
    reference = write_payload(share, [result_of(one)])
    digest = "ab" * 32
    place = Path(content_path(str(cache), digest))
    place.parent.mkdir(parents=True)
    place.write_bytes(result_of(two))
    payload, _ = encode(print, Listed(0), Listed(1))
    composed = with_results(write_payload(share, [payload]), reference, b"")
    (args, _) = load_with_results(add_files(composed, [["1", 0, digest, 1]]), str(share), str(cache))
    assert (args[0] == one).all() and (args[1] == two).all()
    args[0][0] = args[1][0] = -1.0
    assert place.read_bytes() == result_of(two), "a call changes its own copy only"


@pytest.mark.parametrize(
    ("result", "cause", "text"),
    [
        (bytes(30), "missing-input", "the result of task 7.0, which is in its arguments, cannot be read any more"),
        (b"", "missing-input", "cannot be read any more"),
        (pack([b"", b"cno_such_module\nthing\n.", b"", b""]), "unpickle", "task 7.0, .*No module named 'no_such_module'"),
    ],
)
def test_a_result_that_cannot_be_loaded_is_an_error_that_names_its_task(result: bytes, cause: str, text: str) -> None:
    payload, _ = encode(print, Listed(0))
    with pytest.raises(AttemptError, match=text) as caught:
        load_with_results(with_results(payload, result), "", "")
    assert caught.value.failure[0] == cause


def test_a_task_list_names_results_by_the_index_of_the_call() -> None:
    tasks = TaskList(worker=Holder)
    first = tasks.call(pow, 2, 5)
    second = tasks.call(max, [tasks.result(first), 7])
    tasks.work({"start": tasks.result(second)})
    entries = tasks.take()
    assert entries[0].needs.future_files == ()
    assert entries[1].needs.future_files == (ExpectedFile(0, RESULT, "0"),)
    assert entries[2].needs.future_files == (ExpectedFile(1, RESULT, "0"),)
    with pytest.raises(BadInput, match="result: 3 is not the index of an earlier task"):
        tasks.result(3)


def test_parameters_of_an_application_worker_can_contain_results() -> None:
    arguments = FutureArguments(maker_of)
    payload = worker_payload({"start": Listed(3)}, arguments)
    assert load_with_results(with_results(payload, result_of([1])), "", "") == {"start": [1]}
    assert arguments.needed == (ExpectedFile(3, RESULT, "0"),)
