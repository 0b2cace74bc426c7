"""Tests a task that inserts links while its sandbox is filled, emptied or removed: files outside stay unchanged."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pilotfish.portable.failures import AttemptError
from tests.support.hostile_sandbox import ACTS, CONTENT, SECRET, World

ROUNDS = 15


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


class Swap:
    """A path in the sandbox that can be swapped for a link to something outside, and back."""

    def __init__(self, place: str, outside: str) -> None:
        self.place = place
        self.outside = outside

    def away(self, world: World) -> None:
        os.rename(world.root / self.place, world.root / f"{self.place}.aside")
        os.symlink(world.root / self.outside, world.root / self.place)

    def back(self, world: World) -> None:
        os.unlink(world.root / self.place)
        os.rename(world.root / f"{self.place}.aside", world.root / self.place)


SWAPS = {
    "directory": Swap("box/d", "decoy"),
    "file": Swap("box/d/f", "decoy/large"),
    "below": Swap("box/d/etc", "decoy/etc"),
    "all": Swap("box", "decoy"),
}


def take_out_what_is_there(world: World, *patterns: str) -> None:
    assert not any(SECRET in content for content in world.taken_out(*patterns))


STEPS: dict[str, Callable[[World], Any]] = {
    "write_file": lambda world: ACTS["write_file"](world, "d/etc/new"),
    "add_cached_file": lambda world: ACTS["add_cached_file"](world, "d/etc/new"),
    "make_directory": lambda world: ACTS["make_directory"](world, "d/new/er"),
    "make_link": lambda world: ACTS["make_link"](world, "d/etc/new"),
    "take a file out": lambda world: take_out_what_is_there(world, "d/f"),
    "take all out": lambda world: take_out_what_is_there(world, "d"),
    "take some out": lambda world: take_out_what_is_there(world, "*/etc/*", "d/[f-l]*"),
    "remove": lambda world: world.sandbox.remove(),
}
CALLS = ("open", "mkdir", "rename", "unlink", "rmdir", "listdir", "link", "symlink", "chmod", "lstat", "access")
"""System calls that can follow a link."""


class Adversary:
    """Swaps just before a certain system call, and back before the next one or never."""

    def __init__(self, world: World, swap: Swap, at: int, returns: bool) -> None:
        self.world = world
        self.swap = swap
        self.at = at
        self.returns = returns
        self.calls = -1
        self.acting = False

    def watch(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if not self.acting:
                self.acting = True
                self.calls += 1
                with suppress(OSError):
                    if self.calls == self.at:
                        self.swap.away(self.world)
                    elif self.calls == self.at + 1 and self.returns:
                        self.swap.back(self.world)
                self.acting = False
            return real(*arguments, **options)

        return call


@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("step", STEPS)
def test_at_whatever_moment_a_link_is_put_on_the_way_nothing_is_gained(
    world: World, step: str, swap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.untouched():
        for returns in (True, False):
            moment = 0
            while True:
                for name, content in (("d/f", CONTENT), ("d/etc/x", b"x"), ("d/etc/deep/x", b"x")):
                    world.sandbox.write_file(name, 0o600, content)
                adversary = Adversary(world, SWAPS[swap], moment, returns)
                with monkeypatch.context() as patch:
                    for call in CALLS:
                        patch.setattr(os, call, adversary.watch(getattr(os, call)))
                    with suppress(AttemptError):
                        STEPS[step](world)
                world.start_again()
                if adversary.calls < moment:
                    break
                moment += 1
            assert moment > 2


@contextmanager
def racing(swap: Swap, world: World) -> Iterator[list[int]]:
    ends = threading.Event()
    swaps = [0]

    def race() -> None:
        while not ends.is_set():
            with suppress(OSError):
                swap.away(world)
            with suppress(OSError):
                swap.back(world)
            swaps[0] += 1

    racer = threading.Thread(target=race)
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    racer.start()
    try:
        yield swaps
    finally:
        ends.set()
        racer.join()
        sys.setswitchinterval(usual_s)


@pytest.mark.parametrize("swap", SWAPS)
def test_who_swaps_directories_for_links_all_the_time_gains_nothing(world: World, swap: str) -> None:
    done = 0
    with world.untouched():
        for _ in range(ROUNDS):
            world.sandbox.write_file("d/f", 0o600, CONTENT)
            world.sandbox.write_file("d/etc/x", 0o600, b"x")
            with racing(SWAPS[swap], world) as swaps:
                while swaps[0] < 5:
                    done += act_in_all_ways(world)
            world.start_again()
    assert done


def act_in_all_ways(world: World) -> int:
    """Try all operations; return how many were not refused."""
    done = 0
    for act in ("write_file", "add_cached_file", "make_directory", "make_link"):
        for name in (f"d/{act}", f"d/etc/{act}"):
            with suppress(AttemptError):
                ACTS[act](world, name)
                done += 1
    for patterns in (["d/f"], ["d/**"], ["d"], ["**/x", "d/etc/*"], ["d/large", "d/etc/passwd"]):
        with suppress(AttemptError):
            assert not any(SECRET in content for content in world.taken_out(*patterns))
            done += 1
    with suppress(AttemptError):
        world.sandbox.write_file("d/f", 0o600, CONTENT)
    return done


def test_a_sandbox_that_is_removed_while_its_directories_are_swapped_takes_nothing_else_with_it(world: World) -> None:
    with world.untouched():
        for _ in range(ROUNDS):
            for name in ("d/f", "d/etc/x", "d/etc/deep/er/x"):
                world.sandbox.write_file(name, 0o600, b"x")
            os.chmod(world.box / "d" / "etc", 0o000)
            with racing(SWAPS["directory"], world):
                world.sandbox.remove()
            world.fresh()
