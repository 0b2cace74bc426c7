"""Tests ``data`` with real workers: transfers, kept files, their places, and messages about lost files."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.terminal import Typist

LARGE = 300_000


@pytest.fixture
def typist() -> Iterator[Typist]:
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-data-"))
    person = Typist(directory)
    yield person
    said = person.type("stop", "--now", "--json")
    assert said.status == 0, said
    shutil.rmtree(directory)


def test_a_directory_goes_along_some_outputs_stay_and_data_says_where_all_is(typist: Typist) -> None:
    (typist.directory / "mesh/deep").mkdir(parents=True)
    (typist.directory / "mesh/deep/points").write_bytes(bytes(LARGE))
    (typist.directory / "mesh/note").write_text("short")
    script = "cat mesh/deep/points mesh/note > fine-{n}.bin; tr '\\0' {n} < mesh/deep/points > stays.bin; cat mesh/note"
    words = ["--input", "mesh", "--output", "fine-*.bin", "--keep", "stays.bin", "--require", "cores >= 1", "--rank", "held / wanted"]
    said = typist.type("run", "--local-cores", "1", *words, "--param", "n=1..2", "--", "sh", "-c", script)
    assert said.status == 0, said
    assert "2 files in run-1/; 2 files stayed on the workers: pilotfish data 1\n" in said.out
    assert (typist.directory / "run-1/1/fine-2.bin").stat().st_size == LARGE + 5
    assert sorted(path.name for path in (typist.directory / "run-1/0").iterdir()) == ["fine-1.bin"]

    data = json.loads(typist.type("data", "--json").out)
    by_path = {row["path"]: row for row in data["contents"]}
    points = by_path[str(typist.directory / "mesh/deep/points")]
    assert (points["size"], points["home"], points["workers"], points["needed_by"]) == (LARGE, True, ["local-1"], 0)
    made = [row for row in data["contents"] if row["made_by"]]
    assert sorted((row["home"], row["made_by"]) for row in made if not row["home"]) == [(False, "1.0"), (False, "1.1")]
    assert len([row for row in made if row["home"]]) == 1, "both wrote the same, which is kept once"
    assert sum(row["contents"] for row in data["got"].values()) >= 1
    shown = typist.type("data", "1").out
    assert "1.0:stays.bin" in shown
    assert "points" in shown


def test_the_files_of_a_list_go_from_sandbox_to_sandbox_and_a_second_try_has_them_too(typist: Typist) -> None:
    (typist.directory / "tasks.txt").write_text(
        """out=prog,data/   sh -c 'mkdir data; seq 1 9 > data/n; printf "#!/bin/sh\\nsort -rn data/n" > prog; chmod +x prog'
in=prog,data/ out=sorted id=sort   sh -c './prog > sorted || exit 4; exit 3'
in=sorted out=first   sh -c 'head -n 1 sorted > first'
"""
    )
    said = typist.type("run", "--local-cores", "2", "--sandbox", "--tasks", "tasks.txt")
    assert said.status == 1 and "3 tasks, 1 done, 2 failed" in said.out, said
    assert not (typist.directory / "sorted").exists(), "they are in directories of their own"
    assert (typist.directory / "run-1/0/data/n").read_text().split() == list("123456789")
    assert typist.type("rerun", "1").status == 1
    assert "exit status 3" in typist.type("why", "1.1").out, "it had its files, and got as far as before"
    (typist.directory / "tasks.txt").write_text((typist.directory / "tasks.txt").read_text().replace("exit 3", "true"))
    assert typist.type("run", "--sandbox", "--tasks", "tasks.txt").status == 0
    assert (typist.directory / "run-2/2/first").read_text() == "9\n"


def test_an_input_that_changes_before_its_task_begins_is_told_with_what_to_do(typist: Typist) -> None:
    gate, large = typist.directory / "gate", typist.directory / "large.dat"
    large.write_bytes(bytes(LARGE))
    typist.type("workers", "--local-cores", "1")
    typist.type("run", "--detach", "--", "sh", "-c", f"while ! test -e {gate}; do sleep 0.02; done")
    assert typist.type("run", "--detach", "--input", "large.dat", "--", "cat", "large.dat").status == 0
    assert json.loads(typist.type("data", "2", "--json").out)["contents"][0]["needed_by"] == 1
    large.write_bytes(b"x" * LARGE)
    gate.touch()
    attached = typist.type("attach", "2")
    assert attached.status == 1
    assert "pilotfish rerun 2 --failed" in attached.out
    why = json.loads(typist.type("why", "2.0", "--json").out)
    assert "was changed after it was submitted" in why["sentence"]
    assert why["reasons"][0]["commands"][-1] == "pilotfish rerun 2 --failed"
    again = typist.type("rerun", "2")
    assert again.status == 0 and "Changed since the last try: large.dat\n" in again.out


def test_a_file_that_only_the_last_task_misses_is_told_before_the_first_one_begins(typist: Typist) -> None:
    for number in (1, 2):
        (typist.directory / f"m-{number}.dat").write_text("mesh")
    said = typist.type("run", "--input", "m-{n}.dat", "--param", "n=1..3", "--", "touch", f"{typist.directory}/ran-{{n}}")
    assert said.status == 2 and "'m-3.dat' does not exist" in said.err
    assert not list(typist.directory.glob("ran-*"))


def test_a_run_of_one_task_shows_where_its_files_are(typist: Typist) -> None:
    said = typist.type("run", "--local-cores", "1", "--output", "out.*", "--", "sh", "-c", "echo 1 > out.dat; echo hello")
    assert (said.status, said.out) == (0, "hello\n")
    assert "1 file in run-1/" in said.err


def test_what_a_forgotten_run_left_takes_no_room_any_more(typist: Typist) -> None:
    make = ["--local-cores", "1", "--output", "big", "--", "sh", "-c", f"head -c {LARGE} /dev/urandom > big"]
    assert typist.type("run", *make).status == 0
    (row,) = json.loads(typist.type("data", "--json").out)["contents"]
    place = next(typist.directory.glob(f"**/contents/??/{row['digest']}"))
    assert typist.type("results", "1", "--save", "kept").status == 0
    assert typist.type("forget", "1").out == "Run 1 was deleted.\n"
    assert not place.exists() and (typist.directory / "kept/0/big").stat().st_size == LARGE
    assert json.loads(typist.type("data", "--json").out)["contents"] == []
    assert typist.type("forget", "1").status == 2


def test_a_result_that_was_damaged_on_the_disk_is_not_handed_out(typist: Typist) -> None:
    make = ["--local-cores", "1", "--output", "big", "--", "sh", "-c", f"head -c {LARGE} /dev/urandom > big"]
    assert typist.type("run", *make).status == 0
    (row,) = json.loads(typist.type("data", "--json").out)["contents"]
    place = next(typist.directory.glob(f"**/contents/??/{row['digest']}"))
    place.chmod(0o600)
    with place.open("r+b") as file:
        file.write(b"rot")
    said = typist.type("results", "1", "--save", "kept")
    assert said.status != 0 and "is damaged: it has other bytes than the task left" in said.err


def test_a_run_with_a_requirement_that_no_worker_meets_is_reported_and_kept(typist: Typist) -> None:
    said = typist.type("run", "--local-cores", "1", "--require", "memory >= 4000G and coers > 0", "--", "echo", "at last")
    assert said.status == 3
    assert "warning: --require: no connected worker has a property 'coers'. Did you mean 'cores'?" in said.err
    assert "local-1, fails memory >= 4000G and coers > 0 (memory " in said.err
    assert "Run 1 is kept" in said.out
    assert typist.type("cancel", "1").status == 0
