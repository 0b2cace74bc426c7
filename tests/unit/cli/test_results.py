"""results for programs: CSV and JSON with the parameters of a sweep."""

from __future__ import annotations

import csv
import io
import json
import time
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
        "run,index,x,kind,state,exit,wall_s,cpu_s,rss_bytes,result,failure,command,worker,node,site,started_at,ended_at,attempt",
        '1,0,1,"a,b",done,0,0.02,0.01,1048576,1,,"echo 1 a,b",local-0,here,local,100.0,100.02,1',
        "1,1,1,c,done,0,0.02,0.01,1048576,1,,echo 1 c,local-0,here,local,100.0,100.02,1",
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
    assert [file.name for file in pool.iterdir()] == ["programs-1.jsonl"], "what was typed says everything else"
    monkeypatch.setattr("sys.stdin", io.StringIO("ada\nemmy\n"))
    pilotfish("run", "--each-line", "-", "--", "echo", "{}")
    assert {file.name for file in pool.iterdir()} == {"programs-1.jsonl", "programs-2.jsonl", "register-2.gz"}
    assert {file.stat().st_mode & 0o777 for file in pool.iterdir()} == {0o600}
    (pool / "application-2.log").touch()
    pilotfish("forget", "2")
    assert [file.name for file in pool.iterdir()] == ["programs-1.jsonl"]


def test_values_that_are_not_known_any_more_are_told_to_be_missing(
    pilotfish: CommandLine, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotfish.client.descriptions.task_descriptions.MAX_REGISTER_BYTES", 0)
    Path("cases.csv").write_text("mesh\ncoarse\n")
    pilotfish("run", "--params-from", "cases.csv", "--", "echo", "{mesh}")
    assert table(pilotfish("results", "--csv").out)[0]["mesh"] == "coarse"
    master.runs[1].opened_at -= 3600
    said = pilotfish("results", "--csv")
    assert said.status == 0
    assert said.err.startswith("warning: the parameters of run 1 are unknown")
    assert said.out.startswith("run,index,state,")
    master.runs[1].incomplete = True
    assert "unknown: its program ended before it had stored them" in pilotfish("results", "--csv").err


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


def test_saved_files_that_the_user_edited_are_kept(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.outcome = lambda argv: (0, b"said\n", {"out.dat": b"made\n"})
    pilotfish("run", "--output", "out.dat", "--param", "x=1..2", "--", "echo", "{x}")
    assert pilotfish("results", "1", "--save", "kept").out == "6 files in kept/\n"
    edited, removed = Path("kept/0/out.dat"), Path("kept/1/stdout")
    edited.write_text("edited\n")
    removed.unlink()
    said = pilotfish("results", "1", "--save", "kept")
    assert (said.status, edited.read_text(), removed.read_text()) == (2, "edited\n", "said\n")
    assert "kept/0/out.dat exists and was not made by run 1, or was changed since, so it was not overwritten" in said.err
    assert "pilotfish results 1 --save kept --overwrite" in said.err
    edited.write_text("made\n")
    assert pilotfish("results", "1", "--save", "kept").status == 0, "the user wrote the same bytes"
    edited.write_text("edited\n")
    said = pilotfish("results", "1", "--save", "kept", "--overwrite")
    assert (said.status, said.out, edited.read_text()) == (0, "6 files in kept/\n", "made\n")
    assert pilotfish("results", "1", "--overwrite").status == 2


def test_saved_files_of_an_earlier_attempt_are_replaced(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.outcome = lambda argv: (1, b"bad\n", {})
    pilotfish("run", "--", "echo", "1")
    assert pilotfish("results", "1", "--save", "kept").status == 0
    master.outcome = lambda argv: (0, b"good\n", {})
    pilotfish("rerun")
    assert pilotfish("results", "1", "--save", "kept").status == 0
    assert Path("kept/0/stdout").read_text() == "good\n"


def test_after_a_rerun_the_results_are_one_set(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.outcome = lambda argv: (int(argv[1]) % 2, b"", {})
    pilotfish("run", "--param", "x=1..4", "--", "echo", "{x}")
    master.outcome = lambda argv: (0, b"well\n", {})
    pilotfish("rerun")
    rows = table(pilotfish("results", "1", "--csv").out)
    assert [(row["x"], row["state"], row["result"]) for row in rows] == [
        ("1", "done", "well"),
        ("2", "done", ""),
        ("3", "done", "well"),
        ("4", "done", ""),
    ]


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


@pytest.mark.parametrize("words", [("logs", "1", "--plain"), ("logs", "1"), ("results", "1", "--save", "kept")])
def test_missing_outputs_of_a_run_are_told(pilotfish: CommandLine, master: FakeMaster, words: tuple[str, ...]) -> None:
    pilotfish("run", "--param", "x=1..4", "--", "echo", "{x}")
    assert pilotfish(*words).err == ""
    for index, state in ((1, "running"), (2, "cancelled"), (3, "ready")):
        master.runs[1].tasks[index].state = state
    said = pilotfish(*words)
    assert (said.status, said.err) == (0, "warning: the output of run 1 is not complete: 4 tasks, 2 not ended, 1 cancelled\n")
    master.runs[1].tasks[1].state = master.runs[1].tasks[3].state = "done"
    assert pilotfish(*words).err == "warning: the output of run 1 is not complete: 4 tasks, 1 cancelled\n"


def test_a_running_task_has_the_time_and_memory_that_it_has_used_so_far(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--", "echo", "1")
    master.runs[1].tasks[0].state, master.runs[1].tasks[0].result = "running", b""
    (row,) = table(pilotfish("results", "--csv").out)
    assert (row["cpu_s"], row["rss_bytes"]) == ("1.5", str(3 << 20))
    (data,) = json.loads(pilotfish("results", "--json").out)
    assert (data["cpu_s"], data["rss_bytes"]) == (1.5, 3 << 20)


MANY = 20_000


@pytest.mark.parametrize(("command", "ratio"), [("results --csv", 50.0), ("results --json", 8.0), (f"tasks --json --limit {MANY}", 8.0)])
def test_a_listing_of_many_tasks_asks_few_questions_and_is_not_much_slower_than_writing_it(
    pilotfish: CommandLine, master: FakeMaster, command: str, ratio: float
) -> None:
    """``ratio``: maximum CPU time relative to reading and writing the same rows with the csv or json module; about four times what is
    measured with the work of the fake master."""
    pilotfish("run", "--quiet", "--param", f"x=1..{MANY}", "--", "echo", "{x}")
    before, began = len(master.asked), time.process_time()
    said = pilotfish(*command.split())
    took = time.process_time() - began
    assert said.status == 0
    assert len(master.asked) - before <= MANY / 500
    began = time.process_time()
    if "--csv" in command:
        rows = list(csv.reader(io.StringIO(said.out)))
        csv.writer(io.StringIO()).writerows(rows)
        assert len(rows) == MANY + 1
    else:
        listed = json.loads(said.out)
        json.dump(listed, io.StringIO())
        assert len(listed) == MANY
    assert took <= ratio * (time.process_time() - began)
