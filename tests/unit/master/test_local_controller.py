"""Pilots on this machine: how they are started, named, and described at their end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pilotfish.config import read_settings
from pilotfish.errors import BadInput
from pilotfish.master.sites.local_controller import LocalController, agent_arguments, describe_exit, job_id, read_job_id
from pilotfish.model import inputs as i
from pilotfish.model.site import PilotSize
from pilotfish.store.keyring import open_keyring
from pilotfish.store.pool_directory import PoolDirectory


def test_a_pool_that_somebody_deleted_is_not_made_again_and_the_reason_is_told(tmp_path: Path) -> None:
    pool = PoolDirectory(tmp_path / "pool").make()
    told: list[i.Input] = []
    controller = LocalController(pool, open_keyring(pool.directory), told.append, 1.0)
    shutil.rmtree(pool.directory)
    controller.submit("local-1", PilotSize())
    assert told == [i.PilotEndReported("local-1", False, f"could not be started: the pool's directory {pool.directory} does not exist")]
    assert not pool.directory.exists()


def test_the_cache_of_this_machine_is_as_large_as_the_settings_say(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[pool]\ncache_size = "2G"\n')
    settings = read_settings(config)
    assert settings.cache_size == 2 << 30
    start = (PoolDirectory(tmp_path), "local-1", PilotSize(), 0.0)
    assert "--cache-bytes" not in agent_arguments(*start, 0)
    assert agent_arguments(*start, settings.cache_size)[-2:] == ["--cache-bytes", str(2 << 30)]
    config.write_text('[pool]\ncache_size = "much"\n')
    with pytest.raises(BadInput, match="cache_size: 'much' is not a size"):
        read_settings(config)


def test_the_id_of_a_local_job_is_read_as_it_was_written() -> None:
    assert read_job_id(job_id(17, "4711")) == (17, "4711")
    assert read_job_id("17") == (0, "") and read_job_id("") == (0, ""), "an id without a start time names no process"


@pytest.mark.parametrize(
    ("code", "last_line", "reason"),
    [
        (0, "bye", "ended"),
        (3, "", "ended with exit status 3"),
        (3, "no room", "ended with exit status 3: no room"),
        (-9, "", "was killed by signal 9"),
    ],
)
def test_the_end_of_a_local_pilot_is_described_by_its_exit_status_and_its_last_line(code: int, last_line: str, reason: str) -> None:
    assert describe_exit(code, last_line) == reason
