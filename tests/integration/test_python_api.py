"""Tests a user's Python program with a real master: the drop-in executor, and deaths of either process."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy
import pytest

import pilotfish
from pilotfish.api.run import Run
from pilotfish.client.master_client import MasterClient
from pilotfish.client.offline_pool import OfflinePool
from pilotfish.client.pools import PoolHandle
from pilotfish.client.session import NoPool
from pilotfish.errors import TaskFailed
from pilotfish.model.task import RunOptions
from pilotfish.portable.processes import processes_of

WAIT_S = 60.0


def wait_for(condition: Callable[[], object]) -> None:
    tick = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if condition():
            return
        tick.wait(0.01)
    raise AssertionError("it never happened")


def pools(home: Path) -> list[Path]:
    return list((home / "pools").iterdir()) if (home / "pools").is_dir() else []


@pytest.fixture(autouse=True)
def nothing_is_left(pilotfish_home: Path) -> Iterator[None]:
    yield
    wait_for(lambda: not any(list(processes_of(pool)) for pool in pools(pilotfish_home)))


def run_script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(text)
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=folder)


def test_a_program_uses_functions_and_classes_of_its_own_and_just_ends(tmp_path: Path, pilotfish_home: Path) -> None:
    (tmp_path / "helper_of_program.py").write_text("def twice(x):\n    return 2 * x\n")
    done = run_script(
        """
import pilotfish, helper_of_program
from dataclasses import dataclass

@dataclass
class Point:
    x: int

class Trouble(Exception):
    pass

SCALE = 10

def move(point, by):
    print("moving", point.x)
    return Point(helper_of_program.twice(point.x) + by * SCALE)

def fail():
    raise Trouble("as planned")

executor = pilotfish.Executor(max_workers=2)
moved = executor.submit(move, Point(1), by=2).result()
assert isinstance(moved, Point) and moved == Point(22), moved
try:
    executor.submit(fail).result()
except Trouble as error:
    assert "in fail" in str(error.__cause__)
    print("caught", error)
executor.submit(print, "the last word")
""",
        tmp_path,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["moving 1", "caught as planned", "the last word"]
    assert pools(pilotfish_home) == []


def double_in_place(array: Any) -> Any:
    array *= 2
    return array


def scribble(data: Any) -> Any:
    return type(data).__name__, bytes(data)


@pytest.mark.parametrize("count", [10, 10_000, 300_000])
def test_arrays_and_bytes_of_any_size_arrive_as_they_were_and_may_be_written_to(count: int) -> None:
    numbers = numpy.arange(count, dtype=numpy.float64)
    data = os.urandom(count)
    with pilotfish.Executor(max_workers=2) as executor:
        doubled = executor.submit(double_in_place, numbers).result(WAIT_S)
        as_bytes = executor.submit(scribble, data).result(WAIT_S)
        as_bytearray = executor.submit(scribble, bytearray(data)).result(WAIT_S)
        echoed = executor.submit(bytes, data).result(WAIT_S)
    assert numbers[-1] == count - 1, "ours is untouched"
    doubled += 1
    assert (doubled == 2 * numbers + 1).all()
    assert as_bytes == ("bytes", data)
    assert as_bytearray == ("bytearray", data)
    assert type(echoed) is bytes and echoed == data


def test_what_was_read_is_no_longer_kept_while_the_executor_lives_on(pilotfish_home: Path) -> None:
    with pilotfish.Executor(max_workers=2) as executor:
        for number in range(40):
            assert len(executor.submit(os.urandom, 1_000_000 + number).result(WAIT_S)) == 1_000_000 + number
        middling = [executor.submit(os.urandom, 100_000) for _ in range(200)]
        assert sum(len(future.result(WAIT_S)) for future in middling) == 200 * 100_000
        (pool,) = pools(pilotfish_home)
        wait_for(lambda: len(list((pool / "payloads" / "shared").iterdir())) < 16)
        assert executor.submit(pow, 2, 3).result(WAIT_S) == 8


def leave(status: int) -> None:
    print("said before", flush=True)
    os._exit(status)


def test_a_call_that_ends_its_process_fails_with_its_output_as_the_hint_says() -> None:
    with pilotfish.Executor(max_workers=1, echo=False) as executor:
        future = executor.submit(leave, 3)
        error = future.exception(WAIT_S)
    assert isinstance(error, TaskFailed) and "completed.stdout" in error.hint
    assert (error.completed.exit, error.completed.stdout, error.completed.stderr) == (3, b"said before\n", b"")
    assert pickle.loads(pickle.dumps(error)).completed == error.completed


def test_a_crash_fails_its_own_task_and_no_other() -> None:
    with pilotfish.Executor(max_workers=2) as executor:
        good = [executor.submit(pow, 2, i) for i in range(20)]
        bad = executor.submit(os.abort)
        more = [executor.submit(pow, 3, i) for i in range(20)]
        assert [future.result(WAIT_S) for future in good + more] == [2**i for i in range(20)] + [3**i for i in range(20)]
        error = bad.exception(WAIT_S)
    assert isinstance(error, TaskFailed)
    assert error.cause == "crash"


def test_a_killed_master_is_revived_and_no_result_is_missing(pilotfish_home: Path) -> None:
    with pilotfish.Executor(max_workers=2) as executor:
        assert executor.submit(abs, -1).result(WAIT_S) == 1
        (pool,) = pools(pilotfish_home)
        for _ in range(3):
            futures = [executor.submit(pow, i, 2) for i in range(500)]
            os.kill(master_of(pool), signal.SIGKILL)
            futures += [executor.submit(pow, i, 3) for i in range(500)]
            assert [future.result(WAIT_S) for future in futures] == [i**2 for i in range(500)] + [i**3 for i in range(500)]


def master_of(pool: Path) -> int:
    return next(pid for pid, command in processes_of(pool) if "pilotfish.master" in command)


def test_a_killed_program_takes_its_private_pool_with_it(tmp_path: Path, pilotfish_home: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import pilotfish, time\n"
        "executor = pilotfish.Executor(max_workers=2)\n"
        "executor.submit(abs, -1).result()\n"
        "executor.submit(time.sleep, 600)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        assert pools(pilotfish_home)
        program.kill()
    wait_for(lambda: not pools(pilotfish_home))


def test_executables_in_sandboxes_bring_their_files_back(pool: PoolHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sim").write_text("#!/bin/sh\ncat model.dat > out.dat; echo $1 $COLOUR >> out.dat; cat; echo done\n")
    Path("sim").chmod(0o755)
    Path("model.dat").write_text("model\n")
    with Run("sims", pool=pool) as run:
        run.defaults.inputs = ["model.dat"]
        run.defaults.outputs = ["out.dat"]
        first = run.executable(["./sim", "1"], env={"COLOUR": "red"}, stdin="from stdin\n")
        second = run.executable(["./sim", "2"], after=[first], cores=1, memory="100 MiB", time="1 min")
        assert first.result(WAIT_S).text == "from stdin\ndone\n"
        (path,) = second.result(WAIT_S).save(tmp_path / "results")
        assert path.read_text() == "model\n2\n"
        assert first.result().files["out.dat"].content == b"model\n1 red\n"
        assert first.usage is not None
        assert first.usage.wall_us > 0
        assert "done" in second.why()


def test_python_and_the_command_line_show_the_same_of_a_run(pool: PoolHandle) -> None:
    with Run("both", pool=pool) as run:
        waited: list[Future[Any]] = [run.executable(["echo", "a b"]), run.submit(abs, -1), run.executable(["false"])]
        for future in waited:
            future.exception(WAIT_S)
        shown = list(run.tasks())
        assert [row["command"] for row in shown] == ["echo 'a b'", "abs", "false"]
        assert [row["command"] for row in run.tasks("failed")] == ["false"]
        command = [sys.executable, "-m", "pilotfish", "tasks", "both", "--json", "--pool", pool.name]
        assert json.loads(subprocess.run(command, capture_output=True, check=True, timeout=WAIT_S).stdout) == shown
        run.close()
    command = [sys.executable, "-m", "pilotfish", "tasks", "both", "--json", "--pool", pool.name]
    assert json.loads(subprocess.run(command, capture_output=True, check=True, timeout=WAIT_S).stdout) == shown


def test_a_pool_can_be_read_without_its_master(pool: PoolHandle) -> None:
    with Run(pool=pool) as run:
        assert run.submit(abs, -1).result(WAIT_S) == 1
    read, snapshot = OfflinePool.snapshot(pool.name)
    assert read.served
    assert (read.directory, list(read.state.runs), list(read.ended)) == (pool.directory, [run.id], [run.uid])
    assert snapshot.now == read.now
    with pytest.raises(NoPool, match="there is no pool 'nowhere' yet"):
        OfflinePool.read("nowhere")


def test_an_executable_whose_directory_no_worker_has_fails_at_once_and_says_what_helps(pool: PoolHandle) -> None:
    with Run(pool=pool, sites="local") as run:
        lost = run.executable(["echo", "1"], cwd="/no/such/place")
        error = lost.exception(WAIT_S)
        assert isinstance(error, TaskFailed) and error.cause == "no-directory" and "sandbox=True" in error.hint
        assert "'/no/such/place'" in str(error) and "--sandbox" in str(error)
        assert run.executable(["echo", "1"], cwd="/no/such/place", sandbox=True).result(WAIT_S).text == "1\n"
        assert run.status()["attempts"] == 2


def test_a_module_of_the_program_that_the_workers_lack_can_be_sent_along(tmp_path: Path) -> None:
    (tmp_path / "helper_of_program.py").write_text("class Box:\n    full = True\n\ndef look(box):\n    return box.full\n")
    done = run_script(
        """
import os
import cloudpickle, pilotfish, helper_of_program
os.remove(helper_of_program.__file__)

def look(box=None):
    return helper_of_program.look(box or helper_of_program.Box())

with pilotfish.Executor(max_workers=1) as executor:
    error = executor.submit(look).exception()
    print(error.hint.split(": ")[-1])
with pilotfish.Executor(max_workers=1) as executor:
    eval(error.hint.split(": ")[-1])
    print(executor.submit(look).result(), executor.submit(look, helper_of_program.Box()).result())
""",
        tmp_path,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["cloudpickle.register_pickle_by_value(helper_of_program)", "True True"]


def test_a_run_goes_on_without_its_program(pool: PoolHandle, tmp_path: Path) -> None:
    run = Run("left alone", pool=pool)
    futures = [run.executable(["sh", "-c", f"echo {i} >> {tmp_path}/log"]) for i in range(10)]
    run.detach()
    assert futures[0].exception(WAIT_S) is not None or futures[0].result() is not None
    wait_for(lambda: (tmp_path / "log").exists() and len((tmp_path / "log").read_text().split()) == 10)
    with Run(pool=pool, uid=run.uid) as again:
        assert again.id == run.id
        wait_for(lambda: again.status()["counts"]["done"] == 10)


APPLICATION = """
import json, os
from pilotfish import ApplicationManager, ApplicationWorker

class Doubler(ApplicationWorker):
    def do_work(self, parameters):
        return 2 * parameters

class Growing(ApplicationManager):
    worker = Doubler

    def __init__(self):
        self.seen = []

    def initialize(self, tasks):
        for start in (1, 3, 5, 7):
            tasks.work(start)

    def resume(self, done):
        self.seen += [task.value for task in done]

    def tasks_done(self, done, tasks):
        with open("pids", "a") as log:
            log.write(f"{os.getpid()}\\n")
        for task in done:
            self.seen.append(task.value)
            if task.value < 10 ** 12:
                tasks.work(task.value)

    def finalize(self):
        with open("seen.json.part", "w") as result:
            json.dump(sorted(self.seen), result)
        os.rename("seen.json.part", "seen.json")

manager = Growing()
"""


def doubled(start: int) -> list[int]:
    values = [2 * start]
    while values[-1] < 10**12:
        values.append(2 * values[-1])
    return values


def open_growing(client: MasterClient, folder: Path) -> int:
    (folder / "growing.py").write_text(APPLICATION)
    client.ask("workers_set", local=2)
    options = RunOptions(name="growing", command="growing.py", cwd=str(folder), application=str(folder / "growing.py"))
    return client.open_run("growing", options, sends_tasks=False).run


def check_growing(client: MasterClient, run: int, folder: Path) -> None:
    """Check that the manager saw every value once and no task was created twice."""
    wait_for((folder / "seen.json").exists)
    wait_for(lambda: client.ask("run", run=run)["state"] == "done")
    expected = sorted(value for start in (1, 3, 5, 7) for value in doubled(start))
    assert json.loads((folder / "seen.json").read_text()) == expected
    assert client.ask("run", run=run)["tasks"] == len(expected)


@pytest.mark.parametrize("kills", [0, 3])
def test_an_application_makes_each_task_once_however_often_its_manager_is_killed(pool: PoolHandle, tmp_path: Path, kills: int) -> None:
    client = MasterClient.connect(pool.directory, pool.revive)
    run = open_growing(client, tmp_path)
    pids, killed = tmp_path / "pids", set[str]()
    while len(killed) < kills and not (tmp_path / "seen.json").exists():
        wait_for(lambda: (pids.exists() and set(pids.read_text().split()) - killed) or (tmp_path / "seen.json").exists())
        for pid in set(pids.read_text().split()) - killed:
            killed.add(pid)
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
    check_growing(client, run, tmp_path)
    client.close()


def test_an_application_makes_each_task_once_however_often_the_master_is_killed(pool: PoolHandle, tmp_path: Path) -> None:
    client = MasterClient.connect(pool.directory, pool.revive)
    run = open_growing(client, tmp_path)
    for round_number in range(1, 4):
        wait_for(lambda enough=10 * round_number: client.ask("run", run=run)["tasks"] >= enough)  # type: ignore[misc]
        os.kill(master_of(pool.directory), signal.SIGKILL)
    check_growing(client, run, tmp_path)
    client.close()
