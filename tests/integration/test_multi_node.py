"""Tests multi-node tasks with two real agents of one pilot: their environment, and the death of one agent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import pilotfish
from tests.engines import processes
from tests.engines.processes import PATIENCE_S, wait_until
from tests.support.peer_pool import PeerPool, peer_pool

HOSTS = 'cat "$PILOTFISH_HOSTFILE"; echo $PILOTFISH_NODES $PILOTFISH_ATTEMPT'


@pytest.fixture
def pool(pilotfish_home: Path, tmp_path: Path) -> Iterator[PeerPool]:
    with peer_pool(pilotfish_home, tmp_path / "place", matching="central") as made:
        yield made


def waiting(gate: Path, note: Path) -> list[str]:
    """Return a command that writes its identity and continues when the gate opens."""
    return [
        "sh",
        "-c",
        f'echo $$ > "$2.new"; mv "$2.new" "$2"; until [ -e "$1" ]; do sleep 0.05; done; {HOSTS}',
        "sh",
        str(gate),
        str(note),
    ]


def host_lines(cores: int) -> str:
    return f"{socket.gethostname()} slots={cores}\n" * 2


def test_it_finds_both_hosts_and_others_wait_for_its_room(pool: PeerPool, tmp_path: Path) -> None:
    pool.start("a", "b", cores=2, pilot="twin")
    gate, note = tmp_path / "gate", tmp_path / "note"
    with pool.run() as run:
        wide = run.executable(waiting(gate, note), nodes=2, cores=2)
        wait_until(note.exists, "it begins")
        other = run.executable(["true"])
        wait_until(lambda: run.status()["counts"]["ready"] == 1, "the other is known")
        assert pool.ask("why", task=f"{run.id}.1")["reasons"][0]["code"] == "busy"
        assert not other.done()
        gate.touch()
        assert wide.result(PATIENCE_S).text == host_lines(2) + "2 1\n"
        assert other.result(PATIENCE_S).exit == 0


def test_a_task_on_one_node_gets_the_host_file_too(pool: PeerPool) -> None:
    pool.start("a")
    with pool.run() as run:
        said = run.executable(["sh", "-c", HOSTS], nodes=1).result(PATIENCE_S)
        assert said.text == f"{socket.gethostname()} slots=1\n1 1\n"
        assert run.executable(["sh", "-c", "echo $PILOTFISH_NODES"]).result(PATIENCE_S).text == "\n"


def test_a_python_call_finds_them_as_well(pool: PeerPool) -> None:
    pool.start("a", "b", pilot="twin")
    with pool.run() as run:
        assert run.options(nodes=2).submit(_hosts).result(PATIENCE_S) == host_lines(1)
        assert run.submit(_hosts).result(PATIENCE_S) == "", "nothing of it is left for the next"


def _hosts() -> str:
    import os

    path = os.environ.get("PILOTFISH_HOSTFILE")
    return open(path).read() if path else ""


def test_the_death_of_one_that_was_told_nothing_ends_the_attempt_and_it_is_tried_again(pool: PeerPool, tmp_path: Path) -> None:
    pool.start("a", "b", pilot="twin")
    gate, note = tmp_path / "gate", tmp_path / "note"
    with pool.run() as run:
        wide = run.executable(waiting(gate, note), nodes=2)
        wait_until(note.exists, "it begins")
        process = int(note.read_text())
        wait_until(lambda: run.status()["counts"]["running"] == 1, "it is known to run")
        first = pool.ask("task", task=f"{run.id}.0")["worker"]
        pool.kill("b" if first == "a" else "a")
        wait_until(lambda: not processes.is_alive(process), "what the first of them runs is stopped")
        wait_until(lambda: run.status()["counts"]["ready"] == 1, "it waits for another")
        note.unlink()
        pool.start("c", pilot="twin")
        wait_until(note.exists, "it begins again")
        gate.touch()
        assert wide.result(PATIENCE_S).text == host_lines(1) + "2 2\n"


def test_a_range_of_cores_on_several_nodes_is_refused(pool: PeerPool) -> None:
    with pytest.raises(pilotfish.BadInput, match="as many on each"), pool.run() as run:
        run.executable(["true"], nodes=2, cores="1-4")
