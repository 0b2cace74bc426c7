"""Tests that a resumed run does not use results that may be different now, and replaces no file before it is sure."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.client.pools import PoolHandle
from tests.integration.test_resume import Shell


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
