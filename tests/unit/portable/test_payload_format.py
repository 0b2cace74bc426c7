import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.portable.payload_format import MAX_PARTS, PayloadFormatError, join_pieces, pack, pack_one, pack_pieces, unpack


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_what_is_packed_comes_out_again(parts: list[bytes]) -> None:
    assert [bytes(part) for part in unpack(pack(parts))] == parts


@pytest.mark.parametrize("parts", [[], [b""], [b"a", b"", b"bc"], [b"x"] * 40])
def test_a_payload_unpacks_into_its_parts(parts: list[bytes]) -> None:
    assert [bytes(part) for part in unpack(pack(parts))] == parts
    assert join_pieces(pack_pieces(parts)) == pack(parts)


@given(st.binary(max_size=200))
def test_one_part_has_a_short_way_with_the_same_result(part: bytes) -> None:
    assert pack_one(part) == pack([part])


@given(st.binary(max_size=64))
def test_garbage_is_refused_or_unpacked_but_never_read_past_its_end(data: bytes) -> None:
    try:
        parts = unpack(data)
    except PayloadFormatError:
        return
    assert 4 + 8 * len(parts) + sum(map(len, parts)) == len(data)


def test_many_random_bytes_are_refused_or_unpacked_whole() -> None:
    dice = random.Random(1)
    for _ in range(2000):
        data = dice.randbytes(dice.randrange(60))
        try:
            parts = unpack(data)
        except PayloadFormatError:
            continue
        assert sum(map(len, parts)) + 4 + 8 * len(parts) == len(data)


@pytest.mark.parametrize("bad", [b"", b"\0\0\0", b"\xff\xff\xff\xff", struct.pack("!IQ", 1, 5) + b"abc", struct.pack("!IQ", 1, 1) + b"abc"])
def test_lengths_that_do_not_fit_are_refused(bad: bytes) -> None:
    with pytest.raises(PayloadFormatError):
        unpack(bad)


@pytest.mark.parametrize("cut", [0, 3, 11, 20])
def test_a_cut_payload_is_refused(cut: int) -> None:
    with pytest.raises(PayloadFormatError):
        unpack(pack([b"hello", b"world"])[:cut])


def test_a_giant_count_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(PayloadFormatError, match="4294967295 parts"):
        unpack(struct.pack("!I", 0xFFFFFFFF) + b"x" * 100)


def test_a_payload_may_have_the_maximum_number_of_parts_and_not_one_more() -> None:
    assert len(unpack(struct.pack("!I", MAX_PARTS) + bytes(8 * MAX_PARTS))) == MAX_PARTS
    with pytest.raises(PayloadFormatError, match="1048577 parts"):
        unpack(struct.pack("!I", MAX_PARTS + 1) + bytes(8 * (MAX_PARTS + 1)))
