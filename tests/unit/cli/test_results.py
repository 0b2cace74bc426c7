"""results for programs: CSV and JSON with the parameters of a sweep."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from pilotfish.model.task import Failure
from tests.unit.cli.conftest import CommandLine
from tests.unit.cli.fake_master import FakeMaster


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def fail_at_two(argv: list[str]) -> tuple[int, bytes, dict[str, bytes]]:
    return (1, b"half\n", {}) if argv[1] == "2" else (0, b"noise\n" + argv[1].encode() + b"\n", {})


def test_csv_has_a_column_for_each_parameter(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.outcome = fail_at_two
    pilotfish("run", "--param", "x=1..2", "--param", 'kind="a,b",c', "--", "echo", "{x}", "{kind}")
    said = pilotfish("results", "--csv")
    assert said.err == ""
    assert said.out.splitlines()[:3] == [
        "run,index,x,kind,state,exit,wall_s,cpu_s,rss_bytes,result,failure,command",
        '1,0,1,"a,b",done,0,0.02,0.01,1048576,1,,"echo 1 a,b"',
        "1,1,1,c,done,0,0.02,0.01,1048576,1,,echo 1 c",
    ]
    failed = table(said.out)[2]
    assert (failed["x"], failed["kind"], failed["state"], failed["exit"], failed["result"]) == ("2", "a,b", "failed", "1", "")
    assert failed["failure"] == "echo ended with exit status 1: it went wrong"


def test_json_has_the_parameters_as_they_stood_in_the_command(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.outcome = fail_at_two
    pilotfish("run", "--param", "x=0:2:0.50", "--", "echo", "{x}")
    first, *_ = json.loads(pilotfish("results", "--json").out)
    assert (first["parameters"], first["result"], first["note"]) == ({"x": "0.00"}, "0.00", None)


def test_a_parameter_with_the_name_of_a_column_keeps_its_own(pilotfish: CommandLine) -> None:
    pilotfish("run", "--param", "state=solid", "--", "echo", "{state}")
    (row,) = table(pilotfish("results", "--csv").out)
    assert (row["param.state"], row["state"]) == ("solid", "done")


def test_all_columns_of_a_table_are_told_even_those_that_the_command_does_not_use(pilotfish: CommandLine) -> None:
    Path("cases.csv").write_text("mesh,remark\ncoarse,quick\nfine,slow\n")
    pilotfish("run", "--params-from", "cases.csv", "--", "echo", "{mesh}")
    assert [(row["mesh"], row["remark"]) for row in table(pilotfish("results", "--csv").out)] == [("coarse", "quick"), ("fine", "slow")]


def test_values_that_are_not_known_any_more_are_told_to_be_missing(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("cases.csv").write_text("mesh\ncoarse\n")
    pilotfish("run", "--params-from", "cases.csv", "--", "echo", "{mesh}")
    master.runs[1].opened_at -= 3600
    said = pilotfish("results", "--csv")
    assert said.status == 0
    assert said.err.startswith("warning: the parameters of run 1 are not known any more")
    assert said.out.startswith("run,index,state,")


def test_lines_have_a_column_too_and_plain_commands_have_none(pilotfish: CommandLine) -> None:
    Path("names.txt").write_text("ada\nemmy\n")
    pilotfish("run", "--each-line", "names.txt", "--", "echo", "{}")
    assert [row["line"] for row in table(pilotfish("results", "--csv").out)] == ["ada", "emmy"]
    pilotfish("run", "--", "echo", "alone")
    said = pilotfish("results", "--csv")
    assert said.err == ""
    assert said.out.startswith("run,index,state,")


def test_lines_of_the_standard_input_are_kept(pilotfish: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("ada\n\nemmy\nada\n"))
    pilotfish("run", "--each-line", "-", "--param", "x=1,2", "--", "echo", "{}", "{x}")
    rows = table(pilotfish("results", "--csv").out)
    assert [(row["line"], row["x"]) for row in rows] == [(name, x) for name in ("ada", "emmy", "ada") for x in ("1", "2")]
    assert rows[3]["command"] == "echo emmy 2"


def test_files_that_cannot_be_written_can_be_had_elsewhere(pilotfish: CommandLine) -> None:
    Path("full").write_text("no directory")
    pilotfish("run", "--output", "x", "--", "echo")
    said = pilotfish("results", "1", "--save", "full/inner")
    assert said.err == (
        "error: the files of run 1 cannot be written: full/inner: not a directory\n  do: Elsewhere: pilotfish results 1 --save DIR\n"
    )


def test_a_rerun_knows_the_parameters_of_what_failed(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.outcome = lambda argv: (int(argv[1]) % 2, b"", {})
    pilotfish("run", "--param", "x=1..6", "--", "echo", "{x}")
    pilotfish("rerun")
    master.outcome = lambda argv: (1 if argv[1] == "3" else 0, b"", {})
    pilotfish("rerun", "1")
    master.outcome = lambda argv: (0, b"well\n", {})
    pilotfish("rerun", "3")
    for run, values in (("2", ["1", "3", "5"]), ("3", ["1", "3", "5"]), ("4", ["3"])):
        rows = table(pilotfish("results", run, "--csv").out)
        assert [row["x"] for row in rows] == values
        assert [row["command"] for row in rows] == [f"echo {value}" for value in values]


def test_a_rerun_of_a_run_in_which_more_failed_since_is_not_guessed(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.outcome = lambda argv: (1 if argv[1] == "1" else 0, b"", {})
    pilotfish("run", "--param", "x=1..3", "--", "echo", "{x}")
    pilotfish("rerun")
    master.runs[1].tasks[1].state = "failed"
    assert "x" not in table(pilotfish("results", "2", "--csv").out)[0]


def test_an_application_whose_manager_failed_is_not_taken_for_done(pilotfish: CommandLine, master: FakeMaster, tmp_path: Path) -> None:
    (tmp_path / ".pilotfish" / "pools" / "default" / "application-1.log").write_text(
        "Traceback (most recent call last):\nRuntimeError: boom\n"
    )
    pilotfish("run", "--", "echo")
    master.runs[1].tasks.clear()
    master.runs[1].order.clear()
    master.runs[1].closed_by = "cancelled"
    said = pilotfish("attach", "1")
    assert said.status == 1
    assert said.out.startswith("Run 1: 0 tasks, cancelled in ")
    assert "Its application manager wrote last: RuntimeError: boom\n" in said.out
    assert pilotfish("why", "1").out.startswith("run 1 is cancelled: ")
    assert pilotfish("logs", "1").out.endswith("RuntimeError: boom\n")
    pilotfish("run", "--", "echo")
    (tmp_path / ".pilotfish" / "pools" / "default" / "application-2.log").write_text("RuntimeError: boom\n")
    (task,) = master.runs[2].tasks
    task.state = "cancelled"
    for reason, told in (("its application manager failed", True), ("asked for", False)):
        task.failure = Failure("cancelled", "user", reason)
        assert ("boom" in pilotfish("attach", "2").out, "boom" in pilotfish("why", "2").out) == (told, told)
