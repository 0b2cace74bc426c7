"""Pilots that cannot be started."""

from __future__ import annotations

import shutil
from pathlib import Path

from pilotfish.live.home import PoolHome
from pilotfish.live.keys import open_keyring
from pilotfish.live.launcher import Launcher
from pilotfish.model import inputs as i


def test_a_pool_that_somebody_deleted_is_not_made_again_and_the_reason_is_told(tmp_path: Path) -> None:
    pool = PoolHome(tmp_path / "pool").make()
    told: list[i.Input] = []
    launcher = Launcher(pool, open_keyring(pool.directory), told.append, 1.0)
    shutil.rmtree(pool.directory)
    launcher.submit("local-1", 1.0)
    assert told == [i.PilotGone("local-1", False, f"could not be started: the pool's directory {pool.directory} is gone")]
    assert not pool.directory.exists()
