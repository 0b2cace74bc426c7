"""The standard input of a single task."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pilotfish.client.descriptions import passed_input
from pilotfish.client.descriptions.passed_input import read_passed_input
from pilotfish.client.descriptions.run_options import RunRequest
from pilotfish.client.descriptions.task_source import make_source
from pilotfish.errors import BadInput
from tests.support.scripted_master import eventually

ENVIRON = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard input is a pipe. The write end."""
    read, write = os.pipe()
    with open(read) as source:
        monkeypatch.setattr("sys.stdin", source)
        yield write


def stdin_of(request: RunRequest) -> list[bytes]:
    return [task.stdin for task, _, _ in make_source(request, ENVIRON).described()]


def test_a_single_task_gets_what_is_piped(pipe: int) -> None:
    os.write(pipe, b"one\ntwo\n")
    os.close(pipe)
    assert stdin_of(RunRequest(command=("cat",))) == [b"one\ntwo\n"]


def test_the_tasks_of_a_sweep_get_it_only_if_asked(pipe: int) -> None:
    os.write(pipe, b"x")
    os.close(pipe)
    for request in (RunRequest(command=("cat", "{a}"), parameters=("a=1",)), RunRequest(command=("cat",), times=1)):
        assert stdin_of(request) == [b""]
    assert stdin_of(RunRequest(command=("cat", "{}", ":::", "a", "b"), stdin="-")) == [b"x", b"x"]


def test_a_dry_run_leaves_it_alone(pipe: int) -> None:
    os.write(pipe, b"x")
    stdin_of(RunRequest(command=("cat",), dry_run=True))
    os.close(pipe)
    assert read_passed_input() == b"x"


def test_an_idle_pipe_does_not_block(pipe: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(passed_input, "IDLE_S", 0.01)
    assert stdin_of(RunRequest(command=("cat",))) == [b""]
    assert "note: standard input is a pipe without data" in capsys.readouterr().err
    os.close(pipe)


def test_a_producer_that_takes_its_time_is_awaited(pipe: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(passed_input, "IDLE_S", 0.01)
    with subprocess.Popen(["sh", "-c", "read line; echo late"], stdin=subprocess.PIPE, stdout=pipe) as producer:
        os.close(pipe)
        with ThreadPoolExecutor(1) as threads:
            passed = threads.submit(read_passed_input)
            eventually(lambda: "note: waiting for standard input" in capfd.readouterr().err, "it waits")
            producer.communicate(b"now\n")
            assert passed.result() == b"late\n"


def test_a_file_is_passed_and_stays_for_the_shell_that_reads_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "list").write_text("one\ntwo\n")
    descriptor = os.open(tmp_path / "list", os.O_RDONLY)
    os.read(descriptor, 4)
    with open(descriptor) as source:
        monkeypatch.setattr("sys.stdin", source)
        assert stdin_of(RunRequest(command=("cat",))) == [b"two\n"]
        assert os.read(descriptor, 10) == b"two\n"


def test_a_terminal_a_device_and_nothing_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    own, terminal = os.openpty()
    with open(terminal) as source, open("/dev/zero") as device:
        for stdin in (source, device, None):
            monkeypatch.setattr("sys.stdin", stdin)
            assert read_passed_input() == b""
    os.close(own)


def test_too_large_input_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passed_input, "MAX_STDIN_BYTES", 3)
    (tmp_path / "large").write_text("four")
    with open(tmp_path / "large") as source:
        monkeypatch.setattr("sys.stdin", source)
        with pytest.raises(BadInput, match="standard input: more than") as refused:
            read_passed_input()
    assert "--input FILE" in refused.value.hint


def test_lines_and_input_cannot_both_be_standard_input(pipe: int) -> None:
    os.write(pipe, b"x\n")
    os.close(pipe)
    with pytest.raises(BadInput, match="--stdin - and --each-line - both read standard input"):
        make_source(RunRequest(command=("cat", "{}"), each_line="-", stdin="-"), ENVIRON)
