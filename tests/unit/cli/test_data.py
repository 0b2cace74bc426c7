"""Files as the commands show them, against a fake master."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from pilotfish.cli.run_commands.attach_command import RunFollower
from pilotfish.cli.terminal.progress import READING_S, DelayedStatusLine, RunProgress, show_hashing
from pilotfish.cli.terminal.screen import Screen, describe_transfers
from pilotfish.model.task import RunOptions
from pilotfish.portable.payload_format import pack
from tests.support.fake_session import FakeMaster
from tests.unit.cli.conftest import CommandLine

GIB = 1 << 30
NOTHING_GOT = {source: {"contents": 0, "bytes": 0} for source in ("here", "peers", "storage", "master")}
MOVING = {"contents": 3, "done_bytes": 2 * GIB, "bytes": 5 * GIB, "rate_bytes_per_s": 100 << 20, "eta_s": 30.72}


def content(letter: str, **more: Any) -> dict[str, Any]:
    row = {"digest": letter * 64, "size": GIB, "name": f"{letter}.dat", "path": f"/home/{letter}.dat", "made_by": None, "needed_by": 0}
    return {**row, "home": True, "stored": True, "mtime_ns": 1, "nowhere": False, "workers": [], "sites": {}, "moving": [], **more}


def answer(*contents: dict[str, Any], **more: Any) -> dict[str, Any]:
    size = sum(row["size"] for row in contents)
    inputs = [row for row in contents if row["path"]]
    told = {"total": len(contents), "bytes": size, "nowhere": 0, "waiting_tasks": 0, "moving": None, "got": NOTHING_GOT, "sites": []}
    told["inputs"] = {"contents": len(inputs), "bytes": sum(row["size"] for row in inputs)}
    return {**told, "contents": list(contents), **more}


# --- data ---------------------------------------------------------------------------------------------------------------------------


def test_without_large_files_it_says_so(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.data = answer()
    said = pilotfish("data").out
    assert said == "No task has kept files, or inputs or outputs larger than 64 KiB; smaller ones are sent with their tasks.\n"
    pilotfish("run", "--name", "x", "--", "echo")
    assert pilotfish("data", "x").out.startswith("No task of run 1 has kept files")


def test_where_time_and_bytes_go_is_said_first_and_then_each_file(pilotfish: CommandLine, master: FakeMaster) -> None:
    got = {**NOTHING_GOT, "here": {"contents": 9, "bytes": 9 * GIB}, "peers": {"contents": 1, "bytes": GIB}}
    transfer = {
        "worker": "lyon-3",
        "site": "lyon",
        "to": "worker",
        "done_bytes": GIB // 4,
        "bytes": GIB,
        "rate_bytes_per_s": None,
        "eta_s": None,
    }
    coming = content("a", needed_by=120, workers=["lyon-1", "lyon-2"], sites={"lyon": 2}, moving=[transfer, {**transfer, "to": "master"}])
    lost = content("b", path="", name="", made_by=None, home=False, nowhere=True)
    site = {"site": "lyon", "workers": 3, "contents": 1, "bytes": GIB, "got": got}
    master.data = answer(coming, lost, moving=MOVING, waiting_tasks=12, nowhere=1, got=got, sites=[site])
    said = pilotfish("data")
    assert said.status == 0
    assert said.out.splitlines()[:5] == [
        "2 files, 2 GiB: 1 of yours (1 GiB), 1 made by tasks (1 GiB).",
        "3 files in transfer, 2 GiB of 5 GiB, 100 MiB/s, about 31 s.",
        "12 tasks wait at workers for their inputs.",
        "warning: 1 file stayed on workers that are not connected; the next worker on the same node has what its cache still holds",
        "Of 10 files that tasks needed, 90 % were cache hits; the others: 1 GiB from other workers.",
    ]
    table = [" ".join(line.split()) for line in said.out.splitlines()]
    assert "lyon 3 1 1 GiB 10 90 % 1 GiB - -" in table
    assert "aaaaaaaaaaaa 1 GiB a.dat 120 tasks yes lyon (2 workers) lyon-3 25 %, from lyon-3 25 %" in table
    assert "bbbbbbbbbbbb 1 GiB - - nowhere - -" in table
    master.begin(RunOptions(name="x"))
    of_run = pilotfish("data", "x").out
    assert "that tasks needed" not in of_run, "what workers got is not known by run"
    assert "lyon 3 1 1 GiB" in [" ".join(line.split()) for line in of_run.splitlines()]


def test_files_that_tasks_made_are_called_as_their_results_call_them(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--", "echo")
    said = {"exit": 0, "signal": None, "files": [["mesh.bin", 0o644, "c" * 64, GIB]]}
    master.runs[1].tasks[0].result = pack([json.dumps(said).encode(), b"", b""])
    made = content("c", path="", name="", made_by="1.0", home=False, workers=["n1"], sites={"": 1})
    gone = content("d", path="", name="", made_by="7.0")
    master.data = answer(made, gone)
    table = [" ".join(line.split()) for line in pilotfish("data", "1").out.splitlines()]
    assert "cccccccccccc 1 GiB 1.0:mesh.bin - no n1 -" in table
    assert "dddddddddddd 1 GiB made by 7.0 - yes - -" in table


def test_a_persons_file_that_is_not_what_it_was_is_told(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("d").mkdir()
    for letter in "abc":
        Path(f"d/{letter}.dat").write_text("12345")
    path = str(Path("d").absolute())
    told = {letter: {"path": f"{path}/{letter}.dat", "size": 5, "stored": False} for letter in "abc"}
    for letter in "abc":
        told[letter]["mtime_ns"] = Path(f"d/{letter}.dat").stat().st_mtime_ns
    Path("d/b.dat").write_text("longer than it was")
    Path("d/c.dat").unlink()
    master.data = answer(*(content(letter, **told[letter]) for letter in "abc"))
    table = [" ".join(line.split()) for line in pilotfish("data").out.splitlines()]
    assert table[-3:] == [
        "aaaaaaaaaaaa 5 B d/a.dat - yes - -",
        "bbbbbbbbbbbb 5 B d/b.dat - changed - -",
        "cccccccccccc 5 B d/c.dat - gone - -",
    ]
    rows = json.loads(pilotfish("data", "--json").out)["contents"]
    assert [(row["home"], row.get("file")) for row in rows] == [(True, None), (False, "changed"), (False, "gone")]


def test_more_than_a_screen_is_told_and_pages_follow(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--", "echo")
    master.data = answer(*(content(letter) for letter in "abcdef"))
    assert pilotfish("data", "--limit", "2").out.splitlines()[-1] == "... 4 more: pilotfish data --offset 2"
    assert pilotfish("data", "1", "--limit", "2").out.splitlines()[-1] == "... 4 more: pilotfish data 1 --offset 2"
    assert "more" not in pilotfish("data", "--offset", "3").out


def test_outputs_that_nobody_knows_yet_are_only_under_way(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.data = answer(moving=MOVING)
    assert pilotfish("data").out == "3 files in transfer, 2 GiB of 5 GiB, 100 MiB/s, about 31 s.\n"


def test_programs_get_all_of_it(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.data = answer(*(content(letter) for letter in "abc"), moving=MOVING)
    data = json.loads(pilotfish("data", "--json").out)
    assert [row["digest"][0] for row in data["contents"]] == ["a", "b", "c"]
    assert data["moving"] == MOVING
    assert len(json.loads(pilotfish("data", "--json", "--limit", "1").out)["contents"]) == 1


def test_a_file_name_cannot_drive_the_terminal(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.data = answer(content("a", name="x\x1b[2J"))
    assert "\x1b" not in pilotfish("data").out


# --- what is under way ----------------------------------------------------------------------------------------------------------------


def test_what_is_under_way_is_one_phrase() -> None:
    assert describe_transfers(None) == ""
    assert (
        describe_transfers({"contents": 1, "done_bytes": 0, "bytes": GIB, "rate_bytes_per_s": 0.0, "eta_s": None})
        == "1 file in transfer, 0 B of 1 GiB"
    )
    assert describe_transfers(MOVING) == "3 files in transfer, 2 GiB of 5 GiB, 100 MiB/s, about 31 s"


def test_the_status_tells_it_only_when_something_is(pilotfish: CommandLine, master: FakeMaster) -> None:
    assert "in transfer" not in pilotfish("status").out
    master.moving = MOVING
    assert "3 files in transfer, 2 GiB of 5 GiB, 100 MiB/s, about 31 s: pilotfish data\n" in pilotfish("status").out


def test_tail_says_that_a_task_waits_for_its_inputs(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.stuck = True
    master.reasons = [{"code": "staging", "text": "its input big.dat is on its way", "commands": []}]
    pilotfish("run", "--detach", "--", "echo")
    assert pilotfish("tail", "1.0").err == ""
    master.runs[1].tasks[0].state = "assigned"
    assert pilotfish("tail", "1.0") == (0, "", "task 1.0 has not begun: its input big.dat is on its way\n")
    master.reasons = [{"code": "placed", "text": "attempt 1 is at worker n1", "commands": []}]
    assert pilotfish("tail", "1.0").err == ""


def test_reading_a_large_input_is_shown_when_it_takes_long_and_only_to_a_terminal() -> None:
    now = 100.0
    stream = io.StringIO()
    line = DelayedStatusLine(Screen(stream, True, False, 60), lambda: now, READING_S)
    show_hashing(line, "/home/ann/big.dat", GIB, 4 * GIB)
    assert stream.getvalue() == ""
    now += 1
    show_hashing(line, "/home/ann/big.dat", 2 * GIB, 4 * GIB)
    assert stream.getvalue() == "\r\x1b[Kreading big.dat: 50 %, 2 GiB of 4 GiB"
    show_hashing(line, "/home/ann/big.dat", 3 * GIB, 4 * GIB)
    assert "75 %" not in stream.getvalue(), "not too often"
    show_hashing(line, "/home/ann/big.dat", 4 * GIB, 4 * GIB)
    assert stream.getvalue().endswith("\r\x1b[K")
    plain = io.StringIO()
    line = DelayedStatusLine(Screen(plain, False, False, 0), lambda: now, READING_S)
    show_hashing(line, "/home/ann/big.dat", 2 * GIB, 4 * GIB)
    line.clear()
    assert plain.getvalue() == ""


# --- run ------------------------------------------------------------------------------------------------------------------------------


def test_outputs_to_keep_are_told_to_the_worker_and_need_a_directory_of_their_own(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--keep", "mesh-{n}.bin", "--param", "n=1..2", "--", "echo", "{n}")
    assert [task.told["keep"] for task in master.runs[1].tasks] == [["mesh-1.bin"], ["mesh-2.bin"]]
    assert master.runs[1].specs[0].launch["sandbox"] is True
    Path("tasks.txt").write_text("echo 1\n")
    pilotfish("run", "--tasks", "tasks.txt", "--keep", "mesh.bin")
    assert master.runs[2].specs[0].launch["keep"] == ["mesh.bin"]
    assert "--here does not go with" in pilotfish("run", "--here", "--keep", "x", "--", "echo").err
    assert "--keep: '/x' " in pilotfish("run", "--keep", "/x", "--", "echo").err


def leave(master: FakeMaster, run: int, *files: list[Any], contents: tuple[bytes, ...] = ()) -> None:
    """The first task of a run left these."""
    said = {"exit": 0, "signal": None, "files": list(files)}
    master.runs[run].tasks[0].result = pack([json.dumps(said).encode(), b"", b"", *contents])


def test_what_a_task_left_can_be_the_input_of_another(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--", "echo")
    kept = ["mesh/kept.bin", 0o644, "c" * 64, GIB]
    leave(master, 1, ["mesh/small", 0o755], kept, ["other", 0o644, "d" * 64, GIB], contents=(b"content",))
    for given in ("1.0:mesh/kept.bin", "1.{n}:mesh/k*", "01.0:mesh/kept.bin"):
        said = pilotfish("run", "--input", given, "--param", "n=0", "--", "echo", "{n}")
        assert said.status == 0, said
        (task,) = master.runs[max(master.runs)].tasks
        assert task.told["inputs"] == [kept]
    pilotfish("run", "--input", "1.0:mesh/", "--", "echo")
    assert master.runs[max(master.runs)].tasks[0].told["inputs"] == [["mesh/small", 0o755], kept]
    Path("tasks.txt").write_text("in=1.0:other echo 1\n")
    pilotfish("run", "--tasks", "tasks.txt", "--input", "1.0:mesh")
    run = master.runs[max(master.runs)]
    assert [entry[0] for entry in run.tasks[0].told["inputs"]] == ["mesh/small", "mesh/kept.bin", "other"]
    assert run.specs[0].launch["inputs"] == []


def test_what_no_task_left_is_told_before_anything_starts(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--", "echo")
    leave(master, 1, ["mesh.bin", 0o644, "c" * 64, GIB])
    said = pilotfish("run", "--input", "1.0:mehs.bin", "--", "echo")
    assert said.err.splitlines() == [
        "error: --input 1.0:mehs.bin: task 1.0 left no file 'mehs.bin'",
        "  fix: Did you mean 'mesh.bin'?",
        "  fix: pilotfish run --input 1.0:mesh.bin -- echo",
    ]
    master.stuck = True
    pilotfish("run", "--detach", "--", "echo")
    assert "is ready, and not done" in pilotfish("run", "--input", "2.0:mesh.bin", "--", "echo").err
    assert len(master.runs) == 2
    Path("1.0:mesh.bin").write_text("a file of this name")
    assert pilotfish("run", "--detach", "--input", "1.0:mesh.bin", "--", "echo").status == 0
    assert master.runs[3].specs[0].launch["inputs"] == [["1.0:mesh.bin", 0o644]]


def test_a_directory_is_brought_with_all_that_is_in_it(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("mesh-1/deep").mkdir(parents=True)
    Path("mesh-1/deep/a").write_text("x")
    Path("mesh-1/large").write_bytes(bytes(100_000))
    pilotfish("run", "--input", "mesh-1", "--", "echo")
    (deep, large) = master.runs[1].specs[0].launch["inputs"]
    assert (deep[0], large[0], large[3]) == ("mesh-1/deep/a", "mesh-1/large", 100_000)
    assert [one.path for one in master.runs[1].specs[0].contents] == [str(Path("mesh-1/large").absolute())]
    pilotfish("run", "--param", "n=1", "--input", "mesh-{n}", "--", "echo", "{n}")
    assert [entry[0] for entry in master.runs[2].tasks[0].told["inputs"]] == ["mesh-1/deep/a", "mesh-1/large"]
    assert pilotfish("run", "--input", "mesh-*", "--", "echo").status == 0


def test_requirements_and_ranks_reach_the_spec_well_spaced(pilotfish: CommandLine, master: FakeMaster) -> None:
    said = pilotfish("run", "--require", 'memory>=8G and scratch=="ssd"', "--rank", "cores+held/wanted", "--", "echo")
    assert (said.status, said.err) == (0, "")
    spec = master.runs[1].specs[0]
    assert (spec.requirement, spec.rank) == ('memory >= 8G and scratch == "ssd"', "cores + held / wanted")
    plan = pilotfish("run", "--dry-run", "--require", "memory >= 8G", "--", "echo").out
    assert "each needs 1 core, a worker with memory >= 8G:" in plan


def test_a_dry_run_names_the_files(pilotfish: CommandLine) -> None:
    Path("a.dat").touch()
    plan = pilotfish("run", "--dry-run", "--input", "a.dat", "--output", "x*", "--output", "y", "--", "echo").out
    assert plan.splitlines()[1:] == ["  echo", "inputs: a.dat", "outputs: x* y"]
    assert json.loads(pilotfish("run", "--dry-run", "--json", "--keep", "k", "--", "echo").out)["keep"] == ["k"]


@pytest.mark.parametrize("option", ["--require", "--rank"])
def test_what_is_no_expression_is_told_before_anything_starts(pilotfish: CommandLine, master: FakeMaster, option: str) -> None:
    said = pilotfish("run", option, "memory = 8G", "--", "echo")
    assert said.status == 2
    assert f'{option}: = has no meaning here: write "==" to compare' in said.err
    assert f"Write {option} '" in said.err
    assert not master.runs


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (("--require", "memroy >= 8G"), "--require: no connected worker has a property 'memroy'. Did you mean 'memory'?"),
        (("--rank", "scrtch"), "--rank: no connected worker has a property 'scrtch'. Did you mean 'scratch'?"),
        (("--require", "scratch == ssd"), "--require: no connected worker has a property 'ssd'. Write a text in quotes: \"ssd\""),
        (("--require", "infiniband == 1"), "--require: no connected worker has a property 'infiniband'."),
        (("--require", "held > 1"), "--require: only --rank may ask for held, which is about a task and a worker; here it is not known"),
    ],
)
def test_a_property_that_nobody_has_is_a_warning(pilotfish: CommandLine, words: tuple[str, ...], warning: str) -> None:
    said = pilotfish("run", *words, "--", "echo", "x")
    assert said == (0, "x\n", f"warning: {warning}\n")


def test_as_long_as_nobody_is_here_any_tag_may_come(pilotfish: CommandLine, master: FakeMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master, "_ask_workers", lambda all: [])
    assert pilotfish("run", "--require", "infiniband == 1", "--", "echo").err == ""
    assert "Did you mean 'cores'?" in pilotfish("run", "--require", "coers == 1", "--", "echo").err


def test_files_that_stayed_with_workers_are_no_error_when_results_are_saved(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--", "echo")
    files = [["small.txt", 0o644], ["mesh.bin", 0o644, "c" * 64, GIB]]
    said = {"exit": 0, "signal": None, "files": files}
    master.runs[1].tasks[0].result = pack([json.dumps(said).encode(), b"", b"", b"content"])
    saved = pilotfish("results", "1", "--save", "all")
    assert (saved.status, saved.out) == (0, "3 files in all/; 1 file stayed on the workers: pilotfish data 1\n")
    assert Path("all/0/small.txt").read_text() == "content"


# --- while a run is watched -----------------------------------------------------------------------------------------------------------


def test_the_moving_line_of_a_run_with_large_files_tells_what_is_under_way(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("large").write_bytes(bytes(100_000))
    master.stuck = True
    pilotfish("run", "--detach", "--input", "large", "--", "echo")
    master.moving = MOVING
    progress = RunProgress(Screen(io.StringIO(), True, False, 100), lambda: 1.0)
    follower = RunFollower(master, master.ask("run", run=1), progress, None)
    follower.recount()
    assert progress.text() == "0/1  0 %  waiting for the first result  3 files in transfer, 2 GiB of 5 GiB, 100 MiB/s, about 31 s"
    master.asked.clear()
    follower.recount()
    assert master.asked == [], "not at every turn"


def test_a_run_without_large_files_is_not_asked_about_them(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.stuck = True
    pilotfish("run", "--detach", "--", "echo")
    follower = RunFollower(master, master.ask("run", run=1), RunProgress(Screen(io.StringIO(), True, False, 100), lambda: 1.0), None)
    master.asked.clear()
    follower.recount()
    assert master.asked == []
