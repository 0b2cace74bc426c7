"""What a person sees: tables, progress, and nothing that plays tricks on a terminal."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from pilotfish.cli.terminal.progress import DelayedStatusLine, RunProgress
from pilotfish.cli.terminal.screen import Column, Screen, clean, cut, lay_out, plural, rate, width_of


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def terminal_of(width: int = 80) -> tuple[Screen, Terminal]:
    stream = Terminal()
    return Screen(stream, is_terminal=True, coloured=False, width=width), stream


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("two\nlines\tand tab", "two lines and tab"),
        ("\x9b31m", "\\x9b31m"),
        ("right\u202eleft", "right\\u202eleft"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
        ("müßig 漢字 🐟", "müßig 漢字 🐟"),
        (5, "5"),
    ],
)
def test_control_characters_are_made_visible(given: object, shown: str) -> None:
    assert clean(given) == shown


def test_wide_characters_count_as_two_cells() -> None:
    assert width_of("漢字") == 4
    assert width_of("e\u0301") == 1
    assert cut("漢字漢字", 5) == "漢字…"
    assert cut("short", 5) == "short"


def test_a_table_without_a_limit_is_never_cut() -> None:
    long = "x" * 500
    assert lay_out([Column("A", str), Column("B", str, elastic=True)], [["1", long]], 0) == ["A  B", f"1  {long}"]


def test_a_cell_of_csv_that_has_several_lines_stays_one_cell() -> None:
    stream = io.StringIO()
    rows = [["1", "print(1)\nprint(2)"], ["2", "a\rb"], ["3", 'with "quotes", and a comma'], ["4", "plain"]]
    Screen(stream, is_terminal=False, coloured=False, width=0).csv(rows)
    assert list(csv.reader(io.StringIO(stream.getvalue(), newline=""))) == rows
    assert stream.getvalue().endswith("\n4,plain\n")


def test_a_table_takes_room_from_elastic_columns_first() -> None:
    columns = [Column("ID", str), Column("NAME", str, elastic=True), Column("N", str, right=True)]
    lines = lay_out(columns, [["1.1", "a long name for a task", "12345"]], 24)
    assert lines == ["ID   NAME              N", "1.1  a long name…  12345"]
    assert all(width_of(line) <= 24 for line in lines)


def test_a_table_in_a_tiny_terminal_still_shows_something() -> None:
    columns = [Column("A", str), Column("B", str)]
    assert lay_out(columns, [["x" * 50, "y" * 50]], 10)[1] == "xxxxx…  yyyyy…"


def test_what_goes_to_a_pipe_has_no_colours_and_what_goes_to_a_terminal_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Screen.of(Terminal()).paint("x", "red") == "\x1b[31mx\x1b[0m"
    assert Screen.of(io.StringIO()).paint("x", "red") == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen.of(Terminal()).paint("x", "red") == "x"


def test_characters_that_a_stream_cannot_encode_are_replaced() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Screen(stream, is_terminal=False, coloured=False, width=0).line("done ✓")
    stream.flush()
    assert stream.buffer.getvalue() == b"done ?\n"


@pytest.mark.parametrize(
    ("per_second", "shown"), [(0, "-"), (None, "-"), (12345, "12,345/s"), (2.5, "2.5/s"), (0.05, "3.0/min"), (0.001, "3.6/h")]
)
def test_rates_are_readable(per_second: float | None, shown: str) -> None:
    assert rate(per_second) == shown


def test_numbers_of_things_have_their_plural() -> None:
    assert [plural(count, "task") for count in (0, 1, 1000)] == ["0 tasks", "1 task", "1,000 tasks"]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_progress_tells_done_rate_time_to_go_and_failures() -> None:
    clock = Clock()
    screen, stream = terminal_of(120)
    progress = RunProgress(screen, clock, total=100)
    progress.draw()
    assert "0/100  0 %  waiting for the first result" in stream.getvalue()
    for number in range(50):
        clock.now += 0.2
        progress.ended(failed=number < 3)
    progress.draw()
    assert stream.getvalue().endswith("━━━━━━━━━━━━────────────  50/100  50 %  5.0/s  10 s left  3 failed")
    progress.clear()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_who_comes_later_sees_the_rate_of_the_whole_run_at_once_and_then_what_happens_now() -> None:
    clock = Clock()
    screen, stream = terminal_of(120)
    progress = RunProgress(screen, clock, total=1000)
    progress.begin(elapsed_s=100.0, done=500, failed=2)
    progress.draw()
    assert stream.getvalue().endswith("500/1,000  50 %  5.0/s  1 min 40 s left  2 failed")
    for _ in range(300):
        clock.now += 0.1
        progress.ended(failed=False)
    remaining = progress.remaining_s()
    assert remaining is not None
    assert 19 < remaining < 21


def test_submitting_is_told_on_a_terminal_and_taken_away() -> None:
    clock = Clock()
    screen, stream = terminal_of(120)
    submitting = DelayedStatusLine(screen, clock)
    for _ in range(74_000):
        submitting.show(lambda: "submitting")
    assert stream.getvalue() == "", "what is quick needs no line"
    clock.now += 1
    submitting.show(lambda: "submitting 74,001/300,000")
    assert stream.getvalue() == "\r\x1b[Ksubmitting 74,001/300,000"
    submitting.clear()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_the_rate_follows_what_happens_now() -> None:
    clock = Clock()
    screen, _ = terminal_of()
    progress = RunProgress(screen, clock, total=10_000)
    for _ in range(100):
        clock.now += 10
        progress.ended(failed=False)
    for _ in range(1000):
        clock.now += 0.1
        progress.ended(failed=False)
    remaining = progress.remaining_s()
    assert remaining is not None
    assert 880 < remaining < 900


def test_costs_make_the_estimate_follow_the_work_and_not_the_number_of_tasks() -> None:
    clock = Clock()
    screen, _ = terminal_of()
    progress = RunProgress(screen, clock, total=2)
    progress.work_total = 10.0
    clock.now += 2.0
    progress.ended(failed=False, cost=2.0)
    assert progress.remaining_s() == pytest.approx(8.0)


def test_a_narrow_terminal_drops_the_bar() -> None:
    screen, stream = terminal_of(30)
    RunProgress(screen, Clock(), total=1000).draw()
    assert stream.getvalue() == "\r\x1b[K0/1,000  0 %  waiting for th…"


def test_a_log_file_gets_a_plain_line_now_and_then() -> None:
    clock = Clock()
    stream = io.StringIO()
    progress = RunProgress(Screen(stream, is_terminal=False, coloured=False, width=0), clock, total=10)
    progress.draw()
    clock.now += 1
    progress.ended(failed=False)
    progress.draw()
    assert stream.getvalue() == ""
    clock.now += 30
    progress.draw()
    assert stream.getvalue() == "1/10  10 %  1.9/min  4 min 39 s left\n"


@pytest.mark.parametrize("item", [{"a": "plain", "b": [1, 2.5, None]}, {"text": "Grüße"}, {"text": "\udcff"}, 2**80, {"where": Path("x")}])
def test_a_list_in_a_file_is_ascii_json_of_any_items(item: object) -> None:
    stream = io.StringIO()
    Screen(stream, False, False, 0).json_list([item, item])
    assert stream.getvalue().isascii()
    assert json.loads(stream.getvalue()) == [json.loads(json.dumps(item, default=str))] * 2
