"""Tests that agent and slot together keep a long output of a call: the agent moves its middle to the disk, the slot completes the file."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pilotfish.agent.node import output_spool
from pilotfish.agent.node.slot_process import SlotProcess
from pilotfish.agent.slots import call_output, spooled_stream
from pilotfish.agent.slots.call_output import StreamCapture
from pilotfish.agent.slots.shared_page import FREED, SharedPage, memory_file

MEMORY = 16384
PIECE = 30_000


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (output_spool, call_output, spooled_stream):
        monkeypatch.setattr(module, "OUTPUT_CAP", MEMORY)
    monkeypatch.setattr(output_spool, "MOVE_ABOVE", 4096)
    monkeypatch.setattr(call_output, "PIECE_BYTES", 4096)
    monkeypatch.setattr(spooled_stream, "EXCERPT_BYTES", 100)


class Call:
    """A call whose standard output is a file in memory, as in a slot, and the agent that watches it."""

    def __init__(self, directory: Path, cap: int) -> None:
        self.cap, self.whole = cap, b""
        self.outbox = directory / "outbox"
        for folder in (directory / "slot", self.outbox):
            folder.mkdir()
        self.memory, page = memory_file("stdout"), memory_file("page")
        shared = SharedPage(page)
        spec = SimpleNamespace(launch={"max_output": cap})
        process: Any = SimpleNamespace(outputs=(self.memory,), page=shared, scratch=str(directory / "slot"))
        process.assigned = [(1, SimpleNamespace(spec=spec))]
        self.process = cast(SlotProcess, process)
        self.capture = StreamCapture(self.memory, -1, shared, process.scratch, str(self.outbox))
        self._dice = random.Random(1)

    def write(self, size: int) -> None:
        text = bytes(self._dice.choices(b"abcdefgh\n", k=size))
        os.pwrite(self.memory, text, len(self.whole))
        self.whole += text

    def take(self, monkeypatch: pytest.MonkeyPatch) -> tuple[spooled_stream.KeptStream, bytes]:
        monkeypatch.setattr(call_output, "lseek", lambda stream, offset, whence: 0)  # descriptor 1 is not that of a slot
        kept = self.capture._take(1, len(self.whole), self.cap)
        assert os.fstat(self.memory).st_size == 0 and os.listdir(self.process.scratch) == []
        self.whole, before = b"", self.whole
        self.before = before
        return kept, Path(kept.file[1]).read_bytes() if kept.file is not None else b""

    def is_bounded(self) -> bool:
        return os.fstat(self.memory).st_blocks * 512 < 3 * MEMORY + 2 * PIECE


@pytest.fixture
def call(tmp_path: Path) -> Iterator[Call]:
    call = Call(tmp_path, 1 << 20)
    yield call
    os.close(call.memory)


def test_the_output_of_one_call_after_another_is_complete_and_the_memory_stays_bounded(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for pieces in (1, 10, 2, 7):
        for _ in range(pieces):
            call.write(PIECE)
            while output_spool.bound_output(call.process):
                pass
            assert call.is_bounded()
            for offset in (0, MEMORY, len(call.whole) // 2, len(call.whole) - 1):
                start, data = output_spool.peek_at_call(call.process, 1, offset)
                assert start == offset and data and call.whole[offset:].startswith(data)
        kept, text = call.take(monkeypatch)
        assert text == call.before and kept.dropped == 0


def test_without_the_agent_the_slot_copies_all_of_it(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call.write(5 * PIECE)
    kept, text = call.take(monkeypatch)
    assert text == call.before and kept.omitted == 5 * PIECE - 100


def test_after_a_call_with_a_small_limit_the_agent_bounds_the_next_call(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[int] = []
    monkeypatch.setattr(call_output, "lockf", lambda descriptor, operation: locked.append(operation))
    call.cap = 1000
    call.write(MEMORY // 2)
    kept, _ = call.take(monkeypatch)
    assert kept.omitted == MEMORY // 2 - 1000
    assert locked == [fcntl.LOCK_EX, fcntl.LOCK_UN]


@pytest.mark.parametrize("cap", [MEMORY + 1000, 3 * MEMORY // 2, 100_000])
def test_beyond_the_limit_the_middle_is_left_out(call: Call, monkeypatch: pytest.MonkeyPatch, cap: int) -> None:
    call.cap = call.process.assigned[0][1].spec.launch["max_output"] = cap
    for _ in range(10):
        call.write(PIECE)
        output_spool.bound_output(call.process)
    kept, text = call.take(monkeypatch)
    head, _, rest = text.partition(b"\n[pilotfish: ")
    tail = rest.partition(b"]\n")[2]
    assert kept.reason == "cap" and call.before.startswith(head) and call.before.endswith(tail)
    assert len(head) + len(tail) == cap and kept.dropped == 10 * PIECE - cap


def test_a_full_disk_costs_the_middle_and_neither_the_memory_nor_the_call(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    real = spooled_stream.check_space
    for number in range(10):
        call.write(PIECE)
        monkeypatch.setattr(output_spool, "check_space", real if number < 4 else no_space)
        while output_spool.bound_output(call.process):
            pass
        assert call.is_bounded()
    assert output_spool.peek_at_call(call.process, 1, 6 * PIECE)[0] > 6 * PIECE
    kept, text = call.take(monkeypatch)
    head, _, rest = text.partition(b"\n[pilotfish: ")
    assert kept.reason == "disk" and b"could not write it to its disk]" in rest
    assert call.before.startswith(head) and call.before.endswith(rest.partition(b"]\n")[2]) and len(head) > 2 * PIECE


def no_space(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_streams_that_a_call_closed_are_opened_again_even_if_the_agent_could_not_write_its_file(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: int) -> int:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(call_output, "lseek", fail)
    for name in ("dup2", "ftruncate"):
        monkeypatch.setattr(call_output, name, lambda *arguments: None)  # descriptors 1 and 2 are not those of a slot
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        monkeypatch.setattr(sys, name, None)
    call.process.page.words64[FREED + 1] = PIECE
    assert call.capture.collect(call.cap) == (b"", b"", {})
    assert call.process.page.words64[FREED + 1] == 0 and sys.stdout is not None
