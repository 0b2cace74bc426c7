"""Settings: one TOML file, ``config.toml`` in PILOTFISH_HOME. An unknown key is an error that names the nearest one."""

from __future__ import annotations

import difflib
import tomllib
from ipaddress import ip_network
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
        settings = msgspec.convert({**table, **(overrides or {})}, PoolSettings)
        for subnet in settings.subnets:
            ip_network(subnet)
    except ValueError as problem:  # msgspec's ValidationError is one
        raise BadInput(f"{path}: {problem}", "docs/reference/settings.md lists the settings and their types") from None
    for name, value in msgspec.structs.asdict(settings).items():
        if isinstance(value, int | float) and value < 0:
            raise BadInput(f"{path}: {name} = {value} is negative", f"set {name} to 0 or more, or leave it out")
    return settings


def _refuse_unknown(path: Path, table: dict[str, Any], known: list[str]) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are: {', '.join(known)}"
            raise BadInput(f"{path}: unknown setting {key!r}", hint)
