"""In a shared pool, each program has slots of its own. Other programs and executables see nothing that its calls left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.client.session import connect_if_served
from tests.support.scripted_master import PATIENCE_S

POOL = "shared"


@pytest.fixture(autouse=True)
def stopped(pilotfish_home: Path) -> Iterator[None]:
    yield
    master = connect_if_served(POOL)
    if master is not None:
        master.ask("stop", now=True)
        master.close()


def run(place: Path, program: str) -> Any:
    place.mkdir(exist_ok=True)
    (place / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=place, capture_output=True, text=True, timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


COUNTS = """
import json, random, counted
from pilotfish import Run
with Run(pool="shared") as run:
    print(json.dumps([run.submit(counted.draw).result() for _ in range(3)]))
"""


def test_a_program_that_is_started_again_gets_the_same_results(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text("import random\ndrawn = random.Random(42)\ndef draw():\n    return drawn.random()\n")
    first = run(tmp_path, COUNTS)
    assert run(tmp_path, COUNTS) == first


NAMED = """
import importlib, json
from pilotfish import Run
def value(name):
    return importlib.import_module(name).VALUE
with Run(pool="shared") as run:
    print(json.dumps(run.submit(value, "plugged").result()))
"""


def test_a_module_imported_by_a_computed_name_is_that_of_the_own_project(tmp_path: Path) -> None:
    for project in ("one", "two"):
        (tmp_path / project).mkdir()
        (tmp_path / project / "plugged.py").write_text(f"VALUE = {project!r}\n")
    assert [run(tmp_path / project, NAMED) for project in ("one", "two", "one")] == ["one", "two", "one"]


SPOILS = """
import decimal, json, os, resource, signal
from pilotfish import Run
def spoil():
    json.dumps = None
    decimal.getcontext().prec = 3
    os.environ["TZ"] = "JST-9"
    os.umask(0o777)
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
with Run(pool="shared") as run:
    for call in [run.submit(spoil) for _ in range(8)]:
        call.result()
print(0)
"""

LOOKS = """
import json
from pilotfish import Run
def look():
    import decimal, os, resource, signal
    mask = os.umask(0o22)
    os.umask(mask)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    hangup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [callable(json.dumps), decimal.getcontext().prec, os.environ.get("TZ"), mask, os.nice(0), limit, hangup]
with Run(pool="shared") as run:
    calls = [run.submit(look).result() for _ in range(4)]
    script = "umask; nice; ulimit -n; grep SigIgn /proc/self/status"
    programs = [run.executable(["sh", "-c", script]).result().text for _ in range(4)]
    print(json.dumps([calls, programs]))
"""


def test_what_a_call_does_to_its_process_changes_no_other_program_and_no_executable(tmp_path: Path) -> None:
    before = run(tmp_path, LOOKS)
    run(tmp_path, SPOILS)
    assert run(tmp_path, LOOKS) == before
