"""Tests that a resumed run does not use results that may be different now, and replaces no file before it is sure."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.client.pools import PoolHandle
from tests.integration.test_resume import Shell, wait_for


@pytest.fixture
def shell(pool: PoolHandle, tmp_path: Path) -> Shell:
    directory = tmp_path / "work"
    directory.mkdir()
    return Shell(directory)


AFTER_ANY = """
def run(tasks):
    check = tasks.add(["sh", "-c", "echo check >> log; cat $(echo fl)ag"])
    tasks.add(["sh", "-c", "echo failed$PILOTFISH_FAILED_DEPENDENCIES >> log"], after_any=[check])
"""


def test_a_task_that_waits_for_any_end_of_others_runs_again(shell: Shell) -> None:
    (shell.directory / "flow.py").write_text(AFTER_ANY)
    assert shell.type("run", "flow.py").returncode == 1
    assert shell.ran() == ["check", "failed1"]
    (shell.directory / "flag").touch()
    assert shell.run_plainly("flow.py") == ["check", "failed0"]
    (shell.directory / "flag").unlink()
    assert shell.type("run", "flow.py").returncode == 1
    shell.ran()
    (shell.directory / "flag").touch()
    ran, said = shell.run("flow.py")
    assert ran == ["failed0"] and "4.1 runs: Pilotfish cannot compare it" in said, (ran, said)


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_an_output_that_an_unsuccessful_task_changed_is_made_again(shell: Shell, end: str) -> None:
    made, tasks = shell.directory / "b.csv", shell.directory / "tasks.txt"
    command = ("--here", "--tasks", "tasks.txt")

    def write(line: str) -> None:
        tasks.write_text(f"id=a out=a.csv sh -c 'echo a >> {shell.log}; echo a > a.csv'\nid=b in=a.csv out=b.csv sh -c '{line}'\n")

    right = f"echo b >> {shell.log}; echo whole > b.csv"
    write(right)
    assert shell.run_plainly(*command) == ["a", "b"]
    write("echo half > b.csv; " + ("exit 3" if end == "failed" else "sleep 60"))
    if end == "failed":
        assert shell.run(*command)[0] == []
    else:
        assert shell.type("run", "--resume", "--detach", *command).returncode == 0
        wait_for(lambda: made.read_text() == "half\n")
        assert shell.type("cancel", "2").returncode == 0
        shell.type("attach", "2")
    assert made.read_text() == "half\n"
    write(right)
    ran, said = shell.run(*command)
    assert ran == ["b"] and f"its output b.csv was changed by the {end} task 2.1" in said
    assert made.read_text() == "whole\n"
    write("exit 3")
    assert shell.run(*command)[0] == []
    made.write_text("mine")
    write(right)
    refused = shell.type("run", "--resume", *command)
    assert refused.returncode == 2 and "b.csv changed after task 3.1 had made it" in refused.stderr


def test_a_script_that_is_an_input_is_named_once(shell: Shell) -> None:
    post = shell.directory / "scripts" / "post.sh"
    post.parent.mkdir()
    post.write_text(f"echo a >> {shell.log}\n")
    (shell.directory / "data.txt").write_text("1")
    command = ("--input", "scripts/post.sh", "--input", "data.txt", "--", "sh", "scripts/post.sh")
    assert shell.run_plainly(*command) == ["a"]
    with post.open("a") as file:
        file.write("# edited\n")
    assert "2.0 runs: scripts/post.sh changed since task 1.0\n" in shell.run(*command)[1]
    (shell.directory / "data.txt").write_text("2")
    assert "3.0 runs: the input data.txt changed since task 2.0\n" in shell.run(*command)[1]
