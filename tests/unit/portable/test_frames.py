"""Frames, parcels and the records between agent and slot: whole, in pieces, too large, and garbage."""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest

from pilotfish.agent.slots import shared_page
from pilotfish.portable.wire import frames
from pilotfish.portable.wire.frames import FrameError, FrameReader, frame_buffers


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
