"""Frames, parcels and the records between agent and slot: whole, in pieces, too large, and garbage."""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest

from pilotfish.agent.slots import shared_page
from pilotfish.portable.wire import frames
from pilotfish.portable.wire.frames import FrameError, FrameReader, FrameSplitter, frame_buffers, join_small


def feed(reader: FrameReader, data: bytes, step: int) -> list[tuple[list[Any], bytes]]:
    found: list[tuple[list[Any], bytes]] = []
    view = memoryview(data)
    while view:
        room = reader.room()
        count = min(step, len(room), len(view))
        room[:count] = view[:count]
        reader.received(count)
        view = view[count:]
        found.extend((header, bytes(body)) for header, body in reader.frames())
    return found


@pytest.mark.parametrize("step", [1, 7, 1000, 65536, 1 << 22])
def test_frames_are_found_however_the_bytes_arrive(step: int) -> None:
    sizes = [0, 1, 100, 70_000, 300_000] if step > 1 else [0, 1, 100]
    sent = [(["message", number, "x" * number], os.urandom(size)) for number, size in enumerate(sizes)]
    data = b"".join(b"".join(frame_buffers(header, [body[: len(body) // 2], body[len(body) // 2 :]])) for header, body in sent)
    reader = FrameReader()
    reader.proved = True
    assert feed(reader, data, step) == sent


def test_a_large_frame_grows_as_it_comes_and_small_ones_follow_it() -> None:
    reader = FrameReader()
    reader.proved = True
    body = os.urandom(9 << 20)
    data = b"".join(frame_buffers(["large"], [body])) + b"".join(frame_buffers(["small"], [b"x"]))
    assert feed(reader, data, 1 << 20) == [(["large"], body), (["small"], b"x")]


def test_a_reader_takes_little_memory_until_much_comes() -> None:
    reader = FrameReader()
    reader.proved = True
    small = b"".join(frame_buffers(["small"], [b"x" * 100]))
    assert len(feed(reader, small * 1000, 500)) == 1000
    assert len(reader.room()) <= frames.FIRST_BUFFER
    assert len(feed(reader, small * 10_000, 1 << 20)) == 10_000
    assert len(reader.room()) > frames.SMALL_BUFFER // 2, "so that fewer calls are needed"


def test_no_memory_is_taken_for_a_length_that_was_only_announced() -> None:
    reader = FrameReader()
    reader.proved = True
    list(feed(reader, struct.pack("!II", 10, frames.MAX_BODY), 100))
    assert len(reader.room()) <= frames.FIRST_ALLOCATION


@pytest.mark.parametrize(
    ("proved", "lengths"),
    [
        (False, (1, frames.MAX_BEFORE_PROOF)),
        (True, (frames.MAX_HEADER + 1, 0)),
        (True, (1, frames.MAX_BODY + 1)),
        (True, (0xFFFFFFFF, 0xFFFFFFFF)),
    ],
)
def test_a_frame_larger_than_allowed_is_refused_by_its_prefix(proved: bool, lengths: tuple[int, int]) -> None:
    reader = FrameReader()
    reader.proved = proved
    with pytest.raises(FrameError):
        feed(reader, struct.pack("!II", *lengths), 8)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"[1]", b"nonsense", b"\xff\xfe", b"[" * 50_000])
def test_a_header_that_is_no_message_is_refused(text: bytes) -> None:
    reader = FrameReader()
    reader.proved = True
    with pytest.raises(FrameError):
        feed(reader, struct.pack("!II", len(text), 0) + text, 1 << 20)


@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 22])
def test_a_splitter_finds_frames_however_the_chunks_are_cut(step: int) -> None:
    bodies = [b"", b"x", os.urandom(5000), b"", os.urandom(300)]
    data = b"".join(b"".join(frame_buffers(["message", number], [body])) for number, body in enumerate(bodies))
    splitter = FrameSplitter()
    splitter.proved = True
    found = [frame for start in range(0, len(data), step) for frame in splitter.feed(data[start : start + step])]
    assert [(bytes(header), bytes(body)) for header, body in found] == [
        (b'["message",%d]' % number, body) for number, body in enumerate(bodies)
    ]
    assert splitter.missing == frames.PREFIX_BYTES


def test_a_splitter_knows_how_much_is_missing_and_gives_back_what_it_was_not_asked_for() -> None:
    data = b"".join(frame_buffers(["a"], [b"body"])) + b"".join(frame_buffers(["b"], [b"x" * 1000]))
    splitter = FrameSplitter()
    found = splitter.feed(data[:-300])
    assert len(found) == 1 and splitter.missing == 300
    assert splitter.rest(found) == data[:-300]


@pytest.mark.parametrize(
    ("proved", "lengths"),
    [(False, (1, frames.MAX_BEFORE_PROOF)), (True, (frames.MAX_HEADER + 1, 0)), (True, (1, frames.MAX_BODY + 1))],
)
def test_a_splitter_refuses_a_frame_larger_than_allowed_by_its_prefix(proved: bool, lengths: tuple[int, int]) -> None:
    splitter = FrameSplitter()
    if proved:
        splitter.proved = True
    with pytest.raises(FrameError):
        splitter.feed(struct.pack("!II", *lengths))


def test_small_neighbours_are_joined_and_large_buffers_are_not_copied() -> None:
    large = bytearray(100)
    found = list(join_small([b"a", b"", memoryview(b"b"), large, b"c"], 100))
    assert found == [b"ab", large, b"c"] and found[1] is large
    assert list(join_small([], 100)) == []


def test_too_much_is_not_even_written() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return frames.MAX_BODY + 1

    with pytest.raises(FrameError):
        frame_buffers(["x"], [Huge()])


def test_reports_are_read_up_to_the_first_incomplete_one() -> None:
    whole = b"".join(shared_page.REPORT.pack(number, 1, 2, 3, 2, 3) + b"[]abc" for number in range(5))
    for cut in range(len(whole)):
        reports, rest = shared_page.parse_reports(whole[:cut])
        assert len(reports) == cut // (shared_page.REPORT.size + 5)
        assert rest == len(reports) * (shared_page.REPORT.size + 5)
    assert shared_page.parse_reports(whole)[0][4] == (4, 1, 2, 3, b"[]", b"abc")
