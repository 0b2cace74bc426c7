"""Input files are read again for a rerun, and the files that changed are named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotfish.applications.input_files import INLINE_BYTES, PackedFiles, RenewedFiles, StoredFile, renew_files
from pilotfish.errors import BadInput

DIGEST = "ab" * 32


def renew(packed: PackedFiles) -> RenewedFiles:
    return renew_files(packed.entries, packed.parts, packed.sources)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PILOTFISH_HOME", str(tmp_path / ".pilotfish"))
    (tmp_path / "mesh" / "deep").mkdir(parents=True)
    (tmp_path / "mesh" / "points").write_text("1 2 3")
    (tmp_path / "mesh" / "deep" / "edges").write_text("4 5")
    (tmp_path / "mesh" / "last").symlink_to("points")
    (tmp_path / "small").write_text("small")
    (tmp_path / "large").write_bytes(bytes(INLINE_BYTES + 1))
    return tmp_path


def packed_all(folder: Path) -> PackedFiles:
    stored = StoredFile(mode=0o600, digest=DIGEST, size=7)
    return PackedFiles({"small": "small", "text": b"given as bytes", "mesh": "mesh", "x/far.dat": str(folder / "large"), "old": stored})


def test_unchanged_files_give_the_same(folder: Path) -> None:
    before = packed_all(folder)
    after, changed = renew(before)
    assert changed == ()
    assert (after.entries, after.parts, after.contents, after.sources) == (before.entries, before.parts, before.contents, before.sources)


@pytest.mark.parametrize("name", ["small", "mesh/points", "mesh/deep/edges", "large"])
def test_a_changed_file_is_named_by_the_path_that_was_given(folder: Path, name: str) -> None:
    before = packed_all(folder)
    (folder / name).write_bytes((folder / name).read_bytes() + b"!")
    os.utime(folder / name, (1, 1))
    after, changed = renew(before)
    assert changed == (str(folder / name.partition("/")[0]),)
    assert (after.entries, after.parts) != (before.entries, before.parts)
    assert packed_all(folder).parts == after.parts


def test_a_new_file_in_a_directory_and_a_new_permission_are_changes(folder: Path) -> None:
    before = packed_all(folder)
    (folder / "mesh" / "new").write_text("more")
    (folder / "small").chmod(0o755)
    assert renew(before).changed == (str(folder / "small"), str(folder / "mesh"))


def test_the_directory_of_the_person_does_not_matter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = packed_all(folder)
    monkeypatch.chdir("/")
    assert renew(before).changed == ()


def test_an_equal_file_that_was_written_again_has_its_new_time(folder: Path) -> None:
    before = packed_all(folder)
    os.utime(folder / "large", (5, 5))
    after, changed = renew(before)
    assert changed == () and after.contents[0].mtime_ns == 5_000_000_000


def test_a_file_that_is_gone_is_named(folder: Path) -> None:
    before = packed_all(folder)
    (folder / "small").unlink()
    with pytest.raises(BadInput, match="small no longer exists"):
        renew(before)


def test_a_path_that_is_not_utf8_gives_no_sources(folder: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    Path(name).write_text("x")
    assert PackedFiles({"cafe": name, "small": "small"}).sources == {}
