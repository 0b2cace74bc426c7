"""Tests that a long stream is kept in a file, that a cut is marked, and that a full disk costs only the middle of the stream."""

from __future__ import annotations

import errno
import os
import random
import re
from pathlib import Path

import pytest

from pilotfish.agent.slots import spooled_stream
from pilotfish.agent.slots.spooled_stream import KeptStream, SpooledStream, describe

MEMORY = 1000
MARK = re.compile(rb"\n\[pilotfish: ([0-9.]+) k?B left out here[^\n]*\]\n")


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooled_stream, "OUTPUT_CAP", MEMORY)
    monkeypatch.setattr(spooled_stream, "EXCERPT_BYTES", 100)


def feed(stream: SpooledStream, size: int, seed: int = 1) -> bytes:
    dice = random.Random(seed)
    whole = b""
    while len(whole) < size:
        piece = bytes(dice.choices(b"abcdefgh\n", k=min(size - len(whole), dice.randrange(1, 400))))
        stream.add(piece)
        whole += piece
    return whole


def finish(stream: SpooledStream, tmp_path: Path) -> tuple[KeptStream, bytes]:
    kept = stream.finish(str(tmp_path / "outbox"))
    return kept, Path(kept.file[1]).read_bytes() if kept.file is not None else b""


@pytest.fixture
def scratch(tmp_path: Path) -> str:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "outbox").mkdir()
    return str(tmp_path / "scratch")


@pytest.mark.parametrize("size", [0, 1, MEMORY - 1, MEMORY])
def test_a_short_stream_needs_no_file(scratch: str, tmp_path: Path, size: int) -> None:
    stream = SpooledStream(10_000, scratch)
    whole = feed(stream, size)
    assert stream.finish(str(tmp_path / "outbox")) == KeptStream(whole, 0, 0, "", None)
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("size", [MEMORY + 1, 3 * MEMORY, 10_000])
def test_a_long_stream_is_in_its_file_byte_for_byte(scratch: str, tmp_path: Path, size: int) -> None:
    stream = SpooledStream(10_000, scratch)
    whole = feed(stream, size)
    for offset in (0, size // 2, size - 1):
        start, data = stream.since(offset, 100)
        assert data == whole[start : start + 100] and start == offset
    assert stream.since(-5, 100) == (size - 5, whole[-5:])
    kept, text = finish(stream, tmp_path)
    assert text == whole and kept.file is not None and kept.file[0] == size
    assert kept.data == whole[:50] + whole[-50:] and (kept.omitted, kept.dropped, kept.reason) == (size - 100, 0, "")
    assert os.listdir(scratch) == [] and os.stat(kept.file[1]).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cap", [1, 2, 500, MEMORY, MEMORY + 1, 1700, 5000])
def test_beyond_its_maximum_size_the_middle_is_left_out_and_the_place_is_marked(scratch: str, tmp_path: Path, cap: int) -> None:
    stream = SpooledStream(cap, scratch)
    whole = feed(stream, 20_000)
    kept, text = finish(stream, tmp_path)
    assert kept.reason == "cap" and kept.dropped > 0
    if cap <= MEMORY:
        assert kept.file is None and kept.omitted == kept.dropped == len(whole) - len(kept.data)
        return
    head, size, tail = MARK.split(text)
    assert whole.startswith(head) and whole.endswith(tail) and tail
    assert len(head) + len(tail) <= cap and len(head) + len(tail) + kept.dropped == len(whole)
    assert b"keep more with --max-output 32K" in text and float(size) * 1000 == pytest.approx(kept.dropped, rel=0.01)


@pytest.mark.parametrize("space", [0, 300, MEMORY, 4000])
def test_a_full_disk_costs_the_middle_of_the_stream_and_this_is_marked(
    scratch: str, tmp_path: Path, space: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_write = os.pwrite

    def write(file: int, data: memoryview, offset: int) -> int:
        if offset >= space:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really_write(file, data[: space - offset], offset)

    monkeypatch.setattr(spooled_stream, "pwrite", write)
    stream = SpooledStream(1 << 20, scratch)
    whole = feed(stream, 20_000)
    kept, text = finish(stream, tmp_path)
    assert kept.reason == "disk" and kept.dropped > 0 and os.listdir(scratch) == []
    if kept.file is None:
        assert kept.data == whole[: MEMORY // 2] + whole[-MEMORY // 2 :]
        assert os.listdir(tmp_path / "outbox") == []
    else:
        head, _, tail = MARK.split(text)
        assert whole.startswith(head) and whole.endswith(tail) and len(tail) == MEMORY // 2
        assert len(head) + len(tail) + kept.dropped == len(whole) and b"could not write it to its disk" in text


def test_some_space_of_the_disk_is_spared(scratch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.statvfs(scratch)
    monkeypatch.setattr(spooled_stream, "SPARED_BYTES", status.f_blocks * status.f_frsize)
    stream = SpooledStream(1 << 20, scratch)
    whole = feed(stream, 5000)
    assert finish(stream, tmp_path)[0] == KeptStream(whole[: MEMORY // 2] + whole[-MEMORY // 2 :], 4000, 4000, "disk", None)


def test_a_task_that_deletes_the_file_loses_only_the_middle(scratch: str, tmp_path: Path) -> None:
    stream = SpooledStream(1 << 20, scratch)
    whole = feed(stream, 5000)
    for name in os.listdir(scratch):
        os.unlink(os.path.join(scratch, name))
    kept, _ = finish(stream, tmp_path)
    assert kept == KeptStream(whole[: MEMORY // 2] + whole[-MEMORY // 2 :], 4000, 4000, "disk", None)


def test_a_stream_that_is_not_wanted_leaves_no_file(scratch: str) -> None:
    stream = SpooledStream(1 << 20, scratch)
    feed(stream, 5000)
    stream.discard()
    assert os.listdir(scratch) == []


def test_the_summary_lists_only_streams_that_are_not_complete() -> None:
    whole, cut = KeptStream(b"a", 0, 0, "", None), KeptStream(b"ab", 7, 5, "cap", [9, "/outbox/x"])
    assert describe({"stdout": whole, "stderr": whole}) == {}
    assert describe({"stdout": whole, "stderr": cut}) == {
        "stderr_dropped": 5,
        "stderr_omitted": 7,
        "stderr_reason": "cap",
        "streams": [["stderr", 9, "/outbox/x"]],
    }
