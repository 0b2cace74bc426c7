"""Sites that a run may use, as ``run --site`` and ``Run(sites=…)`` read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pilotfish.api.run import Run
from pilotfish.client.descriptions.site_selection import read_selection
from pilotfish.errors import BadInput


@pytest.fixture(autouse=True)
def sites(pilotfish_home: Path) -> None:
    (pilotfish_home / "sites.toml").write_text('[hpc]\nbackend = "slurm"\n')


def test_a_name_and_a_list_of_names_are_read() -> None:
    assert read_selection("hpc").names == ("hpc",)
    chosen = read_selection(["hpc:4", "local:2", "hpc"])
    assert (chosen.names, chosen.local_cores) == (("hpc", "local"), 2)
    assert read_selection(()).names == ()


def test_the_pool_is_told_of_all_sites_but_this_machine() -> None:
    asked: list[tuple[str, dict[str, Any]]] = []
    read_selection(["hpc:4", "local"]).use(lambda kind, **arguments: asked.append((kind, arguments)))
    assert asked == [("sites_reread", {}), ("site_use", {"site": "hpc", "pilots": 4})]
    asked.clear()
    read_selection("local").use(lambda kind, **arguments: asked.append((kind, arguments)))
    assert not asked


def test_a_site_that_does_not_exist_is_told_before_anything_is_started(pilotfish_home: Path) -> None:
    with pytest.raises(BadInput, match="there is no site 'hcp'") as caught:
        Run(sites="hcp")
    assert caught.value.hint.startswith("Did you mean 'hpc'?")
    assert not (pilotfish_home / "pools").exists()
