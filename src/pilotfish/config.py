"""Reads config.toml and sites.toml in PILOTFISH_HOME. The error for an unknown key names a similar known key. If there is none, it lists
all known keys."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import msgspec

from pilotfish import plugins
from pilotfish.errors import BadInput, Correction, PilotfishError, nearest
from pilotfish.model.backend_traits import ANY_OPTIONS
from pilotfish.model.quantities import DURATION_FIX, SIZE_FIX, parse_bytes, parse_seconds
from pilotfish.model.settings import MATCHING_MODES, PoolSettings
from pilotfish.model.site import CREDENTIAL_KINDS, LOCAL, Site


def home() -> Path:
    """Returns the directory of the settings, the sites and all pools: ``$PILOTFISH_HOME``. If this variable is not set:
    ``$XDG_STATE_HOME/pilotfish``. If neither variable is set: ``~/.local/state/pilotfish``."""
    given = os.environ.get("PILOTFISH_HOME")
    if given:
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "pilotfish"


@cache
def print_note(text: str) -> None:
    """Prints a note on standard error. Prints each note only once."""
    print(f"note: {text}", file=sys.stderr)


def read_settings(path: Path, overrides: dict[str, Any] | None = None, note: Callable[[str], None] = print_note) -> PoolSettings:
    """Reads the table ``[pool]`` of a file. If the file does not exist, all settings have their default values. Values in ``overrides``
    replace values of the file."""
    content = read_tables(path)
    for key in content:
        if key in PoolSettings.__struct_fields__:
            raise BadInput(f"{path}: the setting {_shown(key)} is in no table", f"put it under [pool]: write a line [pool] before {key}")
    _refuse_unknown(path, content, ["pool"])
    table = content.get("pool", {})
    if "workers" in table:
        if "local_cores" in table:
            raise BadInput(f"{path}: workers is now local_cores, and both are set", "remove workers")
        note(f"{path}: workers is now local_cores")
        table["local_cores"] = table.pop("workers")
    _refuse_unknown(path, table, list(PoolSettings.__struct_fields__))
    for key in ("cache_size", "max_output"):
        if key in table:
            table[key] = parse_bytes(table[key], f"{path}: {key}")
    try:
        settings = msgspec.convert({**table, **(overrides or {})}, PoolSettings)
        for subnet in settings.subnets:
            ip_network(subnet)
    except ValueError as problem:  # ValidationError of msgspec is a ValueError
        raise BadInput(f"{path}: {problem}", "docs/reference/settings.md lists the settings and their types") from None
    for name, value in msgspec.structs.asdict(settings).items():
        if isinstance(value, int | float) and value < 0:
            raise BadInput(f"{path}: {name} = {value} is negative", f"set {name} to 0 or more, or leave it out")
    _refuse_unknown_name(path, "policy", settings.policy, plugins.names("policies"))
    _refuse_unknown_name(path, "factory", settings.factory, plugins.names("factories"))
    _refuse_unknown_name(path, "matching", settings.matching, MATCHING_MODES)
    return settings


def _refuse_unknown_name(path: Path, key: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise BadInput(f"{path}: {key} = {_shown(name)} does not exist", _nearest_or_all(name, known))


def _refuse_unknown(path: Path, table: dict[str, Any], known: list[str], what: str = "") -> None:
    for key in table:
        if key not in known:
            raise BadInput(f"{path}: unknown setting {_shown(key)}{what}", _nearest_or_all(key, known))


def read_tables(path: Path) -> dict[str, Any]:
    """Reads all tables of a file. Checks only that the file is TOML."""
    return parse_toml(path, read_toml(path))


def read_toml(path: Path) -> str:
    """Returns the text of a file. Returns an empty text if the file does not exist."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as problem:
        raise _not_toml(path, problem) from None
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}", f"look what it is: ls -ld {path}") from None


def parse_toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as problem:  # a number with too many digits raises ValueError
        raise _not_toml(path, problem) from None


def _not_toml(path: Path, problem: Exception) -> BadInput:
    return BadInput(f"{path} is not valid TOML: {problem}", f"correct it, or move it away: mv {path} {path}.bad")


# --- sites --------------------------------------------------------------------------------------------------------------------------

QUANTITIES = {"walltime": "walltime_s", "idle": "idle_s", "period": "period_s", "poll": "poll_s"}
"""Keys whose values are durations such as "2h". Each key is mapped to the field of Site that gets its value."""
SITE_KEYS = [next((key for key, name in QUANTITIES.items() if name == field), field) for field in Site.__struct_fields__]
MAX_COUNT = 1_000_000
MAX_BYTES = 10**15
MAX_SECONDS = 10 * 365 * 86400.0
MIN_WALLTIME_S = 30.0
MIN_PERIOD_S = 1.0
SIZES = ("memory", "cache_size")
"""Keys with sizes such as "2G"."""
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
VALUE_TYPES = {key: get_origin(hint) or hint for key, hint in zip(SITE_KEYS, get_type_hints(Site).values(), strict=True)}
"""The type of each key's value: bool, int, float, str, tuple or dict."""
MAX_SHOWN = 80
HIDDEN = "..."
"""Errors show this text instead of the value of an environment variable, because the value can be a secret."""


class SiteTable(dict[str, Site]):
    """Maps names to sites. It also contains the names of sites with an invalid description. For such a name, ``table[name]`` raises the
    error."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: dict[str, PilotfishError] = {}

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.bad

    def __missing__(self, name: str) -> Site:
        raise self.bad.get(name) or KeyError(name)


def read_sites(path: Path) -> SiteTable:
    """Reads all sites of ``sites.toml``. Each site is one table of the file. An error in one site does not affect the other sites."""
    sites = SiteTable()
    for name, table in read_tables(path).items():
        try:
            sites[name] = make_site(name, table, str(path))
        except PilotfishError as problem:
            sites.bad[name] = problem
    return sites


def make_site(name: str, table: Any, where: str) -> Site:
    """Checks the description of a site, from a file or the command line, and returns the site."""
    if not SITE_NAME.fullmatch(name) or name == LOCAL:
        raise BadInput(f"{where}: {name!r} cannot be the name of a site", "use letters, digits, dots and dashes; local is this machine")
    if not isinstance(table, dict):
        raise BadInput(f"{where}: {name} = {_shown(table)} is not a site", f"write a table: [{name}]")
    _refuse_unknown(Path(where), table, SITE_KEYS, f" of site {name}")
    backend = table.get("backend")
    if not isinstance(backend, str) or backend not in plugins.names("backends"):
        raise BadInput(f"{where}: site {name}: there is no backend {_shown(backend)}", _nearest_or_all(backend, plugins.names("backends")))
    place = f"{where}: site {name}: "
    values: dict[str, Any] = {key: _read_value(place, key, value) for key, value in table.items()}
    for key, value in values.items():
        _check_rules(place, key, table[key], value)
    site = msgspec.convert({QUANTITIES.get(key, key): value for key, value in values.items()}, Site)
    for what, fix in _contradictions(site):
        raise BadInput(place + what, fix)
    return site


def _nearest_or_all(given: object, names: Sequence[str]) -> str:
    near = nearest(given[:MAX_SHOWN], names) if isinstance(given, str) else ""
    return Correction(f"did you mean {near}?", given, near) if near else f"known are: {', '.join(names)}"


def _shown(value: object, key: str = "") -> str:
    """Returns the value as one short line for an error message. Hides the value of the key ``environment``."""
    if key == "environment":
        return HIDDEN
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # the number has too many digits, or the tables are too deeply nested
        return "(too much to show)"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def _part(key: str, name: str) -> str:
    return f"{key}.{_shown(name)[1:-1]}"


# --- types --------------------------------------------------------------------------------------------------------------------------

TYPE_FIXES: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "write true or false"),
    int: ((int,), "write a whole number, without quotes, such as {key} = 8"),
    float: ((int, float), "write a number, without quotes, such as {key} = 8"),
    str: ((str,), 'write a text in quotes: {key} = "..."'),
    tuple: ((list, tuple), 'write a list of texts: {key} = ["...", "..."]'),
    dict: ((dict,), 'write a table of texts: {key} = {{ NAME = "..." }}'),
}
"""Maps the type of a Site field to the allowed types of its value in TOML, and to the fix for a value of any other type."""


def read_quantity(key: str, value: Any, field: str) -> Any:
    """Parses a size into bytes or a duration into seconds, as ``key`` requires. ``field``: name of the value in error messages."""
    try:
        return parse_bytes(value, field) if key in SIZES else parse_seconds(value, field)
    except (ValueError, OverflowError):
        raise BadInput(f"{field} = {_shown(value)} is too large", SIZE_FIX if key in SIZES else DURATION_FIX) from None


def _read_value(place: str, key: str, value: Any) -> Any:
    kind = VALUE_TYPES[key]
    if key in QUANTITIES or key in SIZES:
        if type(value) not in (str, int, float) or len(_shown(value)) > MAX_SHOWN:
            fix = SIZE_FIX if key in SIZES else DURATION_FIX
            raise BadInput(f"{place}{key} = {_shown(value)} is not a {'size' if key in SIZES else 'duration'}", fix)
        return read_quantity(key, value, place + key)
    types, fix = TYPE_FIXES[kind]
    if type(value) not in types:
        raise BadInput(f"{place}{key} = {_shown(value, key)}", fix.format(key=key))
    for label, text in _texts(key, value) if kind in (tuple, dict) else ():
        if type(text) is not str:
            raise BadInput(f"{place}{label} = {_shown(text, key)} is not a text", TYPE_FIXES[str][1].format(key=label))
    return tuple(value) if kind is tuple else value


def _texts(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields pairs of a name and an item of ``value``. Error messages show the name, such as ``tags.NAME`` for an item of ``tags``."""
    if isinstance(value, dict):
        yield from ((_part(key, name), text) for name, text in value.items())
    else:
        yield from ((key, text) for text in (value if isinstance(value, list | tuple) else [value]))


# --- rules --------------------------------------------------------------------------------------------------------------------------

COUNTS = "max_pilots max_queued max_cores cores nodes gpus commands_at_once submissions_per_minute transfers"
LINES = "queue account directives environment credentials folder scratch cache storage python setup tags"
Rule = tuple[str, Callable[[Any], object], str, str]
NUMBER_RULES: tuple[Rule, ...] = (
    (f"{COUNTS} memory cache_size", lambda number: number >= 0, " is negative", "set {key} to 0 or more, or leave it out"),
    ("max_pilots nodes commands_at_once transfers", lambda number: number >= 1, "", "set {key} to 1 or more, or leave it out"),
    (COUNTS, lambda number: number <= MAX_COUNT, " is too much", f"choose a number up to {MAX_COUNT}"),
    ("memory cache_size", lambda size: size <= MAX_BYTES, " is too much", f"choose at most {MAX_BYTES} bytes"),
    (" ".join(QUANTITIES), lambda seconds: seconds <= MAX_SECONDS, " is too long", "choose at most 10 years"),
    ("walltime", lambda seconds: seconds == 0 or seconds >= MIN_WALLTIME_S, "", f"a pilot needs {MIN_WALLTIME_S:g} s to be of use"),
    ("period", lambda seconds: seconds >= MIN_PERIOD_S, " is too often", f"30s is polite; the least is {MIN_PERIOD_S:g}s"),
    ("poll", lambda seconds: seconds == 0 or seconds >= MIN_PERIOD_S, " is too often", f"choose {MIN_PERIOD_S:g}s or more, or 0"),
)
"""A rule has keys, a condition for their values, and the message and the fix for a value that breaks the rule. NaN breaks every rule."""
TEXT_RULES: tuple[Rule, ...] = (
    (LINES, re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*").fullmatch, " is not one line", "leave newlines and control characters out"),
    (
        "via hosts address",
        re.compile(r"(?!-|.*@-)[^\s\x00-\x1f\x7f'\"`;&<>|(){}$*?!#]+").fullmatch,
        " is not a machine",
        "name it as for ssh, such as me@login.example.org",
    ),
    ("queue account", re.compile(r"[^\s-]\S*").fullmatch, " is not a name", "write one word; more is for directives"),
    ("directives", lambda text: not text.startswith("#"), "", "leave out the # and the word after it: they are put there"),
    ("folder", lambda text: text.strip("/. "), "", "name a folder of your own, such as ~/.pilotfish"),
    ("python scratch folder cache storage", lambda text: not text.startswith("-"), " is not a path", "begin it with / or ~"),
    ("reach", ("auto", "direct", "tunnel").__contains__, "", "known are: auto, direct, tunnel"),
    (
        "credentials",
        lambda text: text.partition(":")[0] in CREDENTIAL_KINDS,
        " is of no kind that can be watched",
        f"known are: {', '.join(CREDENTIAL_KINDS)}; a file follows after a colon, as in x509:/tmp/x509up_u1000",
    ),
    ("credentials", re.compile(r"(?!ssh-certificate:?$).*").fullmatch, " names no file", "ssh-certificate:~/.ssh/id_ed25519-cert.pub"),
)
NAME_RULES: tuple[Rule, ...] = (
    ("environment", re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch, " is not a variable", "use letters, digits and underscores"),
    ("tags", re.compile(r"[\w.-]+").fullmatch, " is not the name of a tag", "use letters, digits, dots and dashes"),
    (
        "tags",
        lambda name: name != "site",
        " has a meaning of its own",
        "name it otherwise; a run chooses sites with: pilotfish run --site NAME",
    ),
)


def _check_rules(place: str, key: str, written: Any, value: Any) -> None:
    """Checks one value against the rules. ``written``: the value as the user wrote it. ``value``: the parsed value."""

    def check(rules: Iterable[Rule], label: str, tested: Any, shown: str) -> None:
        for keys, holds, verdict, fix in rules:
            if key in keys.split() and not holds(tested):
                raise BadInput(f"{place}{label}{shown}{verdict}", fix.format(key=key))

    if isinstance(value, int | float):
        check(NUMBER_RULES, key, value, f" = {_shown(written)}")
    elif value or key == "folder":  # for all other keys, an empty text is allowed
        for name in value if isinstance(value, dict) else ():
            check(NAME_RULES, _part(key, name), name, "")
        for label, text in _texts(key, value):
            check(TEXT_RULES, label, text, f" = {_shown(text, key)}")


_PLAIN = Site(backend="")
IGNORED = {"nodes": "gives a pilot one node", "queue": "has no queues", "account": "knows no accounts", "directives": "takes no directives"}


def _contradictions(site: Site) -> Iterator[tuple[str, str]]:
    """Yields a message and a fix for each contradiction between keys of a site, or between a key and the backend."""
    kind, backend = plugins.traits(site.backend), site.backend
    if site.hosts and backend != "ssh":
        yield "hosts are for the backend ssh", f"for {backend}, name its login node: via = {site.hosts[0]!r}"
    for key in kind.ignores:
        value = getattr(site, key)
        if value != getattr(_PLAIN, key):
            yield f"{key} = {_shown(value)}", f"{backend} {IGNORED.get(key, f'does not use {key}')}: leave {key} out"
    known = {**kind.options, **ANY_OPTIONS}
    for name, text in site.options.items():
        if name not in known:
            yield f"{_part('options', name)} = {_shown(text)} is no option of {backend}", _nearest_or_all(name, list(known))
        elif not known[name][0](text):
            yield f"options.{name} = {_shown(text)}", f"write {known[name][1]}"
    for name in kind.needs:
        if name not in site.options:
            yield f"{backend} needs options.{name}", f'add options = {{ {name} = "..." }}: {known[name][1]}; or --option {name}=...'
    for line in site.directives if kind.multiplies else ():
        if re.search(kind.multiplies, line):
            yield f"directives = {_shown(line)} changes how many jobs there are", "leave it out: max_pilots says how many there may be"
    if site.reach == "tunnel" and not (site.via or site.hosts):
        yield "reach = 'tunnel' leads nowhere", "name the login node, via, or leave reach out"
    if 0 < site.max_cores < site.cores * site.nodes:
        yield f"max_cores = {site.max_cores} is less than one pilot has", f"set it to {site.cores * site.nodes} or more"
