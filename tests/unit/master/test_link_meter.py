"""What is measured of the ways to sites."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from pilotfish.master.master_content_source import MIN_MEASURED_BYTES, LinkMeter
from pilotfish.portable.transfer.transfer_server import unsent

SITES = {"a1": "a", "a2": "a", "b1": "b"}


class Stage:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.woken = 0
        monkeypatch.setattr("pilotfish.master.master_content_source.time.monotonic", lambda: self.now)
        self.meter = LinkMeter(SITES.__getitem__, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def read(self) -> dict[str, Any]:
        return {told.site: (told.size, told.seconds) for told in self.meter.read()[0]}


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_bytes_and_the_time_in_which_any_were_under_way(stage: Stage) -> None:
    stage.meter.count_start("a")
    stage.meter.count_start("a")
    stage.meter.count_sent("a1", 130_000)
    stage.meter.count_sent("a2", 150_000)
    stage.now += 2
    stage.meter.count_end("a")
    stage.now += 3
    stage.meter.count_end("a")
    stage.now += 100
    assert stage.read() == {"a": (280_000, pytest.approx(5.0))}
    assert stage.read() == {}


def test_what_is_still_under_way_is_told_as_well_and_goes_on(stage: Stage) -> None:
    stage.meter.count_start("a")
    stage.meter.count_start("b")
    stage.now += 2
    stage.meter.count_sent("a1", 120_000)
    stage.meter.count_sent("b1", 140_000)
    measured, busy = stage.meter.read()
    assert busy and {(told.site, told.size, told.seconds) for told in measured} == {("a", 120_000, 2.0), ("b", 140_000, 2.0)}
    stage.now += 1
    stage.meter.count_sent("b1", 160_000)
    stage.meter.count_end("b")
    stage.meter.count_end("a")
    assert stage.read() == {"b": (160_000, pytest.approx(1.0))}
    assert stage.meter.read() == ([], False)


def test_it_asks_to_be_read_when_something_begins_and_not_again_until_it_was_read_while_nothing_moved(stage: Stage) -> None:
    stage.meter.count_start("a")
    stage.meter.count_start("b")
    stage.meter.count_end("a")
    stage.meter.count_end("b")
    stage.meter.count_start("a")
    assert stage.woken == 1
    assert stage.meter.read() == ([], True)
    stage.meter.count_end("a")
    stage.meter.count_start("a")
    assert stage.woken == 1
    stage.meter.count_end("a")
    assert stage.meter.read() == ([], False)
    stage.meter.count_start("a")
    assert stage.woken == 2


def test_while_a_piece_is_under_way_its_time_is_kept(stage: Stage) -> None:
    stage.meter.count_start("a")
    stage.now += 2
    assert stage.read() == {}
    stage.now += 2
    stage.meter.count_sent("a1", 1_000_000)
    assert stage.read() == {"a": (1_000_000, pytest.approx(4.0))}


def test_little_says_nothing(stage: Stage) -> None:
    stage.meter.count_start("a")
    stage.meter.count_sent("a1", MIN_MEASURED_BYTES - 1)
    stage.now += 1
    stage.meter.count_end("a")
    assert stage.read() == {}


def test_what_is_left_in_buffers_when_all_is_handed_over_has_not_moved(stage: Stage) -> None:
    stage.meter.count_start("a")
    stage.now += 2
    stage.meter.count_sent("a1", 300_000)
    stage.meter.count_end("a")
    stage.meter.take_back("a1", 100_000)
    assert stage.read() == {"a": (200_000, pytest.approx(2.0))}


def test_what_is_left_in_buffers_while_more_follows_moves_in_the_time_of_that(stage: Stage) -> None:
    stage.meter.count_start("a")
    stage.meter.count_start("a")
    stage.now += 2
    stage.meter.count_sent("a1", 300_000)
    stage.meter.count_end("a")
    stage.meter.take_back("a1", 100_000)
    assert stage.read() == {"a": (300_000, pytest.approx(2.0))}


def test_the_kernel_tells_what_the_other_end_has_not_taken() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"x" * 1000)
        assert unsent(one.fileno()) >= 1000
        assert len(other.recv(1000)) == 1000
        assert unsent(one.fileno()) == 0


def test_of_what_is_no_connection_nothing_is_left() -> None:
    with open(os.devnull, "wb") as file:
        assert unsent(file.fileno()) == 0
    assert unsent(-1) == 0
