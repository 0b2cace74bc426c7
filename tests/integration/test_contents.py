"""Tests files of any size in the whole system: large, odd or directory inputs; outputs that are copied back or kept for other tasks."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import pilotfish
from pilotfish.applications.executables.executable import ExecutableFailed
from pilotfish.applications.input_files import INLINE_BYTES
from pilotfish.errors import BadInput, TaskFailed
from pilotfish.portable.processes import processes_of
from pilotfish.store.pool_directory import pool_home

pytestmark = pytest.mark.usefixtures("pilotfish_home")
MIB = 1 << 20
WAIT_S = 120.0
"""Seconds until a test counts as hung; not a measurement."""


@pytest.fixture
def run(tmp_path: Path, pilotfish_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pilotfish.Run]:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    opened = pilotfish.Run("files")
    yield opened
    opened._session.client.ask("stop", now=True)
    opened._session.client.close()


def make(name: str, size: int) -> str:
    """Write a file of ``size`` pseudo-random bytes; return its digest."""
    data = hashlib.shake_128(name.encode()).digest(size)
    Path(name).write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def cached() -> list[str]:
    return [path.name for path in pool_home("default").cache.glob("??/*")]


def test_a_large_input_is_used_by_many_tasks_and_kept_once(run: pilotfish.Run) -> None:
    digest = make("big.dat", 5 * MIB)
    run.defaults.inputs = ["big.dat"]
    futures = [run.executable(["sh", "-c", "sha256sum big.dat; test -w big.dat && echo writable"]) for _ in range(4)]
    assert {future.result().text for future in futures} == {f"{digest}  big.dat\nwritable\n"}
    assert cached() == [digest]


def test_a_directory_comes_with_all_that_is_in_it(run: pilotfish.Run) -> None:
    big = make("big", 2 * INLINE_BYTES)
    tree = Path("tree")
    (tree / "empty").mkdir(parents=True)
    (tree / "sub").mkdir()
    (tree / "sub" / "tool").write_text("#!/bin/sh\necho from the tool\n")
    (tree / "sub" / "tool").chmod(0o755)
    Path("big").rename(tree / "sub" / "ünï code\n.dat")
    (tree / "nothing").touch()
    (tree / "sub" / "again").symlink_to("tool")
    (tree / "up").symlink_to("sub")
    script = "tree/up/again; find tree | sort | tr '\\n' '|'; sha256sum < 'tree/sub/ünï code\n.dat'"
    text = run.executable(["sh", "-c", script], inputs=["tree"]).result().text
    assert text.startswith("from the tool\n") and big in text
    for entry in ("tree/empty|", "tree/nothing|", "tree/sub/again|", "tree/up|"):
        assert entry in text


def test_holes_stay_holes_and_empty_files_are_files(run: pilotfish.Run) -> None:
    with open("sparse", "wb") as file:
        file.truncate(200 * MIB)
        file.seek(100 * MIB)
        file.write(b"x" * MIB)
    completed = run.executable(
        ["sh", "-c", "du -k sparse | cut -f1; cp --sparse=always sparse out; : > none"], inputs=["sparse"], outputs=["out", "none"]
    )
    files = completed.result().files
    assert int(completed.result().text) < 20 * 1024
    assert files["none"].content == b"" and files["out"].size == 200 * MIB
    path = files["out"].path
    assert path is not None and path.stat().st_blocks * 512 < 20 * MIB


def test_large_outputs_come_home_and_are_saved(run: pilotfish.Run, tmp_path: Path) -> None:
    digest = make("seed", 3 * MIB)
    result = run.executable(
        ["sh", "-c", "mkdir d; mv seed d/big; chmod 755 d/big; echo small > d/small"], inputs=["seed"], outputs=["d"]
    ).result()
    assert sorted(result.files) == ["d/big", "d/small"]
    assert result.files["d/big"].digest == digest and result.files["d/small"].content == b"small\n"
    result.save(tmp_path / "saved")
    assert hashlib.sha256((tmp_path / "saved/d/big").read_bytes()).hexdigest() == digest
    assert (tmp_path / "saved/d/big").stat().st_mode & 0o777 == 0o755


def test_an_output_is_an_input_of_a_later_task_wherever_it_lies(run: pilotfish.Run) -> None:
    make("seed", MIB)
    script = "cat seed seed > kept; cp seed brought"
    first = run.executable(["sh", "-c", script], inputs=["seed"], outputs=["brought"], keep=["kept"]).result()
    with pytest.raises(TaskFailed, match="not on this machine"):
        _ = first.files["kept"].content
    inputs = {"a": first.files["kept"], "b": first.files["brought"]}
    second = run.executable(["sh", "-c", "cat b b | cmp - a && echo same"], inputs=inputs).result()
    assert second.text == "same\n"


def test_a_file_in_a_list_of_inputs_keeps_its_name_and_what_is_both_output_and_kept_comes_home(run: pilotfish.Run) -> None:
    script = "mkdir out; for name in a b; do head -c 100000 /dev/zero | tr '\\0' $name > out/$name; done; echo small > out/small"
    first = run.executable(["sh", "-c", script], outputs=["out/a", "out/s*"], keep=["out/a", "out*"]).result()
    assert {name: file.path is not None and file.path.exists() for name, file in first.files.items() if file.digest} == {
        "out/a": True,
        "out/b": False,
        "out/small": True,
    }
    assert first.files["out/small"].content == b"small\n"
    second = run.executable(["sh", "-c", "head -c 3 out/a; head -c 3 out/b"], inputs=[first.files["out/a"], first.files["out/b"]])
    assert second.result().text == "aaabbb"


def test_files_that_tasks_keep_are_inputs_of_others_before_they_are_there(run: pilotfish.Run) -> None:
    files = "head -c 300000 /dev/zero > mesh.bin; mkdir -p d/e; echo small > d/e/small"
    script = f"sleep 0.2; {files}; printf '#!/bin/sh\\ncat m d/e/small' > tool; chmod +x tool"
    kept = {"keep": ["mesh.bin", "d", "tool"], "outputs": ["tool", "d"]}
    maker = run.executable(["sh", "-c", script], **kept)  # type: ignore[arg-type]
    promised = {"m": maker.file("mesh.bin"), "d": maker.file("d"), "bin/tool": maker.file("tool")}
    user = run.executable(["sh", "-c", "bin/tool | wc -c"], inputs=promised)
    again = run.executable(["sh", "-c", "cat small"], inputs={"small": maker.file("d/e/small")}, after=[user])
    by_list = run.executable(["sh", "-c", "wc -c < mesh.bin; cat d/e/small"], inputs=[maker.file("mesh.bin"), maker.file("d")])
    assert (user.result().text, again.result().text, by_list.result().text) == ("300006\n", "small\n", "300000\nsmall\n")
    assert maker.result().files["d/e/small"].content == b"small\n", "it came home besides"
    late = run.executable(["sh", "-c", "wc -c < mesh.bin"], inputs=[maker.file("mesh.bin")])
    assert late.result().text == "300000\n", "also when it has long been there"


def test_files_of_others_are_handed_on_whatever_happens_to_the_master(run: pilotfish.Run) -> None:
    """The master is killed while the first task runs, and again after its end."""
    gates = [Path(name).absolute() for name in ("one", "two")]
    first = run.executable(["sh", "-c", f"until [ -e {gates[0]} ]; do sleep 0.02; done; echo 17 > n"], keep=["n"], outputs=["n"])
    wait = run.executable(["sh", "-c", f"until [ -e {gates[1]} ]; do sleep 0.02; done; cp n m"], inputs=[first.file("n")], keep=["m"])
    last = run.executable(["cat", "n", "m"], inputs=[first.file("n"), wait.file("m")])
    for gate in gates:
        kill_master()
        gate.touch()
        (first if gate is gates[0] else wait).result(WAIT_S)
    assert last.result(WAIT_S).text == "17\n17\n"


def kill_master() -> None:
    processes = processes_of(pool_home("default").directory)
    os.kill(next(pid for pid, command in processes if "pilotfish.master" in command), signal.SIGKILL)


def test_a_promised_file_that_cannot_be_given_is_told_at_once(run: pilotfish.Run) -> None:
    maker = run.executable(["sh", "-c", "echo > n"], keep=["n"])
    with pytest.raises(BadInput, match="does not keep 'other'"):
        maker.file("other")
    with pytest.raises(BadInput, match="does not name a file inside"):
        run.executable(["true"], inputs={"../x": maker.file("n")})
    with pytest.raises(BadInput, match="sandbox=False"):
        run.executable(["true"], inputs=[maker.file("n")], sandbox=False)
    with pytest.raises(BadInput, match="is no file"):
        run.executable(["true"], inputs=[maker])  # type: ignore[list-item]


def test_two_promised_files_of_one_name_must_be_named(run: pilotfish.Run) -> None:
    makers = [run.executable(["sh", "-c", "echo > n"], keep=["n"]) for _ in range(2)]
    with pytest.raises(BadInput, match="would both be called 'n'"):
        run.executable(["true"], inputs=[maker.file("n") for maker in makers])


def test_an_input_that_was_changed_after_submission_is_not_taken_for_the_old_one(run: pilotfish.Run) -> None:
    make("big.dat", MIB)
    pause = run.executable(["sh", "-c", "echo"], outputs=[])
    pause.result()
    run._session.client.ask("workers_set", local=0)
    future = run.executable(["sha256sum", "big.dat"], inputs=["big.dat"])
    run._session.client.ask("runs")
    with open("big.dat", "r+b") as file:
        file.write(b"changed")
    run._session.client.ask("workers_set", local=1)
    with pytest.raises(ExecutableFailed, match="changed after it was submitted"):
        future.result(60)


def test_an_output_that_was_promised_and_is_not_there_fails_the_task(run: pilotfish.Run) -> None:
    with pytest.raises(ExecutableFailed, match="did not leave the file 'out'"):
        run.executable(["true"], keep=["out"]).result()


def test_a_damaged_content_in_the_cache_is_never_used(run: pilotfish.Run) -> None:
    digest = make("big.dat", MIB)
    assert digest in run.executable(["sha256sum", "big.dat"], inputs=["big.dat"]).result().text
    run._session.client.ask("workers_set", local=0)
    place = pool_home("default").cache / digest[:2] / digest
    status = place.stat()
    place.chmod(0o644)
    with place.open("r+b") as file:
        file.seek(12345)
        file.write(b"rot")
    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
    run._session.client.ask("workers_set", local=1)
    assert digest in run.executable(["sha256sum", "big.dat"], inputs=["big.dat"]).result(60).text


@pytest.mark.parametrize("harm", ["removed", "spoilt", "all removed"])
def test_what_becomes_of_the_cache_under_a_living_worker_is_noticed_by_the_next_task(run: pilotfish.Run, harm: str) -> None:
    digest = make("big.dat", MIB)
    assert digest in run.executable(["sha256sum", "big.dat"], inputs=["big.dat"]).result().text
    cache = pool_home("default").cache
    place = cache / digest[:2] / digest
    if harm == "removed":
        place.unlink()
    elif harm == "spoilt":
        place.chmod(0o644)
        place.write_bytes(b"rot")
    else:
        shutil.rmtree(cache)
    futures = [run.executable(["sha256sum", "big.dat"], inputs=["big.dat"]) for _ in range(3)]
    assert all(digest in future.result(60).text for future in futures)
