"""Parses the KEY=VALUE arguments of ``pilotfish site set``: ``cores=16``, ``walltime=2h``, ``environment.SLURM_CONF=/etc/slurm.conf``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pilotfish.client.descriptions.site_selection import unknown_site
from pilotfish.config import HIDDEN, QUANTITIES, SITE_KEYS, SIZES, VALUE_TYPES, read_quantity, read_tables
from pilotfish.errors import BadInput, Correction, did_you_mean
from pilotfish.model.quantities import show_bytes, show_seconds
from pilotfish.model.site import Site

Table = dict[str, Any]
YES, NO = ("true", "yes", "on"), ("false", "no", "off")
COMMA_LISTS = ("hosts",)
"""Keys whose value is a list that users can write with commas. This is possible because no element of such a list contains a comma."""


def table_of(name: str, path: Path) -> Any:
    """Return the table of a site in ``sites.toml`` without a check. The returned value can be invalid, or not even a table."""
    tables = read_tables(path)
    if name not in tables:
        raise unknown_site(name, list(tables))
    return tables[name]


def apply_changes(name: str, table: Table, assignments: Iterable[str]) -> Table:
    """Return the table of a site after all ``KEY=VALUE`` changes. An empty value restores the default."""
    after = dict(table)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key, part = key.strip().partition(".")[::2]
        if not equals or not key:
            raise BadInput(f"{assignment!r} is not KEY=VALUE", f"write it like this: pilotfish site set {name} max_pilots=8")
        if key in after and not part and not text:
            # Unknown keys can be removed, too.
            del after[key]
            continue
        key = key.replace("-", "_")
        key = "period" if key == "poll_interval" else key  # the option of site add is named --poll-interval
        if key not in SITE_KEYS:
            hint = did_you_mean(key, SITE_KEYS) or f"Known are: {', '.join(SITE_KEYS)}"
            raise BadInput(f"site {name}: there is no key {key!r}", hint)
        if part and VALUE_TYPES[key] is not dict:
            raise BadInput(f"site {name}: {key} has no parts; {key}.{part} cannot be set", f"pilotfish site set {name} {key}=VALUE")
        value = _with_part(after.get(key, {}), part, text) if part else read_value(name, key, text)
        if value in ("", None, {}, []):
            after.pop(key, None)
        else:
            after[key] = value
    return after


def _with_part(before: Any, part: str, text: str) -> Table:
    rest = {name: value for name, value in before.items() if name != part} if isinstance(before, dict) else {}
    return {**rest, part: text} if text else rest


def read_value(name: str, key: str, text: str) -> Any:
    """Convert ``text`` to the type that the key requires. Sizes and durations stay as the user typed them."""
    kind, field = VALUE_TYPES[key], f"site {name}: {'poll_interval' if key == 'period' else key}"
    if not text:
        return None
    if key in QUANTITIES or key in SIZES:
        read_quantity(key, text, field)
        return _number(text, text)
    if kind in (int, float):
        value = _number(text, None)
        if value is None or (kind is int and not isinstance(value, int)):
            raise BadInput(
                f"{field} = {text!r} is not a {'whole number' if kind is int else 'number'}",
                Correction(f"write it like {key}=8", text, "8"),
            )
        return value
    if kind is bool:
        if text.lower() not in YES + NO:
            raise BadInput(f"{field} = {text!r} is neither true nor false", f"pilotfish site set {name} {key}=true")
        return text.lower() in YES
    return _read_list_or_table(field, kind, key, text) if kind in (tuple, dict) else text


def _number(text: str, otherwise: Any) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return otherwise


def _read_list_or_table(field: str, kind: Any, key: str, text: str) -> Any:
    """Read a list or table that is written in TOML. A list can be written without brackets: ``a`` means ["a"]. For some keys, ``a,b`` means
    ["a", "b"]."""
    if text[0] in "[{":
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError) as problem:
            raise BadInput(f"{field} = {text!r} is not TOML: {problem}", f"write it like {_example(kind, key)}") from None
    if kind is dict:
        raise BadInput(f"{field} = {text!r} is not a table", f"write it like {_example(kind, key)}")
    return [value for value in text.split(",") if value] if key in COMMA_LISTS else [text]


def _example(kind: Any, key: str) -> str:
    return f"{key}.NAME=VALUE" if kind is dict else f'\'{key}=["one", "two"]\''


def pairs(option: str, assignments: Iterable[str]) -> dict[str, str]:
    """Read the ``K=V`` pairs of an option that can be repeated."""
    found: dict[str, str] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not (key and equals):
            raise BadInput(f"{option} {assignment!r} is not NAME=VALUE", f"write it like {option} NAME=VALUE")
        found[key] = value
    return found


def without_values(site: Site) -> Site:
    """Return the site without the values of its environment variables. These values can be secrets, and users copy printed text."""
    return msgspec.structs.replace(site, environment=dict.fromkeys(site.environment, HIDDEN))


def shown(site: Site) -> dict[str, object]:
    """Return all keys of the site with their values as text."""
    return {key: _shown_value(key, getattr(without_values(site), QUANTITIES.get(key, key))) for key in SITE_KEYS}


def _shown_value(key: str, value: Any) -> object:
    if key in QUANTITIES:
        return show_seconds(value) if value else "0"
    if key in SIZES:
        return show_bytes(value) if value else "0"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items()) or "-"
    if isinstance(value, tuple):
        return ", ".join(value) or "-"
    return value if value != "" else "-"


def as_data(name: str, site: Site) -> Table:
    """Return a site as data for programs: durations in seconds, sizes in bytes."""
    data: Table = msgspec.to_builtins(without_values(site))
    return {"site": name, **data}
