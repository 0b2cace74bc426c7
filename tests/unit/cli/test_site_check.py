"""doctor SITE, check by check: a site whose commands are run here, and a batch system made of shell scripts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotfish.cli.terminal.check_results import BAD, DOUBTFUL, GOOD
from tests.unit.cli.conftest import CommandLine


@pytest.fixture
def programs(pilotfish: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of commands that come before all others; a site that uses them."""
    (tmp_path / ".pilotfish").chmod(0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    for name in ("sbatch", "squeue", "scancel"):
        put(directory, name, "exit 0")
    assert pilotfish("site", "add", "hpc", "--backend", "slurm", "--folder", str(tmp_path / "pilots")).status == 0
    return directory


def put(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def findings(pilotfish: CommandLine, *words: str) -> dict[str, dict[str, Any]]:
    said = pilotfish("doctor", "hpc", "--json", *words)
    data = json.loads(said.out)
    assert said.status == (1 if data["bad"] else 0)
    assert data["bad"] == sum(one["state"] == BAD for one in data["findings"])
    for one in data["findings"]:
        assert one["state"] == GOOD or one["cure"], one
    return {one["check"]: one for one in data["findings"]}


def test_a_site_that_works_is_green_without_its_pilot(pilotfish: CommandLine, programs: Path) -> None:
    found = findings(pilotfish, "--no-pilot")
    assert list(found) == ["description", "reach", "commands", "answers", "folder", "limits", "clock", "python"]
    assert not [one for one in found.values() if one["state"] == BAD]
    said = pilotfish("site", "test", "hpc", "--no-pilot")
    assert said.out.splitlines()[0].startswith("✓ description: slurm, in ")
    assert said.out.splitlines()[-1] == "All checks passed."


def test_a_wrong_description_is_the_only_thing_that_is_told(pilotfish: CommandLine, programs: Path) -> None:
    path = programs.parent / ".pilotfish" / "sites.toml"
    path.write_text(path.read_text() + "corse = 2\n")
    found = findings(pilotfish)
    assert list(found) == ["description"]
    assert found["description"]["cure"] == "did you mean cores?"
    assert pilotfish("doctor", "hpd").status == 2


def test_commands_that_are_not_there_are_named(pilotfish: CommandLine, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (programs / "scancel").unlink()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin-of-nobody{os.pathsep}/bin-of-nobody")
    for name in ("sh", "df", "awk", "sed", "mkdir", "date", "env"):
        (programs / name).symlink_to(f"/bin/{name}")
    found = findings(pilotfish, "--no-pilot")
    assert found["commands"]["state"] == BAD
    assert "not on this machine: scancel" in found["commands"]["text"]
    assert "via=login.example.org" in found["commands"]["cure"]


def test_a_system_that_does_not_answer_is_told_in_its_own_words(pilotfish: CommandLine, programs: Path) -> None:
    put(programs, "squeue", 'test "$1" = --version || { echo "squeue: error: Unable to contact slurm controller" >&2; exit 1; }')
    found = findings(pilotfish)
    assert found["answers"]["state"] == BAD
    assert "Unable to contact slurm controller" in found["answers"]["text"]
    assert "squeue --noheader" in found["answers"]["cure"]
    assert "test pilot" not in found


def test_room_clock_and_python_are_looked_at(pilotfish: CommandLine, programs: Path) -> None:
    put(programs, "df", 'echo head; case $1 in -Pk) echo "d 1 1 1000 1% /";; *) echo "d 1 1 50 1% /";; esac')
    put(programs, "date", "echo 1000000")
    pilotfish("site", "set", "hpc", "setup=exit 9")
    found = findings(pilotfish, "--no-pilot")
    assert found["folder"]["state"] == BAD
    assert "1000 KiB free, 50 inodes free" in found["folder"]["text"]
    assert found["clock"]["state"] == DOUBTFUL
    assert "behind this machine's" in found["clock"]["text"]
    assert found["python"]["state"] == DOUBTFUL


def test_a_python_that_was_named_and_does_not_work_is_told_with_its_name(pilotfish: CommandLine, programs: Path) -> None:
    pilotfish("site", "set", "hpc", "python=/opt/nope/python3")
    said = pilotfish("site", "test", "hpc", "--no-pilot")
    assert said.status == 0 and said.out.splitlines()[-1] == "No check failed, but these are doubtful: python."
    found = findings(pilotfish, "--no-pilot")["python"]
    assert found["state"] == DOUBTFUL
    assert found["text"].startswith("/opt/nope/python3, which was named, does not work") and "otherwise 3." in found["text"]
    assert found["cure"].endswith("pilotfish site set hpc python=")
    put(programs, "python4", f'exec "{sys.executable}" "$@"')
    pilotfish("site", "set", "hpc", f"python={programs}/python4")
    assert findings(pilotfish, "--no-pilot")["python"] == {
        "check": "python",
        "state": GOOD,
        "text": f"{'.'.join(map(str, sys.version_info[:3]))} {sys.executable}",
        "cure": "",
    }


def test_a_folder_that_cannot_be_made_is_told(pilotfish: CommandLine, programs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    pilotfish("site", "set", "hpc", f"folder={tmp_path}/file/pilots")
    assert findings(pilotfish, "--no-pilot")["folder"]["state"] == BAD


def test_a_login_node_that_wants_a_person_gets_one(pilotfish: CommandLine, programs: Path) -> None:
    put(programs, "ssh", 'echo "me@login: Permission denied (publickey,keyboard-interactive)." >&2; exit 255')
    pilotfish("site", "set", "hpc", "via=me@login")
    found = findings(pilotfish)
    assert list(found) == ["description", "reach"]
    assert found["reach"]["cure"] == "pilotfish site login hpc"
    put(programs, "ssh", 'echo "ssh: Could not resolve hostname login" >&2; exit 255')
    assert findings(pilotfish)["reach"]["cure"] == "Try it by hand: ssh me@login true"
