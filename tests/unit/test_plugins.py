"""Plug-ins: what Pilotfish declares, what others install, and what is said of one that is broken."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pilotfish import plugins
from pilotfish.config import make_site, read_settings, read_sites
from pilotfish.errors import BadInput
from pilotfish.model.backend_traits import UNKNOWN_TRAITS, BackendTraits
from pilotfish.policies.dispatcher import Dispatcher
from tests.unit.conftest import Install

ROOT = Path(__file__).parents[2]


def test_the_project_declares_the_plug_ins_that_it_has() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared == {f"pilotfish.{kind}": entries for kind, entries in plugins.BUILT_IN.items()}


@pytest.mark.parametrize("kind", plugins.SINGULAR)
def test_everything_that_is_declared_can_be_loaded(kind: str) -> None:
    for name in plugins.BUILT_IN[kind]:
        assert callable(plugins.load(kind, name)), name


def test_a_matcher_is_a_policy_too() -> None:
    assert plugins.names("policies") == (*plugins.BUILT_IN["policies"], *plugins.BUILT_IN["matchers"])
    policy = plugins.load("policies", "near")()
    assert isinstance(policy, Dispatcher)
    assert isinstance(policy.matcher, plugins.load("matchers", "near"))


def test_a_plug_in_of_another_distribution_is_found_and_imported_only_when_it_is_loaded(install: Install) -> None:
    install("my-plugin", "class Mine: pass\n", policies={"mine": "my_plugin:Mine"}, matchers={"like-it": "my_plugin:Mine"})
    assert plugins.names("policies")[-2:] == ("like-it", "mine")
    assert "my_plugin" not in sys.modules
    assert plugins.load("policies", "mine").__name__ == "Mine"
    assert plugins.find("policies", "mine").distribution == "my-plugin"
    assert isinstance(plugins.load("policies", "like-it")(), Dispatcher)
    del sys.modules["my_plugin"]


def test_the_plug_ins_that_are_found_are_those_of_the_standard_library(install: Install) -> None:
    from importlib.metadata import entry_points

    install("found-too", factories={"a": "found_too:A", "b.c": "found_too:B.c"}, commands={"d-e": "found_too:D [extra]"})
    for kind in plugins.SINGULAR:
        theirs = {entry.name for entry in entry_points(group=f"pilotfish.{kind}") if entry.dist and entry.dist.name != "pilotfish"}
        ours = {plugin.name for plugin in plugins._installed() if plugin.kind == kind}
        assert ours == theirs, kind
    assert plugins.find("commands", "d-e").target == "found_too:D"


def test_stale_metadata_of_pilotfish_itself_does_no_harm(install: Install) -> None:
    install("pilotfish_", "", policies={"gone": "pilotfish.gone:Gone"})
    folder = Path(sys.path[0])
    (folder / "pilotfish_-1.0.dist-info").rename(folder / "pilotfish-0.0.1.dist-info")
    plugins.forget()
    assert "gone" not in plugins.names("policies")
    assert "near" in plugins.names("policies")


def test_a_source_checkout_without_metadata_has_all_plug_ins() -> None:
    code = "from pilotfish import plugins; print(len(plugins.names('policies')), plugins.traits('slurm').programs[0])"
    path = f"{ROOT / 'src'}:" + ":".join(str(Path(folder)) for folder in sys.path if folder.endswith("site-packages"))
    said = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env={"PYTHONPATH": path}, check=True)
    assert said.stdout == "8 sbatch\n"


def test_a_plug_in_that_cannot_be_imported_says_so_with_its_own_exception(install: Install) -> None:
    install("bad-plugin", "raise RuntimeError('no licence')\n", factories={"bad": "bad_plugin:Bad"})
    assert "bad" in plugins.names("factories")
    with pytest.raises(plugins.PluginBroken) as caught:
        plugins.load("factories", "bad")
    said = str(caught.value)
    assert "the factory 'bad' cannot be loaded: RuntimeError: no licence" in said
    assert "entry point bad = bad_plugin:Bad of the distribution bad-plugin" in said
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert (caught.value.code, "pip uninstall bad-plugin" in caught.value.hint) == ("P1200", True)


def test_a_plug_in_without_what_it_promises_is_broken(install: Install) -> None:
    install("empty-plugin", "", policies={"empty": "empty_plugin:Missing"})
    with pytest.raises(plugins.PluginBroken, match="AttributeError"):
        plugins.load("policies", "empty")


def test_two_plug_ins_of_one_name_are_an_error_that_names_both(install: Install) -> None:
    install("one", "", policies={"same": "one:A"})
    install("two", "", policies={"same": "two:B"})
    with pytest.raises(plugins.DuplicatePlugin) as caught:
        plugins.load("policies", "same")
    assert "same = one:A of one and same = two:B of two" in str(caught.value)
    assert caught.value.code == "P1201"
    assert plugins.load("policies", "workqueue"), "the others are not concerned"


@pytest.mark.parametrize("kind", ["policies", "matchers"])
def test_nobody_takes_the_name_of_a_built_in(install: Install, kind: str) -> None:
    install("usurper", "", **{kind: {"near": "usurper:Near"}})
    with pytest.raises(plugins.DuplicatePlugin, match="LocalityMatcher of pilotfish and near = usurper:Near of usurper"):
        plugins.load("policies", "near")


def test_of_a_distribution_that_is_installed_twice_the_first_counts(install: Install, tmp_path: Path) -> None:
    install("twice", "", policies={"t": "twice:A"})
    second = tmp_path / "second" / "twice-2.0.dist-info"
    second.mkdir(parents=True)
    (second / "entry_points.txt").write_text("[pilotfish.policies]\nt = twice:B\n")
    sys.path.append(str(second.parent))
    try:
        plugins.forget()
        assert plugins.find("policies", "t").target == "twice:A"
    finally:
        sys.path.remove(str(second.parent))


@pytest.mark.parametrize(
    ("kind", "name", "fix"),
    [
        ("policies", "neer", "Did you mean 'near'?"),
        ("backends", "slrm", "Did you mean 'slurm'?"),
        ("sweeps", "qqq", "known are: csv, tsv, json"),
    ],
)
def test_a_name_that_nobody_has_is_an_error_with_the_nearest_one(kind: str, name: str, fix: str) -> None:
    with pytest.raises(BadInput, match=f"there is no .* '{name}'") as caught:
        plugins.load(kind, name)
    assert caught.value.hint == fix


# --- traits -------------------------------------------------------------------------------------------------------------------------


def test_every_backend_tells_its_traits_and_one_that_is_not_installed_has_none() -> None:
    assert plugins.traits("slurm").cancel == "scancel"
    assert plugins.traits("of a later version") is UNKNOWN_TRAITS
    assert all(isinstance(plugins.traits(name), BackendTraits) for name in plugins.names("backends"))


def test_a_backend_without_traits_is_broken_but_does_not_end_a_master(install: Install) -> None:
    install("half-backend", "class Half: pass\n", backends={"half": "half_backend:Half"})
    with pytest.raises(plugins.PluginBroken, match="has no traits"):
        plugins.traits("half")
    assert plugins.traits_if_usable("half") is UNKNOWN_TRAITS


def test_a_broken_backend_spoils_one_site_and_no_other(install: Install, tmp_path: Path) -> None:
    install("bad-backend", "import nothing_of_that_name\n", backends={"bad": "bad_backend:Bad"})
    path = tmp_path / "sites.toml"
    path.write_text('[good]\nbackend = "slurm"\n[poor]\nbackend = "bad"\n')
    sites = read_sites(path)
    assert list(sites) == ["good"]
    with pytest.raises(plugins.PluginBroken, match="nothing_of_that_name"):
        sites["poor"]


OWN_BACKEND = """
from pilotfish.model.backend_traits import ONE_WORD, BackendTraits
class Own:
    traits = BackendTraits(options={"colour": ONE_WORD}, needs=("colour",), ignores=("account", "memory"))
"""


def test_the_options_of_a_plug_in_backend_are_checked_like_any_other(install: Install) -> None:
    install("own-backend", OWN_BACKEND, backends={"own": "own_backend:Own"})
    assert make_site("x", {"backend": "own", "options": {"colour": "red"}}, "sites.toml").backend == "own"
    with pytest.raises(BadInput, match=r"own needs options\.colour"):
        make_site("x", {"backend": "own"}, "sites.toml")
    with pytest.raises(BadInput, match="account = 'a'"):
        make_site("x", {"backend": "own", "account": "a", "options": {"colour": "red"}}, "sites.toml")
    with pytest.raises(BadInput, match="memory = ") as raised:
        make_site("x", {"backend": "own", "memory": "2G", "options": {"colour": "red"}}, "sites.toml")
    assert raised.value.hint == "own does not use memory: leave memory out"
    with pytest.raises(BadInput, match=r"options\.color = 'red' is no option of own"):
        make_site("x", {"backend": "own", "options": {"color": "red"}}, "sites.toml")


# --- settings -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "field", "fix"),
    [
        ('policy = "min-mn"', "policy = 'min-mn'", "did you mean min-min?"),
        ('factory = "demnd"', "factory = 'demnd'", "did you mean demand?"),
        ('matching = "distribted"', "matching = 'distribted'", "did you mean distributed?"),
        ('matching = "qqq"', "matching = 'qqq'", "known are: auto, central, distributed"),
    ],
)
def test_a_setting_that_names_what_does_not_exist_is_an_error_with_the_nearest_name(
    tmp_path: Path, line: str, field: str, fix: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[pool]\n{line}\n")
    with pytest.raises(BadInput) as caught:
        read_settings(path)
    assert field in str(caught.value) and str(path) in str(caught.value)
    assert caught.value.hint == fix


def test_settings_may_name_what_a_plug_in_provides(install: Install, tmp_path: Path) -> None:
    install("own-parts", "", policies={"mine": "own_parts:P"}, factories={"ours": "own_parts:F"})
    path = tmp_path / "config.toml"
    path.write_text('[pool]\npolicy = "mine"\nfactory = "ours"\nmatching = "central"\n')
    settings = read_settings(path)
    assert (settings.policy, settings.factory) == ("mine", "ours")


def test_every_mode_of_matching_is_known_to_the_machine() -> None:
    from pilotfish.model.settings import AUTO, CENTRAL, DISTRIBUTED, MATCHING_MODES, PoolSettings

    assert {AUTO, CENTRAL, DISTRIBUTED} == set(MATCHING_MODES)
    assert PoolSettings().matching in MATCHING_MODES
