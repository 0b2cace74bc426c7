"""Tests contents and trees that are put into a sandbox, and outputs that are moved out of it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent.slots import sandbox as sandbox_module
from pilotfish.agent.slots.sandbox import MAX_INLINE_BYTES, MAX_INLINE_TOTAL_BYTES, Collected, Sandbox
from pilotfish.portable.failures import AttemptError
from pilotfish.portable.transfer.file_copy import HOLE_BYTES

MIB = 1 << 20


class Stage:
    def __init__(self, tmp_path: Path) -> None:
        self.sandbox = Sandbox(str(tmp_path / "box"))
        self.box = tmp_path / "box"
        self.outbox = tmp_path / "outbox"
        self.outbox.mkdir()
        self.content = tmp_path / "content"
        self.write(b"content")

    def write(self, content: bytes) -> None:
        self.content.unlink(missing_ok=True)
        self.content.write_bytes(content)
        self.content.chmod(0o444)

    def add_cached_file(self, name: str, mode: int = 0o644) -> Path:
        self.sandbox.add_cached_file(name, mode, str(self.content))
        return self.box / name

    def collect(self, *patterns: str) -> Collected:
        return self.sandbox.collect(patterns, 1 << 30, str(self.outbox))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> None:
    """From ten bytes on, for an ordinary user, on a file system that cannot share blocks."""
    monkeypatch.setattr(sandbox_module, "LINK_BYTES", 10)
    monkeypatch.setattr(sandbox_module, "clone", lambda source, target: False)
    monkeypatch.setattr(os, "access", lambda path, how: False)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_small_content_is_a_writable_copy(stage: Stage) -> None:
    placed = stage.add_cached_file("d/e/input", 0o4640)
    assert placed.read_bytes() == b"content" and mode_of(placed) == 0o640
    placed.write_bytes(b"changed")
    assert stage.content.read_bytes() == b"content" and mode_of(stage.content) == 0o444


def test_holes_stay_holes(stage: Stage) -> None:
    stage.write(bytes(3 * MIB) + b"x" + bytes(3 * MIB))
    placed = stage.add_cached_file("sparse")
    assert placed.read_bytes() == stage.content.read_bytes()
    assert placed.stat().st_blocks * 512 <= 2 * HOLE_BYTES


def test_a_large_content_is_a_read_only_link(stage: Stage, links: None) -> None:
    stage.write(b"large content")
    placed = stage.add_cached_file("d/input")
    assert placed.stat().st_ino == stage.content.stat().st_ino and mode_of(placed) == 0o444
    assert os.listdir(stage.box / "d") == ["input"]


def test_a_program_is_a_copy_however_large_it_is(stage: Stage, links: None) -> None:
    stage.write(b"large program")
    placed = stage.add_cached_file("program", 0o755)
    assert placed.stat().st_ino != stage.content.stat().st_ino and mode_of(placed) == 0o755
    assert mode_of(stage.content) == 0o444


def test_where_a_link_is_not_possible_a_copy_is_made(stage: Stage, links: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    stage.write(b"large content")
    placed = stage.add_cached_file("input", 0o600)
    assert placed.read_bytes() == b"large content" and mode_of(placed) == 0o600


def test_root_gets_no_link(stage: Stage, links: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For root, nothing is read-only: a task would change what others use."""
    monkeypatch.setattr(os, "access", lambda path, how: True)
    stage.write(b"large content")
    assert stage.add_cached_file("input").stat().st_ino != stage.content.stat().st_ino


def test_a_content_that_is_gone_is_the_workers_fault(stage: Stage) -> None:
    stage.content.unlink()
    with pytest.raises(AttemptError) as caught:
        stage.add_cached_file("input")
    assert caught.value.failure[:2] == ["missing-input", "worker"] and not list(stage.box.iterdir())


def test_a_tree_has_empty_directories_and_links_that_stay_inside(stage: Stage) -> None:
    stage.sandbox.make_directory("tree/empty", 0o2500)
    assert mode_of(stage.box / "tree" / "empty") == 0o700
    stage.add_cached_file("tree/empty/late")
    stage.sandbox.make_directory("tree", 0o755)
    for name, target in (("tree/a", "empty/late"), ("tree/empty/b", "../a"), ("tree/c", "./empty//late"), ("d", "tree"), ("e", ".")):
        stage.sandbox.make_link(name, target)
        assert os.readlink(stage.box / name) == target
    assert (stage.box / "tree" / "empty" / "b").read_bytes() == b"content"


@pytest.mark.parametrize("make", ["write_file", "add_cached_file", "make_link", "make_directory"])
def test_an_existing_entry_is_not_replaced(stage: Stage, make: str) -> None:
    stage.sandbox.write_file("taken", 0o600, b"first")
    arguments: tuple[Any, ...] = {
        "write_file": (0o600, b"x"),
        "add_cached_file": (0o600, str(stage.content)),
        "make_link": ("x",),
        "make_directory": (0o700,),
    }[make]
    for name in ("taken", "taken/below"):
        with pytest.raises(AttemptError):
            getattr(stage.sandbox, make)(name, *arguments)
    assert (stage.box / "taken").read_bytes() == b"first" and os.listdir(stage.box) == ["taken"]


# --- outputs ----------------------------------------------------------------------------------------------------------------------


def test_small_outputs_are_read_and_large_ones_are_moved(stage: Stage) -> None:
    stage.sandbox.write_file("small", 0o600, b"s" * MAX_INLINE_BYTES)
    stage.sandbox.write_file("large", 0o755, b"l" * (MAX_INLINE_BYTES + 1))
    os.chmod(stage.box / "large", 0o6755)
    inode = (stage.box / "large").stat().st_ino
    entries, contents, _ = stage.collect("*")
    [[*large, path], small] = entries
    assert large == ["large", 0o755, MAX_INLINE_BYTES + 1] and small == ["small", 0o600] and contents == [b"s" * MAX_INLINE_BYTES]
    assert os.path.dirname(path) == str(stage.outbox) and os.stat(path).st_ino == inode
    assert mode_of(Path(path)) == 0o600 and not (stage.box / "large").exists()


def test_many_small_outputs_are_moved_when_their_total_is_large(stage: Stage) -> None:
    for number in range(20):
        stage.sandbox.write_file(f"{number:02}", 0o600, b"x" * MAX_INLINE_BYTES)
    entries, contents, _ = stage.collect("*")
    assert len(contents) == MAX_INLINE_TOTAL_BYTES // MAX_INLINE_BYTES and len(entries) == 20
    assert len(os.listdir(stage.outbox)) == 20 - len(contents)


def test_if_nothing_may_be_read_all_is_moved(stage: Stage) -> None:
    stage.sandbox.write_file("empty", 0o600, b"")
    stage.sandbox.write_file("small", 0o600, b"x")
    entries, contents, _ = stage.sandbox.collect(["*"], 0, str(stage.outbox))
    assert [entry[:3] for entry in entries] == [["empty", 0o600, 0], ["small", 0o600, 1]] and contents == []


def test_a_kept_output_is_moved_out_however_small(stage: Stage) -> None:
    for name in ("a", "d/b", "c"):
        stage.sandbox.write_file(name, 0o600, name.encode())
    apart = stage.sandbox.names(["a", "d"])
    assert list(apart) == ["a", "d/b"]
    entries, contents, _ = stage.sandbox.collect(["a", "d", "c"], 1 << 20, str(stage.outbox), apart)
    assert [entry[0] for entry in entries if len(entry) > 2] == ["a", "d/b"]
    assert contents == [b"c"]


def test_a_directory_as_an_output_means_all_files_below_it(stage: Stage) -> None:
    for name in ("d/a", "d/e/b", "other"):
        stage.sandbox.write_file(name, 0o600, name.encode())
    stage.sandbox.make_directory("d/empty", 0o700)
    stage.sandbox.make_directory("nothing", 0o700)
    assert stage.collect("d") == ([["d/a", 0o600], ["d/e/b", 0o600]], [b"d/a", b"d/e/b"], None)
    assert stage.sandbox.collect(["d", "other"], 1000)[1] == [b"d/a", b"d/e/b", b"other"]
    failure = stage.collect("nothing").failure
    assert failure is not None and "'nothing' is a directory with no file in it" in failure[2]


def test_an_output_with_another_name_elsewhere_is_copied(stage: Stage, tmp_path: Path) -> None:
    content = b"x" * (MAX_INLINE_BYTES + 1)
    (tmp_path / "elsewhere").write_bytes(content)
    os.link(tmp_path / "elsewhere", stage.box / "large")
    [[_, _, _, path]], *_ = stage.collect("large")
    assert os.stat(path).st_ino != (tmp_path / "elsewhere").stat().st_ino and Path(path).read_bytes() == content


def test_an_output_on_another_file_system_than_the_outbox_is_copied(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "rename", refuse)
    content = bytes(MIB) + b"x" + bytes(MIB)
    stage.sandbox.write_file("large", 0o600, content)
    [[_, _, size, path]], *_ = stage.collect("large")
    assert size == len(content) and Path(path).read_bytes() == content and os.stat(path).st_blocks * 512 <= 2 * HOLE_BYTES


@pytest.mark.parametrize("instead", ["link", "file", "directory"])
def test_a_file_that_the_task_swaps_at_the_last_moment_is_not_taken(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instead: str
) -> None:
    content = b"x" * (MAX_INLINE_BYTES + 1)
    stage.sandbox.write_file("large", 0o600, content)
    (tmp_path / "secret").write_text("secret")
    real = sandbox_module._rename

    def swap_and_rename(output: sandbox_module.OutputFile, place: str) -> bool:
        os.rename(stage.box / "large", stage.box / "aside")
        if instead == "link":
            os.symlink(tmp_path / "secret", stage.box / "large")
        elif instead == "file":
            (stage.box / "large").write_text("another one")
        else:
            (stage.box / "large" / "below").mkdir(parents=True)
        return real(output, place)

    monkeypatch.setattr(sandbox_module, "_rename", swap_and_rename)
    [[_, _, _, path]], *_ = stage.collect("large")
    assert Path(path).read_bytes() == content and os.listdir(stage.outbox) == [os.path.basename(path)]
    assert (tmp_path / "secret").read_text() == "secret"


def test_if_an_output_is_missing_the_others_are_collected(stage: Stage) -> None:
    for name in ("large", "later"):
        stage.sandbox.write_file(name, 0o600, b"x" * (MAX_INLINE_BYTES + 1))
    entries, _, failure = stage.collect("large", "missing", "later")
    assert [entry[0] for entry in entries] == ["large", "later"] and len(os.listdir(stage.outbox)) == 2
    assert failure is not None and failure[:2] == ["missing-output", "task"] and "'missing'" in failure[2]


def test_a_full_disk_is_the_workers_fault(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stage.sandbox.write_file("large", 0o600, b"x" * (MAX_INLINE_BYTES + 1))
    os.link(stage.box / "large", stage.box / "twice")
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(AttemptError) as caught:
        stage.add_cached_file("input")
    for failure in (caught.value.failure, stage.collect("large").failure):
        assert failure is not None and failure[:2] == ["disk", "worker"]
    assert os.listdir(stage.outbox) == []
