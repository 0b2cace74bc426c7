"""Pilots that cannot be started."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pilotfish.backends.local import LocalBackend
from pilotfish.config import read_settings
from pilotfish.errors import BadInput
from pilotfish.master.sites.local_controller import LocalController
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
    assert told == [i.PilotGone("local-1", False, f"could not be started: the pool's directory {pool.directory} is gone")]
    assert not pool.directory.exists()


def test_the_cache_of_this_machine_is_as_large_as_the_settings_say(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[pool]\ncache_size = "2G"\n')
    settings = read_settings(config)
    assert settings.cache_size == 2 << 30
    plain = LocalBackend("python", "share", "cache", "home")
    about = ("local-1", PilotSize(), "bundle", "credentials", "work")
    assert "--cache-bytes" not in plain.command(*about)
    assert replace(plain, cache_size=settings.cache_size).command(*about)[-2:] == ["--cache-bytes", str(2 << 30)]
    config.write_text('[pool]\ncache_size = "much"\n')
    with pytest.raises(BadInput, match="cache_size: 'much' is not a size"):
        read_settings(config)
