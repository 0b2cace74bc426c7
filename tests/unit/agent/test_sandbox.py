"""Tests the sandbox: inputs, outputs, and names that lead out of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pilotfish.agent.slots.sandbox import Sandbox
from pilotfish.portable.failures import AttemptError

BAD_NAMES = [
    "",
    ".",
    "..",
    "/etc/passwd",
    "../x",
    "a/../../x",
    "a/..",
    "./a",
    "a//b",
    "a/",
    "/",
    "a/./b",
    "nul\0byte",
    "\0",
    "x" * 256,
    "ü" * 128,
    "a/" + "y" * 256,
    *["../" * depth + "etc/passwd" for depth in range(1, 20)],
]


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(str(tmp_path / "box"))


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_leads_out_is_refused_for_inputs_and_outputs(sandbox: Sandbox, name: str, tmp_path: Path) -> None:
    with pytest.raises(AttemptError):
        sandbox.write_file(name, 0o644, b"x")
    with pytest.raises(AttemptError):
        sandbox.names([name])
    assert sandbox.collect([name], 1000).failure
    assert [path.name for path in tmp_path.iterdir()] == ["box"]


@pytest.mark.parametrize("name", ["a", "a b", "new\nline", "-rf", "~", "$HOME", "ü", "..a", "a..", "...", "d/e/f", "\udcff raw byte"])
def test_odd_but_harmless_names_go_in_and_come_out(sandbox: Sandbox, name: str) -> None:
    sandbox.write_file(name, 0o644, b"content")
    assert sandbox.collect([name], 1000) == ([[name, 0o644]], [b"content"], None)


def test_modes_are_kept_but_no_special_bits(sandbox: Sandbox) -> None:
    sandbox.write_file("program", 0o6755, b"#!/bin/sh\n")
    mode = os.stat(Path(sandbox.path) / "program").st_mode
    assert stat.S_IMODE(mode) == 0o755


def test_an_input_does_not_go_through_a_link(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (Path(sandbox.path) / "door").symlink_to(tmp_path / "outside")
    with pytest.raises(AttemptError):
        sandbox.write_file("door/file", 0o644, b"x")
    (Path(sandbox.path) / "link").symlink_to(tmp_path / "outside" / "file")
    with pytest.raises(AttemptError):
        sandbox.write_file("link", 0o644, b"x")
    assert not list((tmp_path / "outside").iterdir())


def test_outputs_are_regular_files_only_and_links_are_not_followed(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    box = Path(sandbox.path)
    (box / "link").symlink_to(secret)
    (box / "door").symlink_to(tmp_path)
    os.mkfifo(box / "pipe")
    (box / "directory").mkdir()
    (box / "plain").write_text("plain")
    only = "only regular files and directories come back"
    for name, said in {
        "link": f"'link' is a link: {only}",
        "door/secret": f"'door' is a link: {only}",
        "pipe": f"'pipe' is a pipe: {only}",
        "directory": "'directory' is a directory with no file in it that could come back",
        "plain/nothing": "the task did not leave the file 'plain/nothing', which was declared as its output; it left 'plain'",
    }.items():
        assert sandbox.collect([name], 1000) == ([], [], ["missing-output", "task", said])
    assert sandbox.collect(["*"], 1000) == ([["plain", 0o644]], [b"plain"], None)
    assert sandbox.collect(["**"], 1000)[0] == [["plain", 0o644]]


def test_a_missing_output_is_told_with_the_files_that_the_task_left_itself(sandbox: Sandbox) -> None:
    def left_beside(*patterns: str) -> str:
        failure = sandbox.collect(patterns, 1000).failure
        assert failure is not None and failure[0] == "missing-output"
        return failure[2].partition("its output")[2]

    sandbox.write_file("data/eco.json", 0o644, b"x")
    assert left_beside("sumary.json") == ""
    box = Path(sandbox.path)
    for name in ("a", "b", "c", "d", "trajectory.csv"):
        (box / name).write_text("x")
    assert left_beside("sumary.json") == "; it left 'a', 'b', 'c', 'd', 'trajectory.csv'"
    (box / "data/summary.json").write_text("x")
    near = "; did you mean 'data/summary.json'?"
    assert left_beside("data/sumary.json") == f"; it left 'data/summary.json', 'a', 'b', 'c', 'd', ...{near}"
    assert left_beside("?", "trajectory.csv", "data/sumary.json", "absent") == f"; it left 'data/summary.json'{near}"


def test_patterns_find_files_at_their_depth_and_each_once(sandbox: Sandbox) -> None:
    for name in ("a.txt", "b.dat", "d/c.txt", "d/e/f.txt"):
        sandbox.write_file(name, 0o600, name.encode())

    def names(*patterns: str) -> list[str]:
        return [name for name, _ in sandbox.collect(patterns, 1000)[0]]

    assert names("*.txt") == ["a.txt"]
    assert names("*/*.txt") == ["d/c.txt"]
    assert names("**/*.txt") == ["a.txt", "d/c.txt", "d/e/f.txt"]
    assert names("d/**") == ["d/c.txt", "d/e/f.txt"]
    assert names("a.txt", "*") == ["a.txt", "b.dat", "d/c.txt", "d/e/f.txt"]
    assert names("d*") == names("d") == names("**/d") == ["d/c.txt", "d/e/f.txt"]
    assert names("*/e") == names("**/e/*") == ["d/e/f.txt"]
    assert names("**/[ce]*") == ["d/c.txt", "d/e/f.txt"]
    assert names("[ab].*") == ["a.txt", "b.dat"]
    assert names("*.none") == []


def test_an_unreadable_output_is_reported_as_unreadable(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.write_file("closed", 0o000, b"x")
    real = os.open

    def refuse(path: str, *more: int, **options: int) -> int:
        if path == "closed":  # root may read anything
            raise PermissionError(13, "Permission denied")
        return real(path, *more, **options)

    monkeypatch.setattr(os, "open", refuse)
    failure = sandbox.collect(["closed"], 1000).failure
    assert failure is not None and "'closed' may not be read" in failure[2]


def test_outputs_that_are_too_large_are_a_failure_that_says_so(sandbox: Sandbox) -> None:
    sandbox.write_file("a", 0o600, b"x" * 600)
    sandbox.write_file("b", 0o600, b"x" * 600)
    found = sandbox.collect(["*"], 1000)
    assert found.failure is not None and "too large" in found.failure[2] and found.contents == [b"x" * 600]


def test_it_is_removed_even_if_its_task_made_it_unreadable(sandbox: Sandbox) -> None:
    sandbox.write_file("d/e/f", 0o600, b"x")
    os.chmod(Path(sandbox.path) / "d" / "e", 0)
    os.chmod(Path(sandbox.path) / "d", 0)
    os.chmod(sandbox.path, 0)
    sandbox.remove()
    assert not os.path.lexists(sandbox.path)


def test_removing_does_not_follow_links(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (Path(sandbox.path) / "link").symlink_to(tmp_path / "precious")
    sandbox.remove()
    assert (tmp_path / "precious" / "file").exists()


def test_removing_never_touches_what_a_task_linked_to_in_the_place_of_its_directory(sandbox: Sandbox, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "below").mkdir(parents=True)
    outside.chmod(0o755)
    (outside / "below").chmod(0o755)
    os.rmdir(sandbox.path)
    os.symlink(outside, sandbox.path)
    sandbox.remove()
    assert not os.path.lexists(sandbox.path)
    assert [stat.S_IMODE(place.stat().st_mode) for place in (outside, outside / "below")] == [0o755, 0o755]


def test_what_is_opened_up_to_be_removed_is_never_reached_through_a_link(sandbox: Sandbox, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o755)
    closed = Path(sandbox.path) / "closed"
    (closed / "deeper").mkdir(parents=True)
    (closed / "link").symlink_to(outside)
    for place in (closed / "deeper", closed):
        place.chmod(0o000)
    sandbox.remove()
    assert not os.path.exists(sandbox.path) and stat.S_IMODE(outside.stat().st_mode) == 0o755


def test_it_is_removed_however_deep_it_is(sandbox: Sandbox) -> None:
    """Deeper than the longest path, and than the recursion limit."""
    directory = os.open(sandbox.path, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("directory", dir_fd=directory)
        below = os.open("directory", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(os.open("file", os.O_CREAT, dir_fd=directory))
    os.fchmod(directory, 0)
    os.close(directory)
    sandbox.remove()
    assert not os.path.lexists(sandbox.path)
