"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilotfish import plugins

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a distribution of one module, as pip leaves it: the module, and its metadata beside it."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def make(distribution: str, code: str = "", **groups: dict[str, str]) -> None:
        (folder / f"{distribution.replace('-', '_')}.py").write_text(code)
        metadata = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir()
        text = "[console_scripts]\nother = other:main\n\n"
        for kind, entries in groups.items():
            text += f"[pilotfish.{kind}]\n# a comment = not:this\n" + "".join(f"{name} = {to}\n" for name, to in entries.items()) + "\n"
        (metadata / "entry_points.txt").write_text(text)
        plugins.forget()

    plugins.forget()
    yield make
    monkeypatch.undo()
    plugins.forget()
