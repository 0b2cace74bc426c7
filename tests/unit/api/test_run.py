from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.api import run as run_module
from pilotfish.api.executor import Executor
from pilotfish.api.run import Run
from pilotfish.applications.application_manager import ApplicationWorker
from pilotfish.applications.executables.executable import Completed, ExecutableFailed
from pilotfish.client.session import NoPool
from pilotfish.errors import BadInput
from pilotfish.model import messages as wire
from tests.support.fake_slot import do_task
from tests.unit.api.test_executor import FakePool

WAIT_S = 30.0


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[FakePool]:
    made = FakePool(tmp_path / "pool")
    yield made
    if made.master._thread.is_alive():
        made.master.kill()


class Counter(ApplicationWorker):
    def initialize(self) -> None:
        self.calls = 0

    def do_work(self, parameters: Any) -> Any:
        self.calls += 1
        return parameters, self.calls


def test_without_a_pool_the_environment_names_the_pool(pool: FakePool, pilotfish_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_pool(name: str) -> FakePool:
        opened.append(name)
        return pool

    monkeypatch.setattr(run_module, "ensure_pool", open_pool)
    monkeypatch.setenv("PILOTFISH_POOL", "p2")
    with Run(), Run(pool="p3"):
        pass
    assert opened == ["p2", "p3"]
    with pytest.raises(NoPool, match="pool 'p2' has no runs yet"):
        Run.find(1)
    assert Executor(sites="local")._pool == "p2"
    assert Executor()._pool is None  # a private pool


def test_calls_and_executables_go_into_one_run(pool: FakePool) -> None:
    with Run("my run", pool=pool) as run:
        call = run.submit(pow, 2, 5)
        program = run.executable(["/bin/cat"], stdin="hello", cores=2, memory="2 GiB", time="10 min", after=[call])
        assert call.result(WAIT_S) == 32
        done = program.result(WAIT_S)
        assert isinstance(done, Completed)
        assert (done.exit, done.stdout) == (0, b"hello")
        assert program.stdout == b"hello"
        assert list(run.map(abs, [-1, -2])) == [1, 2]
    record = pool.book.by_number(1)
    assert record.options.name == "my run"
    assert record.deps[1] == [0]
    assert record.closed
    spec = record.specs[record.tasks[1][0]][0]
    assert (spec.request.cores, spec.request.memory, spec.time_s) == (2, 2 << 30, 600)


def test_each_new_function_is_checked_because_the_python_of_a_site_becomes_known_later(pool: FakePool) -> None:
    with Run(pool=pool) as run:
        assert run.submit(abs, -1).result(WAIT_S) == 1
        del pool.master.answers["check_python"]
        with pytest.raises(BadInput, match="check_python"):
            run.submit(len, "text")
        assert run.options(form="source").submit(_double, 2).result(WAIT_S) == 4


def test_new_functions_are_not_checked_while_a_worker_has_their_python(pool: FakePool) -> None:
    asked: list[dict[str, Any]] = []

    def answer(arguments: dict[str, Any]) -> dict[str, Any]:
        asked.append(arguments)
        return {"found": True}

    pool.master.answers["check_python"] = answer
    with Run(pool=pool) as run:
        assert [run.submit(function, "1").result(WAIT_S) for function in (len, int, str)] == [1, 1, "1"]
    assert len(asked) == 1


def _double(number: int) -> int:
    return 2 * number


def test_a_uid_may_be_the_number_of_a_batch_job(pool: FakePool) -> None:
    with Run(pool=pool, uid="147") as run:
        assert run.uid == "147"


@pytest.mark.parametrize(
    ("option", "value"), [*(("name", name) for name in ("147", "3.17", "last", "a\nb", 147)), ("uid", "a\nb"), ("uid", 147)]
)
def test_a_name_that_means_another_run_is_refused(pool: FakePool, option: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"{option}=") as refused:
        Run(pool=pool, **{option: value})
    assert f"{option}=" in refused.value.hint


def test_calls_that_no_worker_can_load_are_refused_by_submit_and_the_run_goes_on(pool: FakePool) -> None:
    del pool.master.answers["check_python"]
    with Run(pool=pool) as run:
        with pytest.raises(BadInput, match="check_python"):
            run.submit(abs, -1)
        assert run.executable(["/bin/cat"], stdin="hello").result(WAIT_S).stdout == b"hello"


def test_after_refused_tasks_a_run_tells_why_it_accepts_no_more(pool: FakePool) -> None:
    run = Run(pool=pool)
    assert run.submit(abs, -1).result(WAIT_S) == 1
    run._session._submission.next_index = 7
    with pytest.raises(BadInput, match="out of order"):
        run.submit(abs, -1).result(WAIT_S)
    with pytest.raises(BadInput, match=r"run 1 accepts no more tasks of this program, because earlier tasks were refused: out of order"):
        run.submit(abs, -1)


def test_map_with_a_buffersize_runs_only_so_far_ahead(pool: FakePool) -> None:
    drawn: list[int] = []

    def numbers() -> Iterator[int]:
        for i in range(20):
            drawn.append(i)
            yield i

    with Run(pool=pool) as run:
        results = run.map(abs, numbers(), buffersize=3)
        assert len(drawn) == 3
        assert next(results) == 0
        assert len(drawn) == 4
        assert list(results) == list(range(1, 20))


def test_the_state_of_a_run_is_the_one_that_the_command_line_shows(pool: FakePool) -> None:
    row = {"run": 1, "state": "done", "status": "failed", "tasks": 2, "counts": {"done": 1, "failed": 1}}
    pool.master.answers["run"] = lambda arguments: row
    with Run(pool=pool) as run:
        assert run.status() == {**row, "state": "failed"}


def test_a_task_whose_output_files_have_no_place_is_not_sent(pool: FakePool, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Run(pool=pool, into=tmp_path / "file" / "results") as run:
        with pytest.raises(BadInput, match="cannot be used: not a directory"):
            run.executable(["/bin/echo"], outputs=["x"])
        assert run.submit(abs, -1).result(WAIT_S) == 1
    assert len(pool.book.by_number(1).tasks) == 1


def test_a_tilde_in_into_is_the_home_directory(pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file").touch()
    with Run(pool=pool, into="~/file/results") as run:
        with pytest.raises(BadInput, match=f"{tmp_path}/file/results.* cannot be used"):
            run.executable(["/bin/echo"], outputs=["x"])
        with pytest.raises(BadInput, match="leads out of the directory of the run"):
            run.executable(["/bin/echo"], outputs={"x": "~/x"})


def test_an_executable_that_fails_raises_with_the_end_of_its_stderr(pool: FakePool) -> None:
    with Run(pool=pool) as run, pytest.raises(ExecutableFailed, match="oh no") as caught:
        run.executable(["/bin/sh", "-c", "echo oh no >&2; exit 3"]).result(WAIT_S)
    assert caught.value.completed is not None
    assert caught.value.completed.exit == 3


def test_options_hold_for_the_calls_made_through_them(pool: FakePool) -> None:
    with Run(pool=pool) as run:
        first = run.submit(abs, -1)
        heavy = run.options(cores="2-4", retries=2, after=[first], name="heavy")
        assert heavy.submit(abs, -2).result(WAIT_S) == 2
        assert list(heavy.map(abs, [-3])) == [3]
    record = pool.book.by_number(1)
    spec = record.specs[record.tasks[1][0]][0]
    assert (spec.request.cores, spec.request.cores_max, spec.retries, spec.name) == (2, 4, 2, "heavy")
    assert record.deps == {0: [], 1: [0], 2: [0]}


def test_a_function_may_travel_as_source(pool: FakePool) -> None:
    with Run(pool=pool) as run:
        assert run.options(form="source").submit(triple, 4).result(WAIT_S) == 12


def triple(x: int) -> int:
    return 3 * x


def test_a_worker_is_kept_from_task_to_task(pool: FakePool) -> None:
    with Run(pool=pool) as run:
        futures = [run.work(Counter, i) for i in range(3)]
        assert [future.result(WAIT_S) for future in futures] == [(0, 1), (1, 2), (2, 3)]


def test_a_run_is_found_again_by_its_uid(pool: FakePool) -> None:
    with Run(pool=pool) as run:
        run.submit(abs, -1)
        uid = run.uid
    with Run(pool=pool, uid=uid) as again:
        assert again.id == run.id
        assert again.submit(abs, -2).index == 1


def test_leaving_by_an_exception_lets_the_tasks_go_on(pool: FakePool, capsys: pytest.CaptureFixture[str]) -> None:
    pool.master.work = lambda spec, code, payload: None

    def interrupted() -> None:
        with Run(pool=pool) as run:
            run.submit(abs, -1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert f"continues with 1 unfinished task; see: pilotfish status --pool {pool.name}\n" in capsys.readouterr().err
    record = pool.book.by_number(1)
    assert record.closed
    assert not record.final
    assert not [message for message in pool.master.heard if isinstance(message, wire.Ask) and message.kind == "cancel"]


def test_a_found_run_that_has_ended_asks_why_and_keeps_no_connection(pool: FakePool) -> None:
    with Run(pool=pool) as run:
        run.submit(abs, -1)
    row = {"run": 1, "uid": run.uid, "name": "", "command": "", "owned": False}
    pool.master.answers |= {"run": lambda arguments: row, "why": lambda arguments: {"sentence": "it succeeded"}}
    found = Run.find(1, pool=pool)
    found.detach()
    assert found.why() == "it succeeded"
    pool.master.wait_for(lambda: not pool.master._peers)


def test_why_is_asked_of_the_master(pool: FakePool) -> None:
    pool.master.answers["why"] = lambda arguments: {"sentence": f"asked about {arguments}", "reasons": [{"text": "all workers are busy"}]}
    with Run(pool=pool) as run:
        future = run.submit(abs, -1)
        assert future.why() == "asked about {'task': '1.0'}\nall workers are busy"
        assert "'run': 1" in run.why()
        pool.master.answers["why"] = lambda arguments: {"sentence": "run 1 is waiting: no workers", "reasons": [{"text": "no workers"}]}
        assert run.why() == "run 1 is waiting: no workers", "a reason that the sentence has is not repeated"


def test_a_dependency_on_another_run_is_refused(pool: FakePool) -> None:
    with Run(pool=pool) as one, Run(pool=pool) as other:
        stranger = other.submit(abs, -1)
        with pytest.raises(BadInput, match="is not a task of this run"):
            one.options(after=[stranger])
        with pytest.raises(BadInput, match="one future was given"):
            one.executable(["true"], after=stranger)  # type: ignore[arg-type]


def test_a_run_that_had_finished_before_it_was_found_again_ends_at_once(pool: FakePool) -> None:
    with Run(pool=pool) as run:
        run.submit(abs, -1)
    again = Run(pool=pool, uid=run.uid)
    assert again._session._finished.wait(WAIT_S)
    again.close()


def test_ctrl_c_in_a_map_leaves_the_rest_running(pool: FakePool) -> None:
    pool.master.work = lambda spec, code, payload: do_task(spec, code, payload) if b"K\x00" in payload else None

    def read_one() -> None:
        with Run(pool=pool) as run:
            for _ in run.map(abs, range(50)):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_one()
    record = pool.book.by_number(1)
    assert (len(record.final), record.closed) == (1, True), "49 tasks are left to the pool, and none is cancelled"
