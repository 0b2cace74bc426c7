"""Settings: one TOML file, ``config.toml`` in PILOTFISH_HOME. An unknown key is an error that names the nearest one."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from pilotfish.errors import BadInput
from pilotfish.model.settings import PoolSettings


def read_settings(path: Path, overrides: dict[str, Any] | None = None) -> PoolSettings:
    """The table ``[pool]`` of the file, if there is one, with ``overrides`` on top."""
    table: dict[str, Any] = {}
    if path.exists():
        try:
            content = tomllib.loads(path.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise BadInput(f"{path} is not valid TOML: {problem}", f"correct it, or move it away: mv {path} {path}.bad") from None
        _refuse_unknown(path, content, ["pool"])
        table = content.get("pool", {})
        _refuse_unknown(path, table, list(PoolSettings.__struct_fields__))
    try:
        return msgspec.convert({**table, **(overrides or {})}, PoolSettings)
    except msgspec.ValidationError as problem:
        raise BadInput(f"{path}: {problem}", "docs/reference/settings.md lists the settings and their types") from None


def _refuse_unknown(path: Path, table: dict[str, Any], known: list[str]) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are: {', '.join(known)}"
            raise BadInput(f"{path}: unknown setting {key!r}", hint)
