"""Plug-ins of other distributions, really installed by pip: those that the how-to pages show, and a factory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import NAMED, ROOT, blocks_of
from tests.support.offline_pip import install

HOW_TO = ROOT / "docs" / "how-to"
SAMPLES = {"policy-plugin.md": ("careful.py", 30), "backend-plugin.md": ("spooler.py", 150), "command-plugin.md": ("busy.py", 30)}
FACTORY = '''
from pilotfish.core.pilots.factory_interface import PilotProposal
from pilotfish.model.site import PilotSize
class Single:
    """Keeps one pilot at the first site."""
    def __init__(self, pilots, rng):
        self.pilots, self.rng = pilots, rng
    def on_event(self, event):
        pass
    def propose(self, view):
        if not view.demand.tasks or not view.sites or view.sites[0].pilots:
            return []
        return [PilotProposal(view.sites[0].name, PilotSize(cores=1.0), f"{view.demand.tasks} tasks wait")]
    def standing(self, view, now):
        return {}
    def next_look_at(self, view):
        return None
'''
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "own-factory"
version = "1.0"
[project.entry-points."pilotfish.factories"]
single = "own_factory:Single"
"""


def files_of(page: str) -> dict[str, str]:
    """The files that a page tells to write, up to the first that it writes anew."""
    found: dict[str, str] = {}
    for block in blocks_of(HOW_TO / page):
        named = NAMED.match(block.text)
        if named and not named[1].startswith("test_"):
            found.setdefault(named[1], block.text)
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which pip installed a policy, a backend, a command and a factory, each from a distribution of its own."""
    target = tmp_path_factory.mktemp("site-packages")
    projects = {page: files_of(page) for page in SAMPLES} | {"factory": {"own_factory.py": FACTORY, "pyproject.toml": PROJECT}}
    for page, files in projects.items():
        folder = tmp_path_factory.mktemp(page.partition(".")[0])
        for name, text in files.items():
            (folder / name).write_text(text)
        install(folder, target)
    return target


def run(installed: Path, home: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), str(ROOT / "src"), str(ROOT)])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PILOTFISH")}
    environment = kept | {"PYTHONPATH": path, "PILOTFISH_HOME": str(home), "NO_COLOR": "1"}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, cwd=home)


@pytest.mark.parametrize("page", SAMPLES)
def test_the_samples_of_the_documentation_are_as_short_as_it_promises(page: str) -> None:
    name, most = SAMPLES[page]
    assert files_of(page)[name].count("\n") - 1 <= most


def test_what_pip_installed_is_found_by_its_name(installed: Path, tmp_path: Path) -> None:
    code = "import json; from pilotfish import plugins; print(json.dumps({kind: plugins.names(kind) for kind in plugins.SINGULAR}))"
    names = json.loads(run(installed, tmp_path, "-c", code).stdout)
    assert names["policies"][-1] == "careful"
    assert names["backends"][-1] == "spooler"
    assert names["factories"][-1] == "single"
    assert names["commands"][-1] == "busy"


def test_a_policy_a_backend_and_a_factory_can_be_loaded_and_made(installed: Path, tmp_path: Path) -> None:
    code = (
        "import random; from pilotfish import plugins; from pilotfish.config import make_site\n"
        "print(type(plugins.load('policies', 'careful')()).__name__, plugins.load('factories', 'single')(3, random.Random(1)).pilots)\n"
        "print(plugins.traits('spooler').programs, make_site('x', {'backend': 'spooler', 'cores': 2}, 'sites.toml').backend)\n"
    )
    assert run(installed, tmp_path, "-c", code).stdout == "Careful 3\n('tsp',) spooler\n"


def test_the_factory_of_a_plug_in_passes_through_the_settings_to_the_machine(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[pool]\nfactory = "single"\npolicy = "careful"\n')
    code = (
        "from pathlib import Path; from pilotfish.config import read_settings\n"
        "from pilotfish.master.master_server import MasterServer; from pilotfish.store.pool_directory import PoolDirectory\n"
        f"server = MasterServer(PoolDirectory(Path({str(tmp_path)!r}) / 'p').make(), read_settings(Path('config.toml')))\n"
        "print(type(server.machine.policy).__name__, type(server.machine.provisioner._factory).__name__)\n"
    )
    said = run(installed, tmp_path, "-c", code)
    assert said.stdout == "Careful Single\n", said.stderr


def test_the_command_is_in_the_help_and_says_what_is_missing(installed: Path, tmp_path: Path) -> None:
    said = run(installed, tmp_path, "-m", "pilotfish", "--help")
    inspect = said.stdout.partition("Inspect:\n")[2].partition("\n\n")[0]
    assert "busy     Count the workers and what they do." in inspect
    said = run(installed, tmp_path, "-m", "pilotfish", "busy")
    assert said.returncode and said.stderr.startswith("error: ")


def test_without_it_the_name_is_an_error_that_says_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[pool]\npolicy = "careful"\n')
    code = "from pathlib import Path; from pilotfish.config import read_settings; read_settings(Path('config.toml'))"
    said = run(tmp_path, tmp_path, "-c", code)
    assert "config.toml: policy = 'careful' does not exist" in said.stderr
