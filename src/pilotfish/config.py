"""Settings: ``config.toml`` and ``sites.toml`` in PILOTFISH_HOME. An unknown key is an error that names the nearest one."""

from __future__ import annotations

import difflib
import re
import tomllib
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgspec

from pilotfish.errors import BadInput
from pilotfish.model.quantities import parse_bytes, parse_seconds
from pilotfish.model.settings import FACTORY_NAMES, PoolSettings
from pilotfish.model.site import BACKEND_NAMES, CREDENTIAL_KINDS, LOCAL, Site


def read_settings(path: Path, overrides: dict[str, Any] | None = None) -> PoolSettings:
    """The table ``[pool]`` of the file, if there is one, with ``overrides`` on top."""
    content = _read(path)
    _refuse_unknown(path, content, ["pool"])
    table = content.get("pool", {})
    _refuse_unknown(path, table, list(PoolSettings.__struct_fields__))
    try:
        settings = msgspec.convert({**table, **(overrides or {})}, PoolSettings)
        for subnet in settings.subnets:
            ip_network(subnet)
        if settings.factory not in FACTORY_NAMES:
            raise ValueError(f"factory = {settings.factory!r}; known are {', '.join(FACTORY_NAMES)}")
    except ValueError as problem:  # msgspec's ValidationError is one
        raise BadInput(f"{path}: {problem}", "docs/reference/settings.md lists the settings and their types") from None
    for name, value in msgspec.structs.asdict(settings).items():
        if isinstance(value, int | float) and value < 0:
            raise BadInput(f"{path}: {name} = {value} is negative", f"set {name} to 0 or more, or leave it out")
    return settings


def _refuse_unknown(path: Path, table: dict[str, Any], known: list[str], what: str = "") -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are: {', '.join(known)}"
            raise BadInput(f"{path}: unknown setting {key!r}{what}", hint)


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise BadInput(f"{path} is not valid TOML: {problem}", f"correct it, or move it away: mv {path} {path}.bad") from None


# --- sites --------------------------------------------------------------------------------------------------------------------------

QUANTITIES = {"walltime": "walltime_s", "period": "period_s", "poll": "poll_s"}
"""Durations are written like "2h"; how a Site calls them."""
SITE_KEYS = [next((key for key, name in QUANTITIES.items() if name == field), field) for field in Site.__struct_fields__]
MOST_COUNT = 1_000_000
MOST_BYTES = 10**15
MOST_SECONDS = 10 * 365 * 86400.0
LEAST_WALLTIME_S = 30.0
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")


def read_sites(path: Path) -> dict[str, Site]:
    """All sites of ``sites.toml``, one table each."""
    return {name: make_site(name, table, str(path)) for name, table in _read(path).items()}


def make_site(name: str, table: Any, where: str) -> Site:
    """A site from what a person wrote, in a file or on the command line."""
    if not SITE_NAME.fullmatch(name) or name == LOCAL:
        raise BadInput(f"{where}: {name!r} cannot be the name of a site", "use letters, digits, dots and dashes; local is this machine")
    if not isinstance(table, dict):
        raise BadInput(f"{where}: {name} = {table!r} is not a site", f"write a table: [{name}]")
    _refuse_unknown(Path(where), table, SITE_KEYS, f" of site {name}")
    values = dict(table)
    if values.get("backend") not in BACKEND_NAMES:
        near = difflib.get_close_matches(str(values.get("backend")), BACKEND_NAMES, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are: {', '.join(BACKEND_NAMES)}"
        raise BadInput(f"{where}: site {name}: there is no backend {values.get('backend')!r}", hint)
    for key, field in QUANTITIES.items():
        if key in values:
            values[field] = parse_seconds(values.pop(key), f"site {name}: {key}")
    if "memory" in values:
        values["memory"] = parse_bytes(values["memory"], f"site {name}: memory")
    try:
        site = msgspec.convert(values, Site)
    except ValueError as problem:
        raise BadInput(f"{where}: site {name}: {problem}", "docs/reference/sites.md lists the keys and their types") from None
    _refuse_nonsense(name, site, where)
    return site


def _refuse_nonsense(name: str, site: Site, where: str) -> None:
    for field in ("max_pilots", "nodes", "commands_at_once"):
        if getattr(site, field) < 1:
            raise BadInput(f"{where}: site {name}: {field} = {getattr(site, field)}", f"set {field} to 1 or more, or leave it out")
    for field in ("max_queued", "max_cores", "cores", "memory", "gpus", "submissions_per_minute"):
        if getattr(site, field) < 0:
            raise BadInput(
                f"{where}: site {name}: {field} = {getattr(site, field)} is negative", f"set {field} to 0 or more, or leave it out"
            )
    for field in ("max_pilots", "max_queued", "max_cores", "cores", "nodes", "gpus", "commands_at_once", "submissions_per_minute"):
        if not getattr(site, field) <= MOST_COUNT:
            raise BadInput(f"{where}: site {name}: {field} = {getattr(site, field)}", f"choose a number up to {MOST_COUNT}")
    if site.memory > MOST_BYTES:
        raise BadInput(f"{where}: site {name}: memory = {site.memory} bytes", f"choose at most {MOST_BYTES} bytes")
    for key, field in QUANTITIES.items():
        if not getattr(site, field) <= MOST_SECONDS:
            raise BadInput(f"{where}: site {name}: {key} = {getattr(site, field):g} s", "choose at most 10 years")
    if 0 < site.walltime_s < LEAST_WALLTIME_S:
        raise BadInput(f"{where}: site {name}: walltime = {site.walltime_s:g} s", f"a pilot needs {LEAST_WALLTIME_S:g} s to be of use")
    if not site.folder.strip("/. "):
        raise BadInput(f"{where}: site {name}: folder = {site.folder!r}", "name a folder of your own, such as ~/.pilotfish")
    if site.period_s <= 0:
        raise BadInput(f"{where}: site {name}: period = {site.period_s:g} s", "its queue must be looked at now and then: 30s is polite")
    if site.reach not in ("auto", "direct", "tunnel"):
        raise BadInput(f"{where}: site {name}: reach = {site.reach!r}", "known are: auto, direct, tunnel")
    for credential in site.credentials:
        kind, _, path = credential.partition(":")
        if kind not in CREDENTIAL_KINDS or "\n" in path or "\0" in path:
            known = f"known are: {', '.join(CREDENTIAL_KINDS)}; a file follows after a colon, as in x509:/tmp/x509up_u1000"
            raise BadInput(f"{where}: site {name}: credentials: {credential!r} is of no kind that can be watched", known)
        if kind == "ssh-certificate" and not path:
            raise BadInput(f"{where}: site {name}: credentials: {credential!r} names no file", "ssh-certificate:~/.ssh/id_ed25519-cert.pub")
    if site.hosts and site.backend != "ssh":
        raise BadInput(
            f"{where}: site {name}: hosts are for the backend ssh", f"for {site.backend}, name its login node: via = {site.hosts[0]!r}"
        )
