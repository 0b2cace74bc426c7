"""Loads policies, matchers, factories, backends, applications, sweep sources and commands from entry points.

Each kind is a group of entry points, such as ``pilotfish.policies``. The plug-ins of Pilotfish itself are declared here and in
``pyproject.toml``. A test compares the two declarations. Because of the declaration here, Pilotfish also runs from a source checkout whose
package metadata is missing or outdated.

This module reads the files ``entry_points.txt`` itself, because the import of ``importlib.metadata`` is slower than all of ``pilotfish
--help``.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotfish.errors import BadInput, PilotfishError, did_you_mean

if TYPE_CHECKING:
    from pilotfish.model.backend_traits import BackendTraits

OWN = "pilotfish"
"""Name of the distribution that contains Pilotfish and the plug-ins declared here."""
SINGULAR = {
    "policies": "policy",
    "matchers": "matcher",
    "factories": "factory",
    "backends": "backend",
    "applications": "application",
    "sweeps": "sweep source",
    "commands": "command",
}
"""Maps the plural name of each kind of plug-in to the singular name."""


class BuiltInCommand(NamedTuple):
    """A command of Pilotfish. ``pool``: whether the command has the option ``--pool``; for a group of commands, the names of the
    subcommands that have this option."""

    target: str
    """Module and attribute in ``pilotfish.cli``."""
    text: str
    """First line of the command's help. A test compares it with the help itself."""
    pool: bool | tuple[str, ...] = False


SECTIONS: dict[str, dict[str, BuiltInCommand]] = {
    "Run": {
        "run": BuiltInCommand("run_commands.run_command:run", "Run a command, sweep, task list, run file or DAGMan file.", True),
        "attach": BuiltInCommand("run_commands.attach_command:attach", "Follow a run until it finishes, then copy its output files.", True),
        "results": BuiltInCommand("commands.results_command:results", "Show task results; save output files and values.", True),
        "rerun": BuiltInCommand("run_commands.rerun_command:rerun", "Run failed and cancelled tasks of a run again.", True),
    },
    "Inspect": {
        "status": BuiltInCommand("commands.status_commands:status", "Show runs, workers and warnings.", True),
        "pools": BuiltInCommand("commands.status_commands:pools", "List pools and their masters."),
        "tasks": BuiltInCommand("commands.status_commands:tasks", "List the tasks of a run.", True),
        "workers": BuiltInCommand("commands.status_commands:workers", "List workers and what they run.", True),
        "pilots": BuiltInCommand("site_commands.pilots_command:pilots", "List pilots; request more with add.", True),
        "sites": BuiltInCommand("site_commands.sites_command:sites", "Show sites, their pilots and recent failures.", True),
        "data": BuiltInCommand("commands.data_command:data", "Show files, where they are, and transfers.", True),
        "why": BuiltInCommand("commands.why_command:why", "Explain why a task, run, worker, pilot or site is in its state.", True),
        "report": BuiltInCommand("commands.report_command:report", "Show where the time of a run went.", True),
        "logs": BuiltInCommand("commands.log_commands:logs", "Print the output of a task.", True),
        "tail": BuiltInCommand("commands.log_commands:tail", "Print the last lines of a task's output, also while it runs.", True),
    },
    "Control": {
        "cancel": BuiltInCommand("commands.control_commands:cancel", "Cancel a run or some of its tasks.", True),
        "pause": BuiltInCommand("commands.control_commands:pause", "Start no more tasks of a run; running tasks continue.", True),
        "resume": BuiltInCommand("commands.control_commands:resume", "Resume a paused run.", True),
        "set": BuiltInCommand("commands.control_commands:set_options", "Change the priority, share, deadline or sites of a run.", True),
        "forget": BuiltInCommand("commands.control_commands:forget", "Delete finished runs and their stored results.", True),
        "stop": BuiltInCommand("commands.stop_command:stop", "Stop the master and its workers; verify that nothing is left.", True),
        "site": BuiltInCommand("site_commands.site_command:site", "Add, change and test sites.", ("exec", "log", "login", "show", "test")),
    },
    "Predict": {
        "forecasts": BuiltInCommand(
            "predictions.forecasts_command:forecasts", "Show learned task times, link speeds and queue waits.", True
        ),
        "predict": BuiltInCommand("predictions.predict_command:predict", "Estimate when a run finishes and where the time goes.", True),
        "whatif": BuiltInCommand(
            "predictions.whatif_command:whatif", "Estimate the finish time with more workers, other sites or another policy.", True
        ),
        "replay": BuiltInCommand("predictions.replay_command:replay", "Simulate a finished run again under another policy.", True),
        "simulate": BuiltInCommand("predictions.simulate_command:simulate", "Compare policies by simulation."),
    },
    "Maintain": {
        "cache": BuiltInCommand("commands.cache_command:cache", "List or forget results that later runs can reuse.", ("forget", "list")),
        "doctor": BuiltInCommand("commands.doctor_commands:doctor", "Check this installation or a site; suggest fixes.", True),
        "gc": BuiltInCommand("commands.doctor_commands:gc", "List and remove leftovers of dead masters."),
        "bench": BuiltInCommand("commands.bench_command:bench", "Benchmark this machine for ten seconds."),
        "demo": BuiltInCommand("commands.demo_command:demo", "Run a 30-second demo that kills processes on purpose."),
        "explain": BuiltInCommand("about_commands:explain_code", "Explain an error code or failure cause."),
        "completion": BuiltInCommand("about_commands:completion", "Print the shell completion script."),
        "help": BuiltInCommand("about_commands:help_of", "Show the help of a command."),
        "version": BuiltInCommand("about_commands:version", "Show the version."),
    },
}
"""The sections of the help, and the commands of Pilotfish in each section. A command of a plug-in is in one of these sections, or in the
section More."""
_SWEEPS, _PLANNED = "pilotfish.applications.sweeps.tables", "pilotfish.policies.planning.planned_matcher"
BUILT_IN: dict[str, dict[str, str]] = {
    "policies": {
        "workqueue": "pilotfish.policies.dispatcher:workqueue",
        "stealing": "pilotfish.policies.dispatcher:stealing",
    },
    "matchers": {
        "near": "pilotfish.policies.matchers:LocalityMatcher",
        "min-min": f"{_PLANNED}:min_min",
        "max-min": f"{_PLANNED}:max_min",
        "sufferage": f"{_PLANNED}:sufferage",
        "xsufferage": f"{_PLANNED}:xsufferage",
        "auto": "pilotfish.policies.planning.automatic_matcher:AutomaticMatcher",
    },
    "factories": {
        "demand": "pilotfish.factories.on_demand:make_demand",
        "simple": "pilotfish.factories.simple:make_simple",
        "heuristic": "pilotfish.factories.heuristic:make_heuristic",
        "hybrid": "pilotfish.factories.heuristic:make_hybrid",
        "swift": "pilotfish.factories.swift:make_swift",
    },
    "backends": {
        "ssh": "pilotfish.backends.ssh:SshBackend",
        "slurm": "pilotfish.backends.slurm:SlurmBackend",
        "sge": "pilotfish.backends.sge:SgeBackend",
        "pbs": "pilotfish.backends.pbs:PbsBackend",
        "lsf": "pilotfish.backends.lsf:LsfBackend",
        "htcondor": "pilotfish.backends.htcondor:HtcondorBackend",
        "kubernetes": "pilotfish.backends.kubernetes:KubernetesBackend",
        "arc": "pilotfish.backends.arc:ArcBackend",
    },
    "applications": {
        "py": "pilotfish.applications.run_file:load",
        "dag": "pilotfish.applications.dagman.dag_manager:load_dag",
    },
    "sweeps": {
        "csv": f"{_SWEEPS}:read_csv",
        "tsv": f"{_SWEEPS}:read_csv",
        "json": f"{_SWEEPS}:read_json",
    },
    "commands": {name: f"pilotfish.cli.{command.target}" for section in SECTIONS.values() for name, command in section.items()},
}
_DISPATCHER = "pilotfish.policies.dispatcher:Dispatcher"


class PluginBroken(PilotfishError):
    """An installed plug-in cannot be imported, or its object is not of the type that its kind requires."""

    code = "P1200"


class DuplicatePlugin(PilotfishError):
    """Two or more plug-ins of the same kind have the same name."""

    code = "P1201"


class Plugin(NamedTuple):
    """One entry point. ``target`` has the form ``module:attribute``."""

    kind: str
    name: str
    target: str
    distribution: str = OWN

    def __str__(self) -> str:
        return f"{self.name} = {self.target} of {self.distribution}"


def names(kind: str) -> tuple[str, ...]:
    """Returns the names of all plug-ins of a kind: first those of Pilotfish, then those of other distributions in sorted order."""
    return tuple(_found(kind))


def find(kind: str, name: str) -> Plugin:
    """Returns the plug-in with this name. Raises BadInput if no plug-in has the name, and DuplicatePlugin if several plug-ins have it."""
    plugins = _found(kind).get(name)
    if plugins is None:
        raise BadInput(f"there is no {SINGULAR[kind]} {name!r}", did_you_mean(name, names(kind)) or f"known are: {', '.join(names(kind))}")
    if len(plugins) > 1:
        listed = " and ".join(map(str, plugins))
        raise DuplicatePlugin(
            f"{len(plugins)} plug-ins are called {SINGULAR[kind]} {name!r}: {listed}",
            f"keep one of them: pip uninstall {plugins[-1].distribution}",
        )
    return plugins[0]


def load(kind: str, name: str) -> Any:
    """Imports and returns the object of a plug-in. The signature of the object depends on the kind of plug-in: see docs/how-to/*-plugin.md.
    If the caller asks for a policy and the plug-in is a matcher, returns a function that creates a dispatcher with this matcher."""
    plugin = find(kind, name)
    try:
        found = _import(plugin.target)
    except (Exception, SystemExit) as error:
        if plugin.distribution == OWN:
            raise
        raise PluginBroken(
            f"the {SINGULAR[kind]} {name!r} cannot be loaded: {type(error).__name__}: {error}\n"
            f"entry point {name} = {plugin.target} of the distribution {plugin.distribution}",
            f"install it anew, or remove it: pip uninstall {plugin.distribution}",
        ) from error
    if plugin.kind != kind:  # the caller asks for a policy, and the plug-in is a matcher
        dispatcher = _import(_DISPATCHER)
        return lambda: dispatcher(found())
    return found


@cache
def traits(backend: str) -> BackendTraits:
    """Returns the traits of a backend. Returns UNKNOWN_TRAITS if the backend is not installed."""
    from pilotfish.model.backend_traits import UNKNOWN_TRAITS, BackendTraits

    if backend not in _found("backends"):
        return UNKNOWN_TRAITS
    found = getattr(load("backends", backend), "traits", None)
    if not isinstance(found, BackendTraits):
        plugin = find("backends", backend)
        raise PluginBroken(f"the backend {backend!r} ({plugin}) has no traits", "give its class an attribute traits = BackendTraits(...)")
    return found


def traits_if_usable(backend: str) -> BackendTraits:
    """Returns the traits of a backend, or UNKNOWN_TRAITS if the backend cannot be loaded. Pilotfish reports the error later, when it
    creates the site controller of a site with this backend."""
    from pilotfish.model.backend_traits import UNKNOWN_TRAITS

    try:
        return traits(backend)
    except PilotfishError:
        return UNKNOWN_TRAITS


def forget() -> None:
    """Clears the caches, so that installed distributions are read again."""
    _installed.cache_clear()
    _found.cache_clear()
    traits.cache_clear()


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split(".") if attribute else ():
        found = getattr(found, part)
    return found


# --- entry points -------------------------------------------------------------------------------------------------------------------

METADATA = (".dist-info", ".egg-info")
_ENTRY = re.compile(r"([^=\s#;][^=]*?)\s*=\s*([\w.]+(?::[\w.]+)?)\s*(?:\[.*\])?")


@cache
def _found(kind: str) -> dict[str, list[Plugin]]:
    """Returns the plug-ins of a kind by name. If several plug-ins have the same name, ``find`` reports the conflict.

    The policies include all matchers, because the dispatcher with a matcher is a policy.
    """
    kinds = ("policies", "matchers") if kind == "policies" else (kind,)
    found: dict[str, list[Plugin]] = {}
    for plugin in (Plugin(each, name, target) for each in kinds for name, target in BUILT_IN[each].items()):
        found.setdefault(plugin.name, []).append(plugin)
    for plugin in sorted((plugin for plugin in _installed() if plugin.kind in kinds), key=lambda plugin: (plugin.name, plugin)):
        found.setdefault(plugin.name, []).append(plugin)
    return found


@cache
def _installed() -> tuple[Plugin, ...]:
    """Returns the plug-ins of all distributions except Pilotfish. If a distribution is installed twice, only the installation that comes
    first in ``sys.path`` counts."""
    found: dict[str, list[Plugin]] = {}
    for folder in dict.fromkeys(sys.path):
        for distribution, path in _distributions(folder or os.curdir):
            if distribution != OWN and distribution not in found:
                found[distribution] = list(_entries(distribution, path))
    return tuple(plugin for plugins in found.values() for plugin in plugins)


def _distributions(folder: str) -> Iterator[tuple[str, str]]:
    """Yields the name and the metadata folder of each distribution in a folder of ``sys.path``."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(METADATA):
                    name = entry.name.rpartition(".")[0].partition("-")[0]
                    yield re.sub(r"[-_.]+", "-", name).lower(), entry.path
    except OSError:  # some entries of sys.path do not exist, or are files
        return


def _entries(distribution: str, path: str) -> Iterator[Plugin]:
    try:
        with open(os.path.join(path, "entry_points.txt"), encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:  # most distributions have no entry points
        return
    if "[pilotfish." not in text:
        return
    kind = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            kind = line.strip("[] ").removeprefix("pilotfish.")
        elif kind in SINGULAR and (entry := _ENTRY.fullmatch(line)):
            yield Plugin(kind, entry[1], entry[2], distribution)
