"""What a person may write as a sweep, and what is said when it is wrong."""

from __future__ import annotations

import io
import os
import re
import threading
import tracemalloc
from collections import deque
from pathlib import Path

import pytest

from pilotfish.applications.sweeps import tables
from pilotfish.applications.sweeps.sweep import Sweep, likely_parameter, make_sweep, parse_parameter, split_lists
from pilotfish.applications.sweeps.tables import SMALL_FILE_BYTES
from pilotfish.applications.sweeps.task_list_file import read_task_file
from pilotfish.errors import BadInput


def values(text: str) -> list[str]:
    return [value for (value,) in parse_parameter(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("alpha=0.1:1.0:0.1", ["0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1.0"]),
        ("alpha=0:1:0.25", ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        ("alpha=0:1:0.3", ["0.0", "0.3", "0.6", "0.9"]),
        ("n=1:4", ["1", "2", "3", "4"]),
        ("n=3:1:-1", ["3", "2", "1"]),
        ("t=-0.2:0.1:0.1", ["-0.2", "-0.1", "0.0", "0.1"]),
        ("eps=1e-3:3e-3:1e-3", ["0.001", "0.002", "0.003"]),
        ("size=1e3:3e3:1e3", ["1000", "2000", "3000"]),
        ("n=5:5:1", ["5"]),
        ("n=5:5", ["5"]),
        ("n=1,3:5,7:9,11", ["1", "3", "4", "5", "7", "8", "9", "11"]),
        ("seed=1..5", ["1", "2", "3", "4", "5"]),
        ("seed=-2..1", ["-2", "-1", "0", "1"]),
        ("seed=7..7", ["7"]),
        ("kind=fast,slow", ["fast", "slow"]),
        ("kind=fast", ["fast"]),
        ("seed=1..3,10,20..21", ["1", "2", "3", "10", "20", "21"]),
        ('kind="a,b",c', ["a,b", "c"]),
        ('kind="",x', ["", "x"]),
        ('start="10:30:00"', ["10:30:00"]),
        ("where=localhost:8080", ["localhost:8080"]),
        ("where=node1:/data", ["node1:/data"]),
        ("path=../a,../b", ["../a", "../b"]),
        ("formula=a=b", ["a=b"]),
    ],
)
def test_values_are_what_a_person_expects(text: str, expected: list[str]) -> None:
    axis = parse_parameter(text)
    assert values(text) == expected
    assert len(axis) == len(expected)


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("alpha", "has no '='", "name=values"),
        ("=1,2", "'' cannot be a name", "starts with a letter"),
        ("al pha=1", "'al pha' cannot be a name", "letters, digits"),
        ("alpha=", "no values", "alpha=1..10"),
        ("alpha=0.1:1.0:x", "the step 'x' is not a number", "start:stop:step"),
        ("alpha=0.1:1.O:0.1", "the stop '1.O' is not a number", "start:stop:step"),
        ("alpha=0.1:1.0:0", "the step is 0", "alpha=0.1:1.0:0.1"),
        ("alpha=1:0.5:0.1", "never gets from 1 to 0.5", "alpha=1:0.5:-0.1"),
        ("alpha=10:5:100", "never gets from 10 to 5", "alpha=10:100:5; the order is START:STOP:STEP"),
        ("alpha=1:0.1:2", "never gets from 1 to 0.1", "alpha=1:2:0.1; the order"),
        ("alpha=0.5:0.1", "a step of 1 (the default) never gets from 0.5 to 0.1", "alpha=0.5:0.1:-0.1;"),
        ("alpha=0:0.1:1", "a step of 1 is larger than the range from 0 to 0.1", "alpha=0:1:0.1; the order is START:STOP:STEP"),
        ("alpha=0:0.25:2", "a step of 2 is larger than the range from 0 to 0.25", "alpha=0:2:0.25;"),
        ("alpha=3:1:-5", "a step of -5 is larger than the range from 3 to 1", "alpha=3:1:-1; the order"),
        ("alpha=0.1:0.5", "a step of 1 (the default) is larger than the range from 0.1 to 0.5", "alpha=0.1:0.5:0.1;"),
        ("alpha=0,5:1,5:0,5", "commas separate values", "Write numbers with a decimal point: alpha=0.5:1.5:0.5"),
        ("alpha=0:1:0,1", "commas separate values", "alpha=0:1:0.1"),
        ("alpha=1,10:5:100", "never gets from 10 to 5", "alpha=10:100:5"),
        ("alpha=0,1:1,0:0,1", "commas separate values", "alpha=0.1:1.0:0.1"),
        ("alpha=0:1:1e-999", "'1e-999' is not a number", "start:stop:step"),
        ("seed=10..1", "10 is above 1", "seed=1..10"),
        ("seed=1..x", "counts whole numbers", "seed=1..100"),
        ("seed=0.1..1.0", "counts whole numbers", "0.1:1.0:0.1"),
        ("seed=1,,3", "value 2 is empty", "extra comma"),
        ('seed="a', "quoted value does not end", "Quote whole values"),
        ("seed=1..99999999999", "would make 99,999,999,999 tasks; a run may have 50,000,000", "larger step"),
        ("seed=@nowhere.csv", "'nowhere.csv' does not exist", "ls"),
    ],
)
def test_a_bad_parameter_is_refused_with_field_value_and_fix(text: str, said: str, hint: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_parameter(text)
    assert said in str(refused.value)
    assert hint in refused.value.hint


def test_all_combinations_come_with_the_last_parameter_moving_fastest() -> None:
    sweep = make_sweep(["a=1,2", "b=x,y,z"])
    assert sweep.names == ("a", "b")
    assert list(sweep) == [("1", "x"), ("1", "y"), ("1", "z"), ("2", "x"), ("2", "y"), ("2", "z")]
    assert len(sweep) == 6


def test_zip_puts_values_side_by_side() -> None:
    assert list(make_sweep(["a=1,2", "b=x,y"], zipped=True)) == [("1", "x"), ("2", "y")]


def test_zip_of_different_lengths_says_both_lengths() -> None:
    with pytest.raises(BadInput, match="a has 2, b has 3"):
        make_sweep(["a=1,2", "b=x,y,z"], zipped=True)


def test_zip_of_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="nothing to put side by side"):
        make_sweep(zipped=True)


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="'a' is given twice"):
        make_sweep(["a=1", "a=2"])


def test_a_sweep_larger_than_a_run_can_hold_is_refused() -> None:
    with pytest.raises(BadInput, match=r"\(1,000,000 x 1,000,000\) would make 1,000,000,000,000 tasks.*about 400 bytes of each in memory"):
        make_sweep(["a=1..1000000", "b=1..1000000"])
    with pytest.raises(BadInput, match="the sweep would make 80,000,000 tasks"):
        make_sweep(["a=1..40000000,50000001..90000000"])
    assert len(make_sweep(["a=1..50000000"])) == 50_000_000
    assert len(make_sweep(["a=1..40000000", "b=1..40000000"], zipped=True)) == 40_000_000


def test_lines_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotfish.applications.sweeps.sweep.MAX_TASKS", 2)
    (tmp_path / "lines.txt").write_text("true\ntrue\ntrue\n")
    with pytest.raises(BadInput, match="the sweep would make 3 tasks"):
        make_sweep(each_line=str(tmp_path / "lines.txt"))
    with pytest.raises(BadInput, match="the task list .* would make 3 tasks"):
        read_task_file(str(tmp_path / "lines.txt"))


def test_a_nul_is_refused_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines.txt").write_text("a\n\nb\0c\n")
    (tmp_path / "t.json").write_text('[{"a": "b\\u0000"}]')
    monkeypatch.setattr("sys.stdin", io.StringIO("a\nb\0\n"))
    with pytest.raises(BadInput, match="lines.txt, line 3: it has a NUL character") as refused:
        make_sweep(each_line=str(tmp_path / "lines.txt"))
    assert r"tr '\0' '\n'" in refused.value.hint
    with pytest.raises(BadInput, match="--each-line -, line 2: it has a NUL"):
        make_sweep(each_line="-")
    with pytest.raises(BadInput, match="lines.txt, line 3: it has a NUL"):
        read_task_file(str(tmp_path / "lines.txt"))
    with pytest.raises(BadInput, match="cannot stand on a command line"):
        make_sweep(tables=[str(tmp_path / "t.json")])


def test_a_sweep_without_parameters_is_one_task() -> None:
    assert list(Sweep(())) == [()]
    assert len(Sweep(())) == 1


def test_a_csv_table_gives_several_parameters_per_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('alpha, beta\n0.10,"x, y"\n\n0.2,z\n')
    sweep = make_sweep(["seed=1..2"], tables=[str(tmp_path / "t.csv")])
    assert sweep.names == ("alpha", "beta", "seed")
    assert list(sweep) == [("0.10", "x, y", "1"), ("0.10", "x, y", "2"), ("0.2", "z", "1"), ("0.2", "z", "2")]


@pytest.mark.parametrize("content", ['[{"a": 0.10, "b": "x"}, {"b": true, "a": 2}]', '{"a": [0.10, 2], "b": ["x", true]}'])
def test_json_tables_are_lists_of_objects_or_objects_of_lists_and_keep_numbers_as_written(tmp_path: Path, content: str) -> None:
    (tmp_path / "t.json").write_text(content)
    assert list(make_sweep(tables=[str(tmp_path / "t.json")])) == [("0.10", "x"), ("2", "true")]


def test_one_column_of_a_file_can_be_one_parameter(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "t.tsv").write_text("a\tb\n1\t2\n")
    (tmp_path / "l.json").write_text("[1, 2.50]")
    (tmp_path / "o.json").write_text('[{"a": 1, "b": 5}]')
    (tmp_path / "l.txt").write_text("first line\n\nsecond\n")
    assert values(f"b=@{tmp_path}/t.csv") == ["2", "4"]
    assert values(f"b=@{tmp_path}/t.tsv") == ["2"]
    assert values(f"b=@{tmp_path}/l.json") == ["1", "2.50"]
    assert values(f"b=@{tmp_path}/o.json") == ["5"]
    assert values(f"b=@{tmp_path}/l.txt") == ["first line", "second"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", "", "empty"),
        ("t.csv", "a,b\n", "no values"),
        ("t.csv", "a,b\n1\n", "line 2: 1 values for 2 columns"),
        ("t.csv", "a,a\n1,2\n", "two columns 'a'"),
        ("t.csv", "learning rate\n1\n", "'learning rate' cannot be"),
        ("t.csv", 'a\n"x" y\n', "line 2"),
        ("t.json", "{", "line 1: not JSON"),
        ("t.json", "[1, 2]", "no table"),
        ("t.json", "[]", "no values"),
        ("t.json", '[{"a": 1}, {"b": 1}]', "item 2: its keys differ"),
        ("t.json", '[{"a": null}]', "a is null"),
        ("t.json", '{"a": [1], "b": [1, 2]}', "differ in length"),
    ],
)
def test_a_bad_table_is_refused_with_its_place(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadInput) as refused:
        make_sweep(tables=[str(tmp_path / name)])
    assert said in str(refused.value)
    assert refused.value.hint


def test_a_misspelt_column_or_file_gets_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("alpha\n1\n")
    with pytest.raises(BadInput) as column:
        parse_parameter(f"alpah=@{tmp_path}/table.csv")
    assert column.value.hint == "Did you mean 'alpha'?"
    with pytest.raises(BadInput) as file:
        parse_parameter(f"alpha=@{tmp_path}/tabel.csv")
    assert file.value.hint == "Did you mean 'table.csv'?"


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"ok\n\xff\xfe\n")
    with pytest.raises(BadInput, match="not text in UTF-8"):
        make_sweep(each_line=str(tmp_path / "x.txt"))


def test_lines_can_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a b\n\nc\n"))
    assert list(make_sweep(each_line="-")) == [("a b",), ("c",)]


def test_a_million_tasks_are_not_held_in_memory(tmp_path: Path) -> None:
    large = tmp_path / "lines.txt"
    large.write_text("".join(f"line {number}\n" for number in range(200_000)))
    assert large.stat().st_size > SMALL_FILE_BYTES
    tracemalloc.start()
    try:
        sweep = make_sweep(["a=1..1000", "b=0.001:1.000:0.001"])
        assert len(sweep) == 1_000_000
        for _, _ in zip(sweep, range(100_000), strict=False):
            pass
        lines = make_sweep(each_line=str(large))
        assert deque(lines, maxlen=1)[0] == ("line 199999",)
        assert len(lines) == 200_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_a_large_file_that_changes_between_two_readings_is_noticed(tmp_path: Path) -> None:
    large = tmp_path / "lines.txt"
    large.write_text("x" * 100 + "\n" + "y\n" * SMALL_FILE_BYTES)
    sweep = make_sweep(each_line=str(large))
    large.write_text("only one\n")
    with pytest.raises(BadInput, match="changed while"):
        deque(sweep, maxlen=0)


@pytest.mark.parametrize("values", ["[1,2]", "range(3)", "np.linspace(0,1,5)"])
def test_values_written_as_in_a_program_are_refused_with_the_way_to_write_them(values: str) -> None:
    with pytest.raises(BadInput, match="looks like Python") as refusal:
        parse_parameter(f"x={values}")
    assert "x=1,2,3" in refusal.value.hint
    assert [row[0] for row in parse_parameter(f'x="{values}"')] == [values]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("frame=001..003", ["001", "002", "003"]),
        ("frame=08..11", ["08", "09", "10", "11"]),
        ("frame=1..003", ["001", "002", "003"]),
        ("frame=001:007:3", ["001", "004", "007"]),
        ("frame=003:001:-1", ["003", "002", "001"]),
        ("frame=1..3", ["1", "2", "3"]),
        ("frame=0..2", ["0", "1", "2"]),
        ("frame=98..101", ["98", "99", "100", "101"]),
        ("frame=-01..01", ["-01", "000", "001"]),
        ("frame=0:1:0.5", ["0.0", "0.5", "1.0"]),
    ],
)
def test_leading_zeros_are_kept(values: str, expected: list[str]) -> None:
    assert [row[0] for row in make_sweep([values])] == expected


def test_lists_are_combined_or_linked() -> None:
    both = make_sweep(lists=[(":::", ("a", "b")), (":::", ("1", "2"))])
    assert both.names == ("1", "2")
    assert list(both) == [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]
    linked = make_sweep(lists=[(":::", ("x", "y")), (":::", ("a", "b")), (":::+", ("1", "2"))])
    assert linked.names == ("1", "2", "3")
    assert list(linked) == [("x", "a", "1"), ("x", "b", "2"), ("y", "a", "1"), ("y", "b", "2")]


def test_the_values_of_a_list_are_not_interpreted() -> None:
    assert list(make_sweep(lists=[(":::", ("1..3", "a,b", "@x"))])) == [("1..3",), ("a,b",), ("@x",)]


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ([(":::", ())], "::: has no values"),
        ([(":::+", ("a",))], ":::+ comes first"),
        ([(":::", ("a", "b")), (":::+", ("1",))], ":::+ has 1 value, and the list before it has 2"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(lists: list[tuple[str, tuple[str, ...]]], said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        make_sweep(lists=lists)


def test_each_task_is_repeated() -> None:
    assert list(make_sweep(times=3)) == [(), (), ()]
    assert len(make_sweep(["x=1,2"], times=2)) == 4
    assert list(make_sweep(["x=1,2"], times=2)) == [("1",), ("1",), ("2",), ("2",)]
    assert list(make_sweep(["x=1,2", "y=a,b"], zipped=True, times=2))[1:3] == [("1", "a"), ("2", "b")]
    with pytest.raises(BadInput, match="would make 100,000,000,000 tasks"):
        make_sweep(["x=1..1000"], times=100_000_000)


def test_a_command_is_split_at_its_lists() -> None:
    assert split_lists(("prog", "{}", ":::", "a", "b", ":::+", "1", "2")) == (("prog", "{}"), ((":::", ("a", "b")), (":::+", ("1", "2"))))
    assert split_lists(("prog", "a:::b")) == (("prog", "a:::b"), ())


@pytest.mark.parametrize("suffix", ["", ".csv"])
def test_a_pipe_is_read_once_and_used_many_times(tmp_path: Path, suffix: str) -> None:
    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("x\n1\n2\n",))
    writer.start()
    sweep = make_sweep(tables=[str(pipe)]) if suffix else make_sweep(each_line=str(pipe))
    writer.join()
    expected = [("1",), ("2",)] if suffix else [("x",), ("1",), ("2",)]
    assert list(sweep) == list(sweep) == expected


def test_a_large_pipe_is_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SMALL_FILE_BYTES", 10)
    monkeypatch.setattr(tables, "MAX_PIPE_BYTES", 100)
    read, write = os.pipe()
    os.write(write, b"value\n" * 10)
    os.close(write)
    sweep = make_sweep(each_line=f"/dev/fd/{read}")
    assert list(sweep) == list(sweep) == [("value",)] * 10
    with pytest.raises(BadInput, match="--each-line: more than 0 MiB from /dev/zero"):
        make_sweep(each_line="/dev/zero")
    os.close(read)


def test_a_long_list_that_is_no_list_of_numbers_is_recognised_at_once() -> None:
    numbers = ",".join(str(number) for number in range(1000, 5000))
    assert likely_parameter(f"case={numbers}, base") == ""
    assert likely_parameter("case=1000 1100 .5 2e3") == "case=1000,1100,.5,2e3"
