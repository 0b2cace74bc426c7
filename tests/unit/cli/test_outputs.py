"""Output files on the command line, against a fake master."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fake_session import FakeMaster, Outcome
from tests.unit.cli.conftest import CommandLine


def draw(argv: list[str]) -> Outcome:
    return 0, b"", {"frame.png": argv[-1].encode(), "log": b"log"}


@pytest.fixture(autouse=True)
def files(master: FakeMaster) -> None:
    master.outcome = draw


SWEEP = ("--param", "i=1..2", "--", "echo", "{i}")


def test_output_files_go_to_the_destinations_of_the_user(pilotfish: CommandLine, master: FakeMaster) -> None:
    said = pilotfish("run", "--output", "frame.png=frames/{i:03d}.png", *SWEEP)
    assert said.status == 0, said
    assert Path("frames/001.png").read_text() == "1" and Path("frames/002.png").read_text() == "2"
    assert said.out.splitlines()[-1] == "2 files in frames/"
    assert not Path("run-1").exists()
    assert [task.told["outputs"] for task in master.runs[1].tasks] == [["frame.png"], ["frame.png"]]


def test_into_names_the_directory_of_all_output_files(pilotfish: CommandLine) -> None:
    said = pilotfish("run", "--into", "all", "--output", "frame.png=pictures/", "--output", "log", "--times", "1", "--", "echo", "x")
    assert said.status == 0, said
    assert sorted(str(path.relative_to("all")) for path in Path("all").rglob("*") if path.is_file()) == ["0/log", "pictures/frame.png"]


def test_a_tilde_is_the_home_directory_in_into_and_save(pilotfish: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    said = pilotfish("run", "--into=~/all", "--output", "frame.png", "--times", "1", "--", "echo", "x")
    saved = pilotfish("results", "1", "--save", "~/saved")
    assert (said.status, saved.status) == (0, 0), (said, saved)
    assert (tmp_path / "home/all/0/frame.png").exists() and (tmp_path / "home/saved/0/frame.png").exists()
    assert not Path("~").exists()


def test_attach_brings_the_files_of_a_detached_run_once_and_from_anywhere(
    pilotfish: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pilotfish("run", "--detach", "--output", "frame.png", *SWEEP)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    said = pilotfish("attach", "1")
    assert said.status == 0 and f"4 files in {tmp_path}/run-1/\n" in said.out
    assert (tmp_path / "run-1/1/frame.png").read_text() == "2"
    assert json.loads(pilotfish("attach", "1", "--json").out)["files"] == 4
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_second_run_does_not_overwrite_the_files_of_the_first(pilotfish: CommandLine, master: FakeMaster) -> None:
    words = ("run", "--output", "frame.png=frames/{i}.png", *SWEEP)
    assert pilotfish(*words).status == 0
    said = pilotfish(*words)
    assert said.status == 2
    assert "frames/1.png exists and would be overwritten" in said.err and "--overwrite" in said.err
    assert len(master.runs) == 1, "nothing was started"
    assert pilotfish("run", "--overwrite", *words[1:]).status == 0


def test_an_edited_output_is_named_when_a_run_is_resumed(pilotfish: CommandLine) -> None:
    words = ("--into", "all", "--output", "frame.png", *SWEEP)
    assert pilotfish("run", *words).status == 0
    (edited,) = Path("all").glob("1/frame.png")
    edited.write_text("mine")
    said = pilotfish("run", "--resume", *words)
    assert said.status == 2 and "all/1/frame.png exists and would be overwritten" in said.err


def test_a_file_that_appears_meanwhile_is_kept_and_told(pilotfish: CommandLine) -> None:
    pilotfish("run", "--detach", "--output", "frame.png=frames/{i}.png", *SWEEP)
    Path("frames").mkdir()
    Path("frames/2.png").write_text("mine")
    said = pilotfish("attach", "1")
    assert (said.status, Path("frames/2.png").read_text()) == (4, "mine")
    assert "frames/2.png exists and was not made by run 1" in said.err
    assert pilotfish("attach", "1", "--overwrite").status == 0
    assert Path("frames/2.png").read_text() == "2"


def test_a_directory_of_another_pool_is_left_alone(pilotfish: CommandLine) -> None:
    Path("run-1/0").mkdir(parents=True)
    Path("run-1/0/frame.png").write_text("of another pool")
    said = pilotfish("run", "--output", "frame.png", *SWEEP)
    assert "4 files in run-1-2/" in said.out
    assert Path("run-1/0/frame.png").read_text() == "of another pool"


@pytest.mark.parametrize(
    ("words", "said", "fix"),
    [
        (["--output", "*.png=frames/{i}"], "--output: *.png=frames/{i}: the pattern may match several files", "*.png=frames/{i}/"),
        (["--output", "a=/etc/{i}"], "leads out of the directory of the run", "--into DIR"),
        (["--output", "a=~/{i}"], "leads out of the directory of the run", "--into DIR"),
        (["--output", "a={i}/../../x"], "leads out of the directory of the run", "--into DIR"),
        (["--output", "a=frames/x.png"], "task 0 and task 1 would both write frames/x.png", "{#}"),
        (["--output", "a=x{i}", "--output", "b=x{i}"], "a and b would both become x1", "give each file another destination"),
        (["--output", "a=frames/{j}.png"], "there is no parameter 'j'", "--param j=values"),
        (["--output", "a="], "the destination is empty", "NAME=DESTINATION"),
        (["--output", "a", "--into", "res/{i}"], "placeholders are not replaced", "--output 'FILE=res/{i}/FILE'"),
        (["--into", "dir"], "--into dir: the tasks have no output files", "--output FILE"),
    ],
)
def test_mistakes_are_told_before_the_start(pilotfish: CommandLine, master: FakeMaster, words: list[str], said: str, fix: str) -> None:
    answer = pilotfish("run", *words, *SWEEP)
    assert answer.status == 2
    assert said in answer.err, answer.err
    assert fix in answer.err, answer.err
    assert not master.runs


def test_a_value_from_a_table_cannot_lead_out(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("names.csv").write_text("name\nfine\n../evil\n")
    answer = pilotfish("run", "--output", "a={name}", "--params-from", "names.csv", "--", "echo", "{name}")
    assert answer.status == 2 and "leads out of the directory of the run" in answer.err
    assert not master.runs


def test_the_tasks_of_a_list_have_their_number_in_destinations(pilotfish: CommandLine) -> None:
    Path("tasks.txt").write_text("echo a\necho b\n")
    assert pilotfish("run", "--tasks", "tasks.txt", "--output", "frame.png=frames/{#}.png").status == 0
    assert [Path(f"frames/{number}.png").read_text() for number in range(2)] == ["a", "b"]


def test_a_run_file_names_destinations(pilotfish: CommandLine) -> None:
    Path("flow.py").write_text("def run(tasks):\n    tasks.add(['echo', 'x'], outputs={'frame.png': 'frames/x.png', 'log': 'logs/'})\n")
    said = pilotfish("run", "--into", "all", "flow.py")
    assert said.status == 0, said
    assert (Path("all/frames/x.png").read_text(), Path("all/logs/log").read_text()) == ("x", "log")


def test_forget_removes_the_record_of_the_destinations(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--output", "frame.png", *SWEEP)
    assert len(list(master.directory.glob("*-1.jsonl"))) == 3
    pilotfish("forget", "1")
    assert not list(master.directory.glob("*-1.jsonl"))
    assert Path("run-1/0/frame.png").exists()
