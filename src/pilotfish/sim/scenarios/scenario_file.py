"""Reads a scenario from a TOML file or from options. A scenario contains sites, a workload, policies and seeds. An example of a file:

policies = ["workqueue", "auto"]
seeds = 10

[[site]]
name = "far"
hosts = 16
bandwidth = "2 MB/s"

[[file]]
count = 6
size = "20 MB"

[work]
tasks = 1000
seconds = "lognormal(60, 0.5)"
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish import plugins
from pilotfish.errors import BadInput
from pilotfish.sim.scenarios.apst_sweep import apst_sites
from pilotfish.sim.scenarios.field_reader import FieldReader, nearest, shown
from pilotfish.sim.scenarios.workload_generator import SHARINGS, WORK_KEYS, FileGroup, TaskListReader, WorkloadPlan, read_work
from pilotfish.sim.workload import SimulatedSite

TABLES = ("site", "file", "work", "policies", "seeds")
SITE_KEYS = (
    *("name", "hosts", "cores", "speed", "spread", "bandwidth", "latency", "launch"),
    *("wait", "wait_spread", "walltime", "files"),
)
FILE_KEYS = ("size", "count", "shared")
DEFAULT_POLICIES = ("workqueue", "auto")
DEFAULT_SEEDS = 5
MAX_SEEDS = 10_000
MAX_HOSTS = 1_000_000
MAX_FILES = 100_000
MAX_SPREAD = 5.0
SITE_FORM = 'write it like "far 16 speed=0.5 bandwidth=2M wait=10m": name, hosts (or hosts x cores), and more if need be'
FILES_FORM = "write it like 6x20M, 20M:all or 1M:none: how many, how large, and shared by groups, by all, or by none"
_SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_HOSTS = re.compile(r"([0-9]+)(?:x([0-9]+))?")
_FILES = re.compile(r"(?:([0-9]+)x)?([0-9.]+\s*[A-Za-z]*)(?::([a-z]+))?")


@dataclass(slots=True, frozen=True)
class Scenario:
    sites: tuple[SimulatedSite, ...]
    work: WorkloadPlan
    policies: tuple[str, ...] = DEFAULT_POLICIES
    seeds: int = DEFAULT_SEEDS


@dataclass(slots=True)
class ScenarioOptions:
    """Options of the command line. They override values in the file."""

    sites: Sequence[str] = ()
    files: Sequence[str] = ()
    work: Mapping[str, Any] | None = None
    policies: Sequence[str] = ()
    seeds: int | None = None


def read_scenario(table: Mapping[str, Any], where: str, options: ScenarioOptions, read_task_list: TaskListReader) -> Scenario:
    """Reads a scenario. ``table``: the parsed file. ``where``: the name of the file and a colon, for messages. ``read_task_list``: reads a
    task list."""
    top = FieldReader(table, where, TABLES)
    work_fields = FieldReader(top.get("work", {}), f"{where}work.", WORK_KEYS).joined(FieldReader(options.work or {}, "--", WORK_KEYS))
    file_groups = _file_groups(top, where, options.files)
    work = read_work(work_fields, file_groups, read_task_list)
    digests = work.digests
    sites = [_read_short_site(text, digests) for text in options.sites] or [
        _read_site(FieldReader(one, f"{where}site {_name(one, number)}: ", SITE_KEYS), digests)
        for number, one in enumerate(_tables(top, "site"), start=1)
    ]
    if not sites and work.apst:
        sites = apst_sites(work.apst)
    if not sites:
        raise BadInput(f"{where}there is no site", 'name one: --site "here 8", or in a file [[site]] with name and hosts')
    _refuse_clashes(sites, work, where)
    seeds = top if options.seeds is None else FieldReader({"seeds": options.seeds}, "--", ("seeds",))
    return Scenario(tuple(sites), work, _policies(top, options.policies), seeds.count("seeds", DEFAULT_SEEDS, MAX_SEEDS))


def _policies(top: FieldReader, wanted: Sequence[str]) -> tuple[str, ...]:
    if wanted:
        return read_policies(wanted, "--policy")
    names = top.get("policies", list(DEFAULT_POLICIES))
    if isinstance(names, str):
        names = names.split(",")
    if not isinstance(names, list) or not names:
        raise top.refuse("policies", " is not a list of policies", 'write policies = ["workqueue", "auto"]')
    return read_policies(names, top.label("policies"))


def read_policies(names: Sequence[Any], label: str) -> tuple[str, ...]:
    """Checks names of policies and removes duplicates. The name ``all`` stands for every policy."""
    known = plugins.names("policies")
    found = [name.strip() if isinstance(name, str) else shown(name) for name in (known if list(names) == ["all"] else names)]
    for name in found:
        if name not in known:
            raise BadInput(f"{label}: there is no policy {shown(name)}", nearest(name, [*known, "all"]))
    return tuple(dict.fromkeys(found))


# --- sites ----------------------------------------------------------------------------------------------------------------------------


def _tables(top: FieldReader, key: str) -> list[Mapping[str, Any]]:
    found = top.get(key, [])
    if isinstance(found, Mapping):
        found = [found]
    if not isinstance(found, list):
        raise top.refuse(key, "", f"write a table for each: [[{key}]]")
    return found


def _name(table: object, number: int) -> str:
    return str(table.get("name", number)) if isinstance(table, Mapping) else str(number)


def _read_site(fields: FieldReader, digests: Sequence[str]) -> SimulatedSite:
    name = fields.get("name")
    if not isinstance(name, str) or not _SITE_NAME.fullmatch(name):
        raise fields.refuse("name", " cannot be the name of a site", "use letters, digits, dots and dashes")
    return SimulatedSite(
        name=name,
        hosts=fields.count("hosts", None, MAX_HOSTS),
        cores=fields.count("cores", 1, 4096),
        speed=fields.number("speed", 1.0, 1e-3, 1e3),
        spread=fields.number("spread", 0.0, 0.0, MAX_SPREAD),
        bandwidth=fields.bandwidth("bandwidth", 125e6),
        latency_s=fields.seconds("latency"),
        launch_s=fields.seconds("launch"),
        wait_s=fields.seconds("wait"),
        wait_spread=fields.number("wait_spread", 0.0, 0.0, MAX_SPREAD),
        walltime_s=fields.seconds("walltime"),
        files=_staged(fields, digests),
    )


def _staged(fields: FieldReader, digests: Sequence[str]) -> tuple[str, ...]:
    """Returns the files that are at the site from the start. The field ``files`` of the site is ``all``, or a list of numbers. The first
    file has the number 1."""
    wanted = fields.get("files", [])
    if wanted == "all":
        return tuple(digests)
    numbers = wanted if isinstance(wanted, list) else [wanted]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= len(digests):
            fix = f'write "all" or numbers of files from 1 to {len(digests)}' if digests else "the work has no files: leave it out"
            raise BadInput(f"{fields.label('files')}: there is no file {shown(number)}", fix)
    return tuple(digests[number - 1] for number in numbers)


def _read_short_site(text: str, digests: Sequence[str]) -> SimulatedSite:
    """Parses a site such as ``far 16x4 speed=0.5 bandwidth=2M``."""
    words = text.split()
    hosts = _HOSTS.fullmatch(words[1]) if len(words) > 1 else None
    if hosts is None:
        raise BadInput(f"--site {shown(text)} is not a site", SITE_FORM)
    table: dict[str, Any] = {"name": words[0], "hosts": int(hosts[1])}
    if hosts[2]:
        table["cores"] = int(hosts[2])
    for word in words[2:]:
        key, equals, value = word.partition("=")
        if not equals:
            raise BadInput(f"--site {shown(text)}: {word!r} has no value", SITE_FORM)
        parts = [_literal(part) for part in value.split(",")]
        table[key] = parts if len(parts) > 1 else parts[0]
    return _read_site(FieldReader(table, f"--site {words[0]}: ", SITE_KEYS), digests)


def _literal(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _refuse_clashes(sites: Sequence[SimulatedSite], work: WorkloadPlan, where: str) -> None:
    names = [site.name for site in sites]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"{where}two sites are called {name}", "give each a name of its own")
    widest = max(site.cores for site in sites)
    if work.max_cores > widest:
        raise BadInput(
            f"{where}a task needs {work.max_cores} cores, and no host has more than {widest}",
            f"give a site hosts of {work.max_cores} cores",
        )


# --- files ----------------------------------------------------------------------------------------------------------------------------


def _file_groups(top: FieldReader, where: str, wanted: Sequence[str]) -> tuple[FileGroup, ...]:
    if wanted:
        file_groups = [_read_short_files(text) for text in wanted]
    else:
        named = enumerate(_tables(top, "file"), start=1)
        file_groups = [_read_file(FieldReader(one, f"{where}file {number}: ", FILE_KEYS)) for number, one in named]
    return tuple(file_groups)


def _read_file(fields: FieldReader) -> FileGroup:
    if "size" not in fields:
        raise BadInput(f"{fields.label('size')} is missing", 'say how large it is: size = "20 MB"')
    return FileGroup(fields.size("size", 0), fields.count("count", 1, MAX_FILES), fields.choice("shared", "groups", SHARINGS))


def _read_short_files(text: str) -> FileGroup:
    found = _FILES.fullmatch(text.strip())
    if found is None:
        raise BadInput(f"--files {shown(text)} is not understood", FILES_FORM)
    table: dict[str, Any] = {"size": found[2], "count": int(found[1] or 1), "shared": found[3] or "groups"}
    return _read_file(FieldReader(table, "--files: ", FILE_KEYS))
