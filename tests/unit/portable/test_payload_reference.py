"""Payloads in shared files: written, referred to, mapped, and gone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pilotfish.portable.payload_format import (
    REFERENCE_BYTES,
    PayloadFormatError,
    is_reference,
    pack,
    pack_reference,
    unpack,
    unpack_reference,
)
from pilotfish.portable.payload_reference import PARTS_PER_CALL, read_payload, resolve, write_payload


def test_a_reference_has_24_bytes_and_never_unpacks_as_a_payload() -> None:
    reference = pack_reference(5, 7)
    assert reference == b"\xff\xff\xff\xfePFS1" + (5).to_bytes(8, "big") + (7).to_bytes(8, "big")
    assert len(reference) == REFERENCE_BYTES == 24 and is_reference(reference) and unpack_reference(reference) == (5, 7)
    with pytest.raises(PayloadFormatError):
        unpack(reference)
    assert not is_reference(pack([b"12345678"])) and not is_reference(bytes(24))


@pytest.mark.parametrize("parts", [[b"one", bytearray(b"two"), memoryview(b"three")], [b"", b"x"], [b"ab"] * (PARTS_PER_CALL + 3), [b""]])
def test_what_is_written_is_found_by_its_reference(tmp_path: Path, parts: list[bytes]) -> None:
    reference = write_payload(tmp_path, parts)
    (path,) = tmp_path.iterdir()
    assert path.read_bytes() == b"".join(parts) and path.stat().st_mode & 0o777 == 0o600
    assert bytes(read_payload(tmp_path, memoryview(reference))) == b"".join(parts)


def test_a_reader_may_write_to_the_payload_and_nobody_else_sees_it(tmp_path: Path) -> None:
    reference = memoryview(write_payload(tmp_path, [b"data"]))
    mine = read_payload(tmp_path, reference)
    mine[0] = ord("D")
    assert bytes(mine) == b"Data" and bytes(read_payload(tmp_path, reference)) == b"data"


def test_a_payload_that_came_whole_is_returned_without_a_copy(tmp_path: Path) -> None:
    whole = memoryview(pack([b"x"]))
    assert read_payload(tmp_path, whole) is whole and resolve(tmp_path, whole) is whole


def test_without_a_directory_a_reference_stays_as_it_is() -> None:
    reference = memoryview(pack_reference(1, 2))
    assert read_payload("", reference) is reference


def test_a_payload_whose_file_is_gone_is_an_error_or_stays_a_reference(tmp_path: Path) -> None:
    reference = memoryview(write_payload(tmp_path, [b"data"]))
    next(tmp_path.iterdir()).unlink()
    with pytest.raises(FileNotFoundError):
        read_payload(tmp_path, reference)
    assert resolve(tmp_path, reference) is reference


def test_nothing_is_left_of_a_payload_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, buffers: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError, match="No space left"):
        write_payload(tmp_path, [b"data"])
    assert not list(tmp_path.iterdir())
