"""Tests names, links and outputs that point out of a sandbox: nothing outside is created, changed or read."""

from __future__ import annotations

import os
import random
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent.slots.sandbox import MAX_INLINE_BYTES
from pilotfish.portable.failures import AttemptError
from tests.support.hostile_sandbox import ACTS, SECRET, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


# --- names ------------------------------------------------------------------------------------------------------------------------


def leading_out() -> list[str]:
    """Names that must all be refused."""
    ups = ["../" * depth for depth in range(1, 13)]
    befores = ["", "a/", "a/b/", "./", "a/../", "a/./../", ".//", "a//", "etc/../../"]
    afters = ["passwd", "decoy/x", "decoy/etc/passwd", "", ".", ".."]
    names = [before + up + after for up in ups for before in befores for after in afters]
    names += [
        before + name for before in ("/", "//", "///", "/./", "/../") for name in ("", "etc/passwd", "tmp/x", "proc/self/fd/1", "dev/null")
    ]
    names += ["", ".", "..", "./", "../", "a/", "a//b", "a/.", "a/..", "./a", "a/./b", "a/../b", "..//x", "a/b/../../../x", "//"]
    names += [before + "\0" + after for before in ("", "a", "../x", "a/b") for after in ("", ".txt", "/../x")]
    names += [
        "x" * 256,
        "ü" * 128,
        "a/" + "y" * 300,
        "y" * 256 + "/a",
        "x" * 5000,
        "a/" * 3000 + "x",
        "../" * 3000 + "x",
        "/".join(["x" * 255] * 17),
    ]
    names += [
        f"{before}{lone}{after}" for lone in ("\ud800", "\udbff", "\udc00", "\udfff") for before in ("", "a/") for after in ("", "/x")
    ]
    return names


def odd_but_inside() -> list[str]:
    """Unusual but harmless names, which must be taken literally."""
    dots = [
        "\uff0e\uff0e",
        "\u2024\u2024",
        "\u2025",
        "\u2026",
        ".\u200b.",
        "\u202e..",
        "..\u2060",
        "%2e%2e",
        "%252e%252e",
        "..%00",
        "..;",
        ".. ",
        " ..",
        "...",
        "....",
        ".\u0307.",
    ]
    slashes = ["\u2215", "\u2044", "\uff0f", "\u29f8", "\\", "%2f", "%5c", "%c0%af", "\u0338"]
    names = [dot + slash + "passwd" for dot in ["..", *dots] for slash in slashes]
    names += [dot + "/" + name for dot in dots for name in ("passwd", "x")]
    names += (
        [f"a{chr(number)}b" for number in range(1, 32)]
        + [chr(number) for number in range(1, 32)]
        + ["\x7f", "\x9b31m", "\x1b[2J", "a\r\nb"]
    )
    names += [os.fsdecode(raw) for raw in (b"\xc0\xae\xc0\xae", b"\xc0\xae\xc0\xae\xc0\xafpasswd", b"\xe0\x80\xae", b"\xff", b"a\xfe/\x80")]
    names += [
        "~",
        "~root",
        "~root/x",
        "$HOME",
        "${HOME}/x",
        "`id`",
        "$(id)",
        "; id",
        "| id",
        "-rf",
        "--",
        "-",
        "*",
        "?",
        "[a-z]",
        "{a,b}",
        "!",
        "#",
        "&",
        "'",
        '"',
    ]
    names += [
        "C:",
        "C:\\x",
        "\\\\server\\share",
        "CON",
        "nul.txt",
        "file:",
        "http:",
        "x" * 255,
        "ü" * 127,
        "a/" * 60 + "x",
        "/".join(["x" * 200] * 15),
    ]
    return names


def test_there_are_enough_of_them() -> None:
    assert len(set(leading_out())) >= 500 and len(set(odd_but_inside())) >= 250


@pytest.mark.parametrize("act", ACTS)
def test_a_name_that_leads_out_is_refused(world: World, act: str) -> None:
    with world.untouched():
        for name in leading_out():
            with pytest.raises(AttemptError):
                ACTS[act](world, name)
    assert os.listdir(world.box) == [] and os.listdir(world.outbox) == []


@pytest.mark.parametrize("name", [None, 7, 1.5, True, [], ["a"], {}, b"bytes"])
def test_what_is_no_name_is_refused(world: World, name: Any) -> None:
    with world.untouched():
        for act in ACTS.values():
            with pytest.raises(AttemptError):
                act(world, name)


@pytest.mark.parametrize("act", ["write_file", "add_cached_file", "make_directory", "make_link"])
def test_odd_names_are_taken_as_they_are(world: World, act: str) -> None:
    with world.untouched():
        for name in odd_but_inside():
            ACTS[act](world, name)
            assert os.path.lexists(os.fsencode(world.box) + b"/" + os.fsencode(name))
            if act == "write_file" and not set("*?[").intersection(name):
                assert world.taken_out(name) == [b"x", b"x"]
            world.fresh()


# --- links ------------------------------------------------------------------------------------------------------------------------


def targets_leading_out() -> list[str]:
    targets = ["", "/", "//", "/etc/passwd", "/proc/self/root", "/.", "\0", "a\0b", "x" * 4096, "\ud800"]
    targets += ["../" * ups + after for ups in range(3, 12) for after in ("", "x", "decoy/etc/passwd", ".")]
    targets += [
        before + up + after for before in ("a/", "./a/", "a/b/", "./x/./") for up in ("..", "../..", "../../../..") for after in ("", "/x")
    ]
    return targets


def test_a_link_that_leads_out_is_refused(world: World) -> None:
    with world.untouched():
        for target in targets_leading_out():
            for name in ("link", "d/link", "d/e/link"):
                with pytest.raises(AttemptError):
                    world.sandbox.make_link(name, target)
    for name, target in (("link", ".."), ("d/link", "../.."), ("d/link", "./../../x"), ("d/e/link", "../../..")):
        with pytest.raises(AttemptError):
            world.sandbox.make_link(name, target)


def links_in(box: Path) -> list[str]:
    return [
        os.path.join(directory, name)
        for directory, names, files in os.walk(box)
        for name in [*names, *files]
        if os.path.islink(os.path.join(directory, name))
    ]


def make_anything(world: World, dice: random.Random) -> None:
    """Create one entry of a tree from few names, so that they collide; links may be part of a path."""
    words = ("a", "b", "c", "..", ".")
    name = "/".join(dice.choice(words[:3]) for _ in range(dice.randint(1, 4)))
    target = "/".join(dice.choice(words) for _ in range(dice.randint(1, 5)))
    kind = dice.randrange(5)
    with suppress(AttemptError):
        if kind < 2:
            world.sandbox.make_link(name, target)
        elif kind == 2:
            world.sandbox.write_file(name, 0o4755, b"x")
        elif kind == 3:
            world.sandbox.add_cached_file(name, 0o644, str(world.content))
        else:
            world.sandbox.make_directory(name, 0o755)


@pytest.mark.parametrize("seed", range(10))
def test_no_order_of_entries_makes_a_way_out(world: World, seed: int) -> None:
    dice = random.Random(seed)
    links = 0
    with world.untouched():
        for _ in range(20):
            for _ in range(12):
                make_anything(world, dice)
            for link in links_in(world.box):
                links += 1
                assert os.path.realpath(link) == str(world.box) or os.path.realpath(link).startswith(f"{world.box}/")
            assert not any(SECRET in content for content in world.taken_out("**"))
            world.fresh()
    assert links > 20


def test_an_entry_does_not_go_through_a_link_that_came_before_it(world: World) -> None:
    world.sandbox.write_file("real/file", 0o600, b"x")
    world.sandbox.make_link("inside", "real")
    os.symlink(world.decoy, world.box / "outside")
    os.symlink(world.decoy / "new", world.box / "new")
    with world.untouched():
        for name in ("inside/x", "outside/x", "outside/etc/new", "outside", "new", "inside", "new/x"):
            for act in ("write_file", "add_cached_file", "make_directory", "make_link"):
                with pytest.raises(AttemptError):
                    ACTS[act](world, name)
            with pytest.raises(AttemptError):
                world.taken_out(name)
    assert os.listdir(world.box / "real") == ["file"]


# --- outputs ----------------------------------------------------------------------------------------------------------------------


def test_outputs_that_are_no_files_of_the_task_do_not_come_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.box)
    os.symlink(world.decoy / "etc" / "passwd", "absolute")
    os.symlink("../decoy/etc/passwd", "relative")
    os.symlink("relative", "chain")
    os.symlink("loop", "loop")
    os.symlink(world.decoy, "folder")
    os.symlink("/proc/self/environ", "environment")
    os.symlink("..", "up")
    os.mkfifo("pipe")
    with suppress(PermissionError):
        os.mknod("device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as door:
        door.bind("socket")
        with world.untouched():
            for name in os.listdir("."):
                for pattern in (name, f"{name}/passwd", f"{name}/etc/passwd", f"{name}/**"):
                    with suppress(AttemptError):
                        assert world.taken_out(pattern) == []
            for pattern in ("*", "**", "**/*", "*/*", "*/**", "[a-z]*", "**/passwd", "*/etc/*"):
                assert world.taken_out(pattern) == []
    assert os.listdir(world.outbox) == []


@pytest.mark.parametrize("length", [10, MAX_INLINE_BYTES + 10])
def test_special_bits_and_other_names_of_a_file_stay_behind(world: World, length: int) -> None:
    shared = world.decoy / "shared"
    shared.write_bytes(b"s" * length)
    shared.chmod(0o640)
    os.link(shared, world.box / "linked")
    world.sandbox.write_file("program", 0o755, b"p" * length)
    os.chmod(world.box / "program", 0o7755)
    before = os.stat(shared)
    out = world.taken_out("program", "linked")
    after = os.stat(shared)
    assert sorted(set(out)) == [b"p" * length, b"s" * length]
    assert (after.st_mode, after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_mode, before.st_ino, before.st_mtime_ns, length)
    for path in world.outbox.iterdir():
        assert path.stat().st_ino != before.st_ino
