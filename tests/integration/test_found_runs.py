"""Tests that a later program reads the tasks of an earlier run."""

from __future__ import annotations

import csv
import io
import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest

from pilotfish.api.executor import Executor
from pilotfish.api.run import Run
from pilotfish.client.pools import PoolHandle
from pilotfish.client.session import NoPool
from pilotfish.errors import BadInput, ConnectionFailed
from pilotfish.store.pool_directory import stop_mark_path

WAIT_S = 60.0


def run_program(text: str, folder: Path) -> str:
    """Runs a program in another process and returns its output."""
    script = folder / "program.py"
    script.write_text(text)
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=folder)
    assert done.stderr == ""
    return done.stdout.strip()


EARLIER = """
from pilotfish import Run

class Point:
    def __init__(self, x):
        self.x = x

def move(x):
    if x == 2:
        raise KeyError("two")
    return Point(10 * x)

run = Run("moves", pool="test")
for x in range(4):
    run.submit(move, x)
run.executable(["sh", "-c", "echo hello; echo data > out.txt"], outputs=["out.txt"])
run.detach()
print(run.id, run.uid)
"""
LATER = """
from pilotfish import Run, TaskFailed

class Point:
    pass

for wanted in ({number}, "{number}", "moves", "{uid}"):
    run = Run.find(wanted, pool="test")
    found = list(run.results(return_exceptions=True))
    print([found[place].x for place in (0, 1, 3)], repr(found[2]), found[4].text.strip(), found[4].files["out.txt"].content)
reached = []
try:
    for point in run.results():
        reached.append(point.x)
except KeyError as error:
    print(reached, repr(error))
print([future.task_id for future in run.futures()])
with run:
    pass
"""


def test_a_later_program_has_the_results_of_a_run(pool: PoolHandle, tmp_path: Path) -> None:
    number, uid = run_program(EARLIER, tmp_path).split()
    *same, until_error, tasks = run_program(LATER.format(number=number, uid=uid), tmp_path).splitlines()
    assert same == [r"[0, 10, 30] KeyError('two') hello b'data\n'"] * 4
    assert until_error == "[0, 10] KeyError('two')"
    assert tasks == str([f"{number}.{index}" for index in range(5)])


STOPPED = """
from pilotfish import Run
from pilotfish.errors import PoolStopped

for _ in range(3):
    print([repr(value) for value in Run.find("ended", pool="test").results(return_exceptions=True)])
    values = Run.find("unfinished", pool="test").results()
    print(next(values))
    try:
        next(values)
    except PoolStopped as error:
        print(error)
"""


def test_results_are_read_from_a_stopped_pool_and_only_unfinished_tasks_need_it(pool: PoolHandle, tmp_path: Path) -> None:
    try:
        with Run("ended", pool="test") as run:
            run.submit(abs, -1)
            run.submit(abs, "x").exception()
        with Run("unfinished", pool="test") as run:
            assert run.submit(abs, -2).result(WAIT_S) == 2
            run.executable(["sleep", "1000"], requirement="cores >= 1000")
            run.detach()
        command = [sys.executable, "-m", "pilotfish", "stop", "--pool", "test"]
        subprocess.run(command, capture_output=True, timeout=WAIT_S, check=True, cwd=tmp_path)
        bad = "TypeError(\"bad operand type for abs(): 'str'\")"
        each = [str(["1", bad]), "2", "the pool was stopped; what is unfinished is kept"]
        assert run_program(STOPPED, tmp_path).splitlines() == 3 * each
    finally:
        stop_mark_path(pool.directory).unlink(missing_ok=True)


VALUES = """
import numpy
from pilotfish import Run

class Own:
    pass

def value(kind):
    return {"plain": {"a": [1, None]}, "text": "b c", "array": numpy.arange(3), "own": Own(), "large": {1: numpy.zeros(50_000)}}[kind]

with Run("values", pool="test") as run:
    for kind in ("plain", "text", "array", "own", "large"):
        run.submit(value, kind)
"""


def test_the_command_line_shows_and_saves_the_values_of_calls(pool: PoolHandle, tmp_path: Path) -> None:
    run_program(VALUES, tmp_path)

    def results(*words: str) -> str:
        command = [sys.executable, "-m", "pilotfish", "results", "values", "--pool", "test", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True, cwd=tmp_path).stdout

    rows = json.loads(results("--json"))
    assert [(row["value"], row["value_form"]) for row in rows[:2]] == [({"a": [1, None]}, "json"), ("b c", "json")]
    assert (rows[2]["value"], rows[2]["value_form"]) == ("array([0, 1, 2])", "text")
    assert [row["result"] for row in csv.DictReader(io.StringIO(results("--csv")))][:3] == ['{"a": [1, null]}', "b c", "array([0, 1, 2])"]
    results("--save", "out")
    assert json.loads((tmp_path / "out/0/value.json").read_text()) == {"a": [1, None]}
    assert list(numpy.load(tmp_path / "out/2/value.npy")) == [0, 1, 2]
    assert (tmp_path / "out/3/value.pickle").exists()
    assert pickle.loads((tmp_path / "out/4/value.pickle").read_bytes())[1].sum() == 0


def test_running_tasks_give_live_futures_and_the_run_stays_open(pool: PoolHandle, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Run("open", pool=pool) as run:
        run.submit(abs, -1)
        run.executable(["sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done; echo through"])
        with Run.find("open", pool=pool) as found:
            first, second = found.futures()
            assert first.result(WAIT_S) == 1
            assert not second.done()
            ended = threading.Event()
            second.add_done_callback(lambda future: ended.set())
            gate.touch()
            assert ended.wait(WAIT_S) and second.result().text == "through\n"
            with pytest.raises(BadInput, match=r"run \d+ was found, and can only be read") as refused:
                found.submit(abs, 2)
            assert f"Run(uid={run.uid!r})" in refused.value.hint
        assert run.submit(abs, -3).result(WAIT_S) == 3, "the found run was closed, and the run itself was not"
        assert run.status()["closed"] == ""
        assert [getattr(value, "text", value) for value in run.results()] == [1, "through\n", 3]


def test_a_run_answers_questions_after_its_block(pool: PoolHandle) -> None:
    with Run("over", pool=pool) as run:
        future = run.submit(abs, -1)
    for _ in range(2):
        status = run.status()
        assert (status["state"], status["counts"]["done"]) == ("done", 1)
    assert [row["state"] for row in run.tasks()] == ["done"]
    assert list(run.results()) == [1] and run.futures()[0].result(WAIT_S) == 1
    assert "done" in run.why() and "done" in future.why()
    run.cancel()
    assert run.status()["state"] == "done"
    with pytest.raises(ConnectionFailed) as refused:
        run.submit(abs, -2)
    assert "open another Run" in refused.value.hint


def test_a_closed_run_answers_questions_while_its_tasks_run(pool: PoolHandle, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = Run("rest", pool=pool)
    run.executable(["sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done"])
    run.detach()
    assert run.status()["state"] in ("waiting", "running")
    gate.touch()
    assert len(list(run.results())) == 1
    assert run.status()["state"] == "done"


def test_the_private_pool_of_an_executor_answers_no_questions_after_its_end() -> None:
    with Executor(max_workers=1) as executor:
        future = executor.submit(abs, -1)
    with pytest.raises(ConnectionFailed, match="the private pool of this executor has ended"):
        future.why()


def test_what_cannot_be_found_is_told(pool: PoolHandle) -> None:
    with pytest.raises(NoPool, match="pool 'nowhere' has no runs yet"):
        Run.find("moves", pool="nowhere")
    with pytest.raises(BadInput, match="there is no run 'moves'"):
        Run.find("moves", pool=pool)
    with pytest.raises(BadInput, match="None is not the number, name or uid of a run"):
        Run.find(None, pool=pool)  # type: ignore[arg-type]
    with Executor(pool="test") as executor:
        assert executor.submit(abs, -1).result(WAIT_S) == 1
        with pytest.raises(BadInput, match="the results of an Executor are not kept"):
            Run.find("executor", pool=pool).futures()


@pytest.mark.parametrize(
    "text",
    [
        "with Run('none', pool='test') as run:\n    raise ValueError",
        "run = Run('none', pool='test')\nprint(run.id)\nraise ValueError",
        "with Run('none', pool='test') as run:\n    run.executable(['true'], inputs=['missing'])",
    ],
)
def test_a_program_that_fails_before_it_submits_anything_leaves_no_run(pool: PoolHandle, tmp_path: Path, text: str) -> None:
    command = [sys.executable, "-c", f"from pilotfish import Run\n{text}"]
    assert subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False, cwd=tmp_path).returncode == 1
    with pytest.raises((BadInput, NoPool)):
        Run.find("none", pool="test")
