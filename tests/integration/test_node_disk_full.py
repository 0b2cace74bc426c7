"""Tests a full disk of a node: its tasks go elsewhere without charge, and the node gets no more."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S
from tests.engines import processes
from tests.support.peer_pool import PeerPool, peer_pool

MIB = 1 << 20
SMALL, ROOMY = "disk/small", "roomy"


@pytest.fixture
def peers(pilotfish_home: Path, tmp_path: Path) -> Iterator[PeerPool]:
    with peer_pool(pilotfish_home, tmp_path / "place") as made:
        disk = made.place / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs", str(disk)], capture_output=True, text=True)
        if mounted.returncode:
            pytest.skip(f"needs to mount a file system of its own: {mounted.stderr.strip()}")
        yield made
        processes.wait_until(lambda: made.agents[SMALL].poll() is not None, "the agent without room leaves")
        del made.agents[SMALL]
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def troubles(peers: PeerPool) -> list[tuple[int, int]]:
    return [(row["failures"], row["losses"]) for row in peers.ask("tasks", run=1)]


def has_left(peers: PeerPool) -> bool:
    return SMALL not in peers.present()


@pytest.mark.parametrize("mib", [40, 15], ids=["it-does-not-fit", "its-copy-for-the-task-does-not-fit"])
def test_a_task_whose_input_has_no_room_goes_elsewhere_and_is_not_charged(peers: PeerPool, mib: int) -> None:
    peers.start(SMALL)
    path = peers.write_input("big.dat", mib * MIB)
    with peers.run() as run:
        future = run.executable(["wc", "-c", "big.dat"], inputs={"big.dat": path})
        processes.wait_until(lambda: has_left(peers), "the node is drained")
        peers.start(ROOMY)
        assert future.result(PATIENCE_S).text.split()[0] == str(mib * MIB)
    assert troubles(peers) == [(0, 0)]
