"""doctor and gc, check by check."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pilotfish.cli.commands import doctor_commands
from pilotfish.cli.commands.doctor_commands import CHECKS, file_system_of, leftovers_of, remove_leftover
from pilotfish.cli.terminal.check_results import BAD, DOUBTFUL, GOOD, CheckResult
from pilotfish.client.pools import PoolHandle
from pilotfish.store.pool_directory import PoolDirectory
from tests.unit.cli.conftest import CommandLine


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("PILOTFISH_HOME", str(home))
    return home


def test_a_healthy_machine_is_all_green_but_for_what_it_cannot_help(place: Path) -> None:
    for check in CHECKS[:-1]:
        finding = check(place)
        assert finding.state != BAD, finding


def test_whatever_is_not_green_carries_its_cure(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[CheckResult] = []
    monkeypatch.setattr(doctor_commands, "OLDEST_PYTHON", (99, 0))
    found.append(doctor_commands.check_python(place))
    place.chmod(0o755)
    found.append(doctor_commands.check_home(place))
    (place / "config.toml").write_text("[pool]\nbeet_s = 1\n")
    found.append(doctor_commands.check_settings(place))
    usage = shutil.disk_usage(place)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    found.append(doctor_commands.check_space(place))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=500 << 20))
    found.append(doctor_commands.check_space(place))
    monkeypatch.setattr(doctor_commands, "SLOW_SYNC_S", 0.0)
    found.append(doctor_commands.check_sync(place))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 128))
    found.append(doctor_commands.check_descriptors(place))
    found.append(doctor_commands.check_processes(place))
    readings = iter(range(1000, 0, -1))
    monkeypatch.setattr("time.monotonic", lambda: next(readings))
    found.append(doctor_commands.check_clock(place))
    assert [finding.state for finding in found] == [BAD, BAD, BAD, BAD, DOUBTFUL, DOUBTFUL, DOUBTFUL, DOUBTFUL, BAD]
    assert all(finding.fix for finding in found)
    assert found[1].fix == f"chmod go= {place}"
    assert found[2].fix == "did you mean beat_s?"
    assert found[6].fix == "ulimit -n 128"


def test_a_home_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    finding = doctor_commands.check_home(tmp_path / "file" / "home")
    assert finding.state == BAD
    assert "export PILOTFISH_HOME=" in finding.fix


def test_the_file_system_of_a_path_is_the_one_mounted_deepest() -> None:
    mounts = "/dev/sda / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\ntmpfs /home/me/tmp tmpfs rw 0 0\nbad\n"
    assert file_system_of(Path("/home/me"), mounts) == "nfs4"
    assert file_system_of(Path("/home/me/tmp/x"), mounts) == "tmpfs"
    assert file_system_of(Path("/homestead"), mounts) == "ext4"


def test_a_home_on_a_network_is_doubtful(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_commands, "file_system_of", lambda place, mounts: "nfs4")
    finding = doctor_commands.check_sync(place)
    assert finding.state == DOUBTFUL
    assert "network file system" in finding.text


def test_doctor_prints_each_finding_and_gives_a_status(pilotfish: CommandLine, place: Path) -> None:
    said = pilotfish("doctor", "--quick")
    assert said.status == 0
    assert said.out.splitlines()[0].startswith("✓ python: 3.")
    assert said.out.splitlines()[-1] == "All checks passed."
    place.chmod(0o755)
    bad = pilotfish("doctor", "--quick")
    assert bad.status == 1
    assert f"    fix: chmod go= {place}" in bad.out
    assert bad.out.splitlines()[-1] == "1 thing to fix."
    data = json.loads(pilotfish("doctor", "--quick", "--json").out)
    assert data["bad"] == 1
    assert {finding["state"] for finding in data["findings"]} >= {GOOD, BAD}


def dead_pool(place: Path, name: str) -> PoolHandle:
    directory = place / "pools" / name
    directory.mkdir(parents=True, mode=0o700)
    return PoolHandle(directory, temporary=name.startswith("private-"))


def test_gc_finds_a_dead_socket_and_a_temporary_pool_whose_owner_is_gone(pilotfish: CommandLine, place: Path) -> None:
    (place / "pools").mkdir(mode=0o700)
    kept = dead_pool(place, "default")
    gone = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True).stdout.strip()
    dead_pool(place, f"private-{gone}-abcd")
    dead_pool(place, f"private-{os.getpid()}-abcd")
    with socket.socket(socket.AF_UNIX) as listener:
        path = PoolDirectory(kept.directory).socket_path()
        listener.bind(str(path))
    said = pilotfish("gc")
    assert said.status == 0
    assert said.out.splitlines() == [
        f"left  socket  {path}",
        f"left  directory  {place}/pools/private-{gone}-abcd",
        "2 leftovers. Remove: pilotfish gc --remove",
    ]
    assert [one["removed"] for one in json.loads(pilotfish("gc", "--remove", "--json").out)] == [True, True]
    assert pilotfish("gc").out == "No leftovers found.\n"
    assert kept.directory.is_dir()
    assert (place / "pools" / f"private-{os.getpid()}-abcd").is_dir()


def test_gc_ends_processes_that_belong_to_a_pool_without_a_master(place: Path) -> None:
    pool = dead_pool(place, "default")
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code, str(pool.directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()
    found = leftovers_of(pool)
    assert [(one.kind, one.pid) for one in found] == [("process", process.pid)]
    # Somebody must wait for it, or it stays in the process table as a zombie.
    import threading

    waiter = threading.Thread(target=process.wait)
    waiter.start()
    assert remove_leftover(found[0])
    waiter.join()
    assert process.returncode == -15
    process.stdin.close()
    process.stdout.close()
