"""The applications of Pilotfish hold to the contract that plug-ins are tested with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pilotfish import plugins
from pilotfish.applications.run_file import RunFile
from pilotfish.testing.application_suite import ApplicationContract


class EveryApplication(ApplicationContract):
    def read(self, path: Path, arguments: Sequence[str]) -> RunFile:
        loaded: RunFile = plugins.load("applications", self.suffix)(path, arguments)
        return loaded


class TestRunFile(EveryApplication):
    suffix = "py"
    text = "def run(tasks):\n    first = tasks.add(['echo', '1'])\n    tasks.add(['echo', '2'], after=[first])\n"
    broken = "def run(tasks:\n"


class TestRunFileWithManager(EveryApplication):
    suffix = "py"
    text = (
        "from pilotfish import ApplicationManager\n"
        "class Mine(ApplicationManager):\n"
        "    def initialize(self, tasks):\n"
        "        tasks.add(['echo'])\n"
        "manager = Mine()\n"
    )
    broken = "manager = 7\n"


class TestDag(EveryApplication):
    suffix = "dag"
    text = "JOB a {\n  executable = /bin/true\n}\nJOB b {\n  executable = /bin/true\n}\nPARENT a CHILD b\n"
    broken = "JOB a\n"


def test_every_application_is_tested() -> None:
    assert {one.suffix for one in EveryApplication.__subclasses__()} == set(plugins.BUILT_IN["applications"])
