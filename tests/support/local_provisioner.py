"""Provisions only this machine, for tests of machines without sites."""

from __future__ import annotations

from pilotfish.core.pilots.factory_interface import PilotProposal, WithdrawalProposal
from pilotfish.core.policy_interface import HoldProposal
from pilotfish.core.state import State
from pilotfish.factories.provisioner import local_look_at, propose_local


class LocalProvisioner:
    def propose(self, state: State, now: float) -> list[PilotProposal | WithdrawalProposal | HoldProposal]:
        return propose_local(state, now)

    def standings(self, state: State, now: float) -> dict[str, dict[str, object]]:
        return {}

    def next_look_at(self, state: State, now: float) -> float | None:
        return local_look_at(state, now)
