"""Reading the rest of a stream from a position of what the program wrote."""

from __future__ import annotations

import pytest

from pilotfish.applications.output_streams import OutputStream, replace_place
from pilotfish.portable.output_marks import CAP, mark, mark_of_file

MARK = mark(90, 100, CAP)
DROPPED = OutputStream(b"01234" + MARK + b"56789", None, 90)


@pytest.mark.parametrize(
    ("stream", "offset", "rest"),
    [
        (OutputStream(b"abcdef"), 0, b"abcdef"),
        (OutputStream(b"abcdef"), 4, b"ef"),
        (OutputStream(b"abcdef"), 6, b""),
        (DROPPED, 2, b"234" + MARK + b"56789"),
        (DROPPED, 40, MARK + b"56789"),
        (DROPPED, 97, b"789"),
    ],
)
def test_the_rest_begins_at_the_position_that_was_reached(stream: OutputStream, offset: int, rest: bytes) -> None:
    assert b"".join(stream.pieces_from(offset)) == rest


def test_the_line_for_a_missing_part_names_the_file_of_this_output() -> None:
    text = b"head" + mark_of_file(90, "/pool/ab/abc") + b"tail; all of it: x]\n"
    assert b"[pilotfish: 90 B left out here; all of it: /pool/ab/abc]\n" in text
    assert replace_place(text, "stdout of its future") == text.replace(b"/pool/ab/abc", b"stdout of its future")
    assert replace_place(DROPPED.text + b"; all of it: x]\n", "elsewhere") == DROPPED.text + b"; all of it: x]\n"
