"""Injects faults into caches and files of clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world.simulated_node import SimulatedNode

TRANSFERS = ("staging", "stowing", "stowed")


def moving_at(node: SimulatedNode) -> list[str]:
    """Returns the kinds of transfers at a node: contents to it, outputs from it, or unacknowledged reports of outputs."""
    machine = node.machine
    made = any(result.produced for result in machine.results.kept.values())
    return [state for state, holds in zip(TRANSFERS, (machine.attempts.staged, machine.staging.uploads, made), strict=True) if holds]


def _node_disk_full(node: SimulatedNode) -> bool:
    node.fetcher.full_until = node.world.now + node.world.dice.uniform(2.0, 30.0)
    return True


def _cache_evicted(node: SimulatedNode) -> bool:
    """Evicts contents because another process needs the space. A stopped agent evicts nothing."""
    if node.hung or not node.fetcher.evict(node.world.dice.randint(1, 10)):
        return False
    node.turn()
    return True


def _cache_damaged(node: SimulatedNode) -> bool:
    wanted = node.machine.staging.needed
    idle = [*node.fetcher.idle_contents(), *(digest for digest in node.fetcher.disk.held if digest not in wanted)]
    if not idle:
        return False
    node.fetcher.spoil(node.world.dice.choice(idle))
    return True


def _input_changed(node: SimulatedNode) -> bool:
    """Changes an input file that tasks still need, at most once per world."""
    world = node.world
    assert world.scenario.data is not None
    if world.library.removed:
        return False
    world.library.removed[world.dice.choice(world.scenario.data.inputs).digest] = None
    return True


DATA_FAULTS: dict[str, Callable[[SimulatedNode], bool]] = {
    "node-disk-full": _node_disk_full,
    "cache-evicted": _cache_evicted,
    "cache-damaged": _cache_damaged,
    "input-changed": _input_changed,
}
"""Faults for scenarios with contents."""
