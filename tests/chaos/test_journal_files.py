"""Tests a journal that is deleted under a running master: it writes its state again, and a later kill loses nothing."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

import pilotfish
from pilotfish.client.pools import PoolHandle
from pilotfish.store.pool_directory import PoolDirectory
from tests.chaos.scene import Scene, wait_until
from tests.conftest import PATIENCE_S


def delete_all(journal: Path) -> None:
    shutil.rmtree(journal)


def overwrite_the_middle(journal: Path) -> None:
    segment = max(journal.glob("journal-*.log"))
    written = len(segment.read_bytes().rstrip(b"\0"))
    with segment.open("r+b") as file:
        file.seek(written * 3 // 4)
        file.write(b"\xff" * 100)


@pytest.mark.parametrize("harm", [delete_all, overwrite_the_middle])
def test_what_is_known_survives_harm_to_the_journal(pool: PoolHandle, tmp_path: Path, harm: object) -> None:
    assert callable(harm)
    scene = Scene(pool, tmp_path / "log")
    journal = PoolDirectory(pool.directory).journal
    with pilotfish.Run(pool=pool, uid="harmed") as run:
        assert [run.submit(pow, 2, number).result(PATIENCE_S) for number in range(20)] == [2**number for number in range(20)]
        harm(journal)
        if harm is overwrite_the_middle:
            # A file that is being written is not read, so the damage is found, skipped and repaired at the next start.
            os.kill(scene.master(), signal.SIGKILL)
            assert run.submit(pow, 3, 3).result(PATIENCE_S) == 27
            assert "damaged" in [warning["code"] for warning in run._session.client.ask("status")["warnings"]]
        wait_until(lambda: bool(list(journal.glob("snapshot-*[0-9]"))), "a snapshot that replaces what was harmed")
        assert run.submit(pow, 5, 2).result(PATIENCE_S) == 25
        os.kill(scene.master(), signal.SIGKILL)
        assert run.submit(pow, 7, 2).result(PATIENCE_S) == 49
    with pilotfish.Run(pool=pool, uid="harmed") as again:
        assert again.id == run.id
