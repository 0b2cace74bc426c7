import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.applications.parcel import DamagedPayload, pack, pack_one, unpack


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_what_is_packed_comes_out_again(parts: list[bytes]) -> None:
    assert [bytes(part) for part in unpack(pack(parts))] == parts


@given(st.binary(max_size=200))
def test_one_part_has_a_short_way_with_the_same_result(part: bytes) -> None:
    assert pack_one(part) == pack([part])


@given(st.binary(max_size=64))
def test_garbage_is_refused_or_unpacked_but_never_read_past_its_end(data: bytes) -> None:
    try:
        parts = unpack(data)
    except DamagedPayload:
        return
    assert 4 + 8 * len(parts) + sum(map(len, parts)) == len(data)


@pytest.mark.parametrize("cut", [0, 3, 11, 20])
def test_a_cut_parcel_is_refused(cut: int) -> None:
    with pytest.raises(DamagedPayload):
        unpack(pack([b"hello", b"world"])[:cut])


def test_a_giant_count_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(DamagedPayload, match="4294967295 parts"):
        unpack(struct.pack("!I", 0xFFFFFFFF) + b"x" * 100)
