"""Cells of a notebook that are edited and run again are used at the next call, in one Run that stays open.

A small kernel runs the cells: it executes them in ``__main__`` and keeps their source in linecache, as ipykernel does. The kernel of
Jupyter is not installed here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.scripted_master import PATIENCE_S

KERNEL = """
import code, json, linecache, sys
from pilotfish.applications.calls import python_call
python_call.PAUSE_S = 0.0  # a person needs longer than the normal value between two cells
sys.path.insert(0, "")
cells = json.load(open("notebook.json"))
interpreter = code.InteractiveInterpreter(vars(sys.modules["__main__"]))
for number, cell in enumerate(cells):
    file = f"<ipython-input-{number}>"
    linecache.cache[file] = len(cell), None, cell.splitlines(keepends=True), file
    interpreter.runcode(compile(cell, file, "exec"))
"""


def run_cells(place: Path, *cells: str) -> list[Any]:
    (place / "kernel.py").write_text(KERNEL)
    (place / "notebook.json").write_text(json.dumps(cells))
    done = subprocess.run([sys.executable, "kernel.py"], cwd=place, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert not done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


OPEN = "import json\nfrom pilotfish import Run\nrun = Run('notebook')"
CLOSE = "run.close()"


def show(call: str) -> str:
    return f"print(json.dumps({call}.result()))"


def test_a_helper_that_is_defined_again_is_used_by_the_function_that_calls_it(tmp_path: Path) -> None:
    shown = run_cells(
        tmp_path,
        OPEN,
        "FACTOR = 2\ndef scale(x):\n    return FACTOR * x",
        "def work(x):\n    return scale(x)",
        show("run.submit(work, 1)"),
        "def scale(x):\n    return 10 * FACTOR * x",
        show("run.submit(work, 1)"),
        "FACTOR = 3",
        show("run.submit(work, 1)"),
        "def work(x):\n    return -x",
        show("run.submit(work, 1)"),
        show("run.options(form='source').submit(work, 2)"),
        CLOSE,
    )
    assert shown == [2, 20, 30, -1, -2]


def test_a_worker_class_that_is_edited_is_used_at_the_next_call(tmp_path: Path) -> None:
    cell = "class Solver:\n    def do_work(self, x):\n        return [helper(x), VERSION]"
    shown = run_cells(
        tmp_path,
        OPEN,
        "VERSION = 1\ndef helper(x):\n    return x",
        cell,
        show("run.work(Solver, 1)"),
        "def helper(x):\n    return 2 * x",
        show("run.work(Solver, 1)"),
        "VERSION = 2",
        show("run.work(Solver, 1)"),
        cell.replace("[helper(x), VERSION]", "'new'"),
        show("run.work(Solver, 1)"),
        CLOSE,
    )
    assert shown == [[1, 1], [2, 1], [2, 2], "new"]


def test_a_module_beside_the_notebook_that_is_edited_is_used_at_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import part\ndef run(x):\n    return part.value() + x\n")
    (tmp_path / "part.py").write_text("def value():\n    return 100\n")
    worker = "class Solver:\n    def do_work(self, x):\n        return model.run(x)"
    shown = run_cells(
        tmp_path,
        OPEN,
        "import importlib, model, part\n" + worker,
        show("run.submit(model.run, 1)"),
        show("run.work(Solver, 1)"),
        "open('part.py', 'w').write('def value():\\n    return 2000\\n')\nimportlib.reload(part)",
        show("run.submit(model.run, 1)"),
        show("run.work(Solver, 1)"),
        CLOSE,
    )
    assert shown == [101, 101, 2001, 2001]


def test_a_variable_around_a_function_is_sent_with_the_value_that_it_has_now(tmp_path: Path) -> None:
    shown = run_cells(
        tmp_path,
        OPEN,
        "def main():\n    futures = []\n    def work():\n        return value\n    for value in range(20):\n"
        "        futures.append(run.submit(work))\n    print([future.result() for future in futures])",
        "main()",
        CLOSE,
    )
    assert shown == [[*range(20)]]
