import array
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pilotfish.applications.calls.python_result import HINTS, RemoteTraceback, decode_failure, decode_value
from pilotfish.errors import DamagedPayload, TaskFailed
from pilotfish.model.task import Failure
from pilotfish.portable.payload_format import pack
from tests.support.fake_slot import error_parcel, value_parcel


class Unreadable:
    def __reduce__(self) -> tuple[Any, ...]:
        return _explode, ()


def _explode() -> None:
    raise RuntimeError("boom on arrival")


class NeedsTwo(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


def test_a_value_comes_back() -> None:
    assert decode_value(value_parcel({"a": [1, 2]})).value == {"a": [1, 2]}


def test_what_was_printed_comes_back_too() -> None:
    outcome = decode_value(value_parcel(7, b"hello\n"))
    assert (outcome.value, outcome.stdout, outcome.error) == (7, b"hello\n", None)


def test_a_buffer_that_came_back_can_be_written_and_is_not_part_of_the_frame() -> None:
    payload = bytearray(value_parcel(pickle.PickleBuffer(array.array("b", bytes(1000)))))
    value = decode_value(payload).value
    memoryview(value)[0] = 1
    payload[-1000:] = bytes([9]) * 1000
    assert bytes(value)[:2] == b"\x01\x00"


def test_a_value_that_cannot_be_read_here_fails_with_the_reason() -> None:
    outcome = decode_value(pack([b"", pickle.dumps(Unreadable()), b"", b""]))
    assert isinstance(outcome.error, TaskFailed)
    assert "RuntimeError: boom on arrival" in str(outcome.error)


class Murderous:
    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return _raise, (self.error,)


def _raise(error: type[BaseException]) -> None:
    raise error


class Speechless(Exception):
    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, Speechless])
def test_a_value_that_would_end_the_thread_that_reads_it_fails_with_the_reason(error: type[BaseException]) -> None:
    with ThreadPoolExecutor(1) as threads:
        outcome = threads.submit(decode_value, pack([b"", pickle.dumps(Murderous(error)), b"", b""])).result()
    assert isinstance(outcome.error, TaskFailed)
    assert error.__name__ in str(outcome.error)


def test_ctrl_c_while_a_value_is_read_stays_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        decode_value(pack([b"", pickle.dumps(Murderous(KeyboardInterrupt)), b"", b""]))


def test_a_damaged_result_fails_instead_of_raising() -> None:
    assert isinstance(decode_value(b"\0\0\0\x09garbage").error, DamagedPayload)


def test_an_exception_comes_back_as_itself_with_the_remote_traceback_as_its_cause() -> None:
    try:
        _explode()
    except RuntimeError as there:
        payload = error_parcel(there)
    error = decode_failure(payload, Failure("exception", "task", "RuntimeError: boom on arrival")).error
    assert type(error) is RuntimeError
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in _explode" in str(error.__cause__)
    assert pickle.loads(pickle.dumps(error.__cause__)).text == error.__cause__.text


def test_an_exception_that_cannot_be_read_here_is_told_in_words_with_its_traceback() -> None:
    meta = json.dumps({"type": "NeedsTwo", "message": "1 2", "traceback": "Traceback …\nNeedsTwo: 1 2\n"}).encode()
    payload = pack([meta, pickle.dumps(NeedsTwo(1, 2)), b"", b"said"])
    outcome = decode_failure(payload, Failure("exception", "task", "NeedsTwo: 1 2"))
    assert isinstance(outcome.error, TaskFailed)
    assert str(outcome.error) == "NeedsTwo: 1 2"
    assert "cannot be unpickled here" in outcome.error.remote_traceback
    assert outcome.stderr == b"said"


@pytest.mark.parametrize("cause", sorted(HINTS))
def test_every_cause_has_a_hint(cause: str) -> None:
    error = decode_failure(b"", Failure(cause, "task", "it went wrong")).error
    assert isinstance(error, TaskFailed)
    assert error.hint
    assert error.cause == cause
    assert str(error) == "it went wrong"


def test_a_module_that_only_the_caller_has_is_named_with_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_mine.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    loading = Failure("unpickle", "user", "the function cannot be loaded here: ModuleNotFoundError: No module named 'module_of_mine.part'")
    error = decode_failure(b"", loading).error
    assert isinstance(error, TaskFailed) and "register_pickle_by_value(module_of_mine)" in error.hint
    raised = pack([b"{}", pickle.dumps(ModuleNotFoundError("No module named 'module_of_mine'", name="module_of_mine")), b"", b""])
    noted = decode_failure(raised, Failure("exception", "task", "ModuleNotFoundError")).error
    assert noted is not None and "at the top of your program" in noted.__notes__[0]
    nowhere = pack([b"{}", pickle.dumps(ModuleNotFoundError("No module named 'nowhere'", name="nowhere")), b"", b""])
    assert not hasattr(decode_failure(nowhere, Failure("exception", "task", "ModuleNotFoundError")).error, "__notes__")


def test_a_module_that_is_installed_here_is_to_be_installed_there() -> None:
    error = decode_failure(b"", Failure("unpickle", "user", "ModuleNotFoundError: No module named 'msgspec'")).error
    assert isinstance(error, TaskFailed) and "install" in error.hint and "by_value" not in error.hint
