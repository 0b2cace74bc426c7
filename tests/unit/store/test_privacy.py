"""Tests the advice for files and directories that other users can access."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.errors import BadInput
from pilotfish.store.keyring import require_private


@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_a_directory_that_others_use_is_never_to_be_changed(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    with pytest.raises(BadInput) as refused:
        require_private(shared)
    assert "chmod" not in refused.value.hint
    assert f"export PILOTFISH_HOME={shared}/pilotfish-" in refused.value.hint


def test_the_home_directory_is_never_to_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tmp_path.chmod(0o755)
    with pytest.raises(BadInput) as refused:
        require_private(tmp_path)
    assert "chmod" not in refused.value.hint


def test_a_directory_of_the_pool_is_to_be_made_private(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    own.chmod(0o755)
    with pytest.raises(BadInput) as refused:
        require_private(own)
    assert refused.value.hint == f"chmod go= {own}"
