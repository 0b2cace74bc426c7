"""results for programs: CSV and JSON with the parameters of a sweep."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from pilotfish.model.task import Failure
from tests.support.fake_session import FakeMaster
from tests.unit.cli.conftest import CommandLine


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


FROM_FILES = {
    ("--params-from", "cases.csv", "--", "echo", "{mesh}", "{n}"): "mesh,n\ncoarse,1\nfine,2\n",
    ("--param", "mesh=@cases.csv", "--param", "x=1..2", "--", "echo", "{mesh}", "{x}"): "mesh\ncoarse\nfine\n",
    ("--each-line", "cases.csv", "--", "echo", "{}"): "coarse\nfine \u00e9\n",
    ("--tasks", "cases.csv"): "id=first echo coarse\n# no task\nafter=first echo 'very fine'\n",
}


@pytest.mark.parametrize("edited", ["mesh,n\nother,7\nthan,8\n", None])
@pytest.mark.parametrize(("words", "content"), FROM_FILES.items(), ids=lambda value: value[0] if isinstance(value, tuple) else "")
def test_what_was_run_is_known_whatever_becomes_of_the_file(
    pilotfish: CommandLine, words: tuple[str, ...], content: str, edited: str | None
) -> None:
    file = Path("cases.csv")
    file.write_text(content)
    pilotfish("run", *words)
    before = pilotfish("results", "--csv")
    assert "echo coarse" in before.out and before.err == ""
    file.unlink()
    if edited is not None:
        file.write_text(edited)
    assert pilotfish("results", "--csv") == before


def test_what_was_written_down_of_a_run_is_private_and_forgotten_with_it(
    pilotfish: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = tmp_path / ".pilotfish" / "pools" / "default"
    pilotfish("run", "--param", "x=1..2", "--", "echo", "{x}")
    assert not list(pool.iterdir()), "what was typed says it all"
    monkeypatch.setattr("sys.stdin", io.StringIO("ada\nemmy\n"))
    pilotfish("run", "--each-line", "-", "--", "echo", "{}")
    (kept,) = pool.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    (pool / "application-2.log").touch()
    pilotfish("forget", "2")
    assert not list(pool.iterdir())


def test_values_that_are_not_known_any_more_are_told_to_be_missing(
    pilotfish: CommandLine, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotfish.client.task_descriptions.MAX_REGISTER_BYTES", 0)
    Path("cases.csv").write_text("mesh\ncoarse\n")
    pilotfish("run", "--params-from", "cases.csv", "--", "echo", "{mesh}")
    assert table(pilotfish("results", "--csv").out)[0]["mesh"] == "coarse"
    master.runs[1].opened_at -= 3600
    said = pilotfish("results", "--csv")
    assert said.status == 0
    assert said.err.startswith("warning: the parameters of run 1 are unknown")
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
        "error: the files of run 1 cannot be written: full/inner: not a directory\n  fix: Elsewhere: pilotfish results 1 --save DIR\n"
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


def test_a_rerun_knows_its_tasks_when_more_failed_since_and_the_first_run_is_forgotten(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.outcome = lambda argv: (1 if argv[1] == "2" else 0, b"", {})
    pilotfish("run", "--param", "x=1..3", "--", "echo", "{x}")
    pilotfish("rerun")
    master.runs[1].tasks[0].state = "failed"
    assert table(pilotfish("results", "2", "--csv").out)[0]["x"] == "2"
    pilotfish("forget", "1")
    assert table(pilotfish("results", "2", "--csv").out)[0]["x"] == "2"


def test_which_tasks_a_rerun_has_is_not_guessed(pilotfish: CommandLine, master: FakeMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    def rerun_and_one_more_fails(run: int, uid: str) -> dict[str, int]:
        answer = FakeMaster._ask_rerun(master, run, uid)
        master.runs[1].tasks[0].state = "failed"
        return answer

    master.outcome = lambda argv: (1 if argv[1] == "2" else 0, b"", {})
    pilotfish("run", "--param", "x=1..3", "--", "echo", "{x}")
    monkeypatch.setattr(master, "_ask_rerun", rerun_and_one_more_fails)
    pilotfish("rerun")
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
    assert "Last output of its application manager: RuntimeError: boom\n" in said.out
    assert pilotfish("why", "1").out.startswith("run 1 is cancelled: ")
    assert pilotfish("logs", "1").out.endswith("RuntimeError: boom\n")
    pilotfish("run", "--", "echo")
    (tmp_path / ".pilotfish" / "pools" / "default" / "application-2.log").write_text("RuntimeError: boom\n")
    (task,) = master.runs[2].tasks
    task.state = "cancelled"
    for reason, told in (("its application manager failed", True), ("asked for", False)):
        task.failure = Failure("cancelled", "user", reason)
        assert ("boom" in pilotfish("attach", "2").out, "boom" in pilotfish("why", "2").out) == (told, told)
