"""Replay of journals that this version did not write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pilotfish.errors import JournalError
from pilotfish.store.state_storage import replay


class Journal:
    """What is left of a journal without damage."""

    damage_report = SimpleNamespace(gaps=[], damages=[], cut=None)

    def __init__(self, *turns: list[Any]) -> None:
        self.turns = turns

    def __iter__(self) -> Any:
        return iter(msgspec.msgpack.encode(turn) for turn in self.turns)


@pytest.mark.parametrize(
    "fact", [["pilot", "local-1", "local", 4.0, "work"], ["restored", "pool", [1, 2]], ["restored", "tasks", 7], ["new"]]
)
def test_a_journal_of_another_version_is_called_that_and_the_person_has_a_way_out(fact: list[Any]) -> None:
    with pytest.raises(JournalError, match="another version of Pilotfish") as caught:
        replay(Journal([1.0, [["master", 1]]], [2.0, [fact]]))  # type: ignore[arg-type]
    assert "pilotfish run --pool NEW" in caught.value.hint


def test_one_of_this_version_is_replayed() -> None:
    assert replay(Journal([1.0, [["master", 3]]])).epoch == 3  # type: ignore[arg-type]
