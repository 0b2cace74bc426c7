"""``rerun`` uses files as they are now, takes new limits and names what changed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pilotfish.core.explain.rerun_advice import fix_with_options, rerun_command
from pilotfish.model.states import TASK_STATES
from pilotfish.model.task import Failure
from pilotfish.portable.payload_format import unpack
from tests.support.fake_session import FakeMaster
from tests.unit.cli.conftest import CommandLine


def fail_all(argv: list[str]) -> tuple[int, bytes, dict[str, bytes]]:
    return 1, b"", {}


@pytest.fixture
def failed(pilotfish: CommandLine, master: FakeMaster) -> FakeMaster:
    """A run with a program, an input of all tasks and an input of each task, which failed."""
    for name, text in {"sim": "#!/bin/sh\n", "model.dat": "bad", "case-1": "one", "case-2": "two", "in.txt": "stdin"}.items():
        Path(name).write_text(text)
    Path("sim").chmod(0o755)
    master.outcome = fail_all
    words = ["--input", "model.dat", "--input", "case-{n}", "--stdin", "in.txt", "--param", "n=1,2", "--", "./sim", "{n}"]
    assert pilotfish("run", *words).status == 1
    return master


def request(master: FakeMaster) -> dict[str, Any]:
    return next(arguments for kind, arguments in reversed(master.asked) if kind == "rerun")


def test_unchanged_files_are_not_sent_again(pilotfish: CommandLine, failed: FakeMaster) -> None:
    said = pilotfish("rerun")
    assert said.out.startswith("Run 1: 2 tasks again.\nRun 1: 2 tasks, 2 failed in ")
    assert request(failed)["changes"] == {"specs": [], "inputs": []}


def test_a_changed_input_of_all_tasks_goes_into_a_new_spec(pilotfish: CommandLine, failed: FakeMaster) -> None:
    Path("model.dat").write_text("good")
    assert "Changed since the last try: model.dat\n" in pilotfish("rerun").out
    run = failed.runs[1]
    assert [task.spec for task in run.tasks] == [1, 1]
    assert [bytes(part) for part in unpack(run.codes[1])] == [b"#!/bin/sh\n", b"good"]
    assert run.specs[1].launch["sources"] == run.specs[0].launch["sources"]


@pytest.mark.parametrize("word", ["sim.py", "{script}"])
def test_a_module_that_a_changed_module_imports_is_sent(pilotfish: CommandLine, master: FakeMaster, word: str) -> None:
    Path("sim.py").write_text("import helper\n")
    Path("helper.py").write_text("")
    master.outcome = fail_all
    pilotfish("run", "--sandbox", "--param", "script=sim.py", "--param", "n=1", "--", "python", word, "{script}", "{n}")
    Path("helper.py").write_text("import consts\n")
    Path("consts.py").write_text("TWO = 2\n")
    for changed in ("helper.py, consts.py", ""):
        assert ("Changed since the last try: " + changed in pilotfish("rerun").out) == bool(changed)
        (task,) = master.runs[1].tasks
        spec = master.runs[1].specs[task.spec]
        inputs = [*spec.launch["inputs"], *json.loads(bytes(unpack(task.payload)[0]))["inputs"]]
        assert sorted(name for name, *_ in inputs) == ["consts.py", "helper.py", "sim.py"]


def test_a_changed_script_is_used(pilotfish: CommandLine, failed: FakeMaster) -> None:
    Path("sim").write_text("#!/bin/sh\nexit 0\n")
    assert "Changed since the last try: sim\n" in pilotfish("rerun").out
    assert bytes(unpack(failed.runs[1].codes[1])[0]).endswith(b"exit 0\n")


def test_a_changed_input_of_one_task_goes_to_this_task(pilotfish: CommandLine, failed: FakeMaster) -> None:
    before = [task.payload for task in failed.runs[1].tasks]
    Path("case-2").write_text("22")
    said = pilotfish("rerun", "--json")
    assert "changed_files" not in json.loads(said.out)
    tasks = failed.runs[1].tasks
    assert tasks[0].payload == before[0] and bytes(unpack(tasks[1].payload)[2]) == b"22"
    assert request(failed)["changes"]["inputs"] == [(1, ())]


def test_changed_standard_input_is_read_again(pilotfish: CommandLine, failed: FakeMaster) -> None:
    Path("in.txt").write_text("more")
    said = pilotfish("rerun", "--detach", "--json")
    assert json.loads(said.out)["changed_files"] == [str(Path("in.txt").absolute())]
    assert [bytes(unpack(task.payload)[1]) for task in failed.runs[1].tasks] == [b"more", b"more"]


def test_a_file_that_is_gone_is_told_and_nothing_runs(pilotfish: CommandLine, failed: FakeMaster) -> None:
    Path("case-1").unlink()
    said = pilotfish("rerun")
    assert said.status == 2 and "case-1 no longer exists\n  fix: put it back" in said.err
    assert not any(kind == "rerun" for kind, _ in failed.asked)


def test_new_limits_are_used_and_the_others_stay(pilotfish: CommandLine, failed: FakeMaster) -> None:
    assert pilotfish("rerun", "--time", "90s", "--memory", "2G", "--retries", "3", "--cores", "2-4").status == 1
    spec = failed.runs[1].specs[1]
    assert (spec.time_s, spec.request.memory, spec.retries) == (90.0, 2 << 30, 3)
    assert (spec.request.cores, spec.request.cores_max) == (2.0, 4.0)
    assert failed.runs[1].codes[1] == failed.runs[1].codes[0]
    pilotfish("rerun", "--cores", "1")
    again = failed.runs[1].specs[2]
    assert (again.time_s, again.request.cores, again.request.cores_max) == (90.0, 1.0, 0.0)


def test_the_site_of_a_rerun(pilotfish: CommandLine, failed: FakeMaster) -> None:
    pilotfish("rerun", "--site", "local:3")
    assert request(failed)["changes"]["sites"] == ["local"]
    assert ("workers_set", {"local": 3}) in failed.asked


@pytest.mark.parametrize(
    ("words", "text", "fix"),
    [
        (["--memory", "2"], "memory: '2' is only 2 B", "such as 2G"),
        (["--time", "soon"], "time: 'soon'", ""),
        (["--site", "nowhere"], "there is no site 'nowhere'", "pilotfish sites"),
        (["1.0", "2.0"], "1.0 2.0 are of several runs", "pilotfish rerun 1.0"),
        (["1.0", "--failed"], "--failed does not go with single tasks", "pilotfish rerun 1.0"),
        (["--cancelled"], "no cancelled task", "pilotfish tasks 1"),
    ],
)
def test_mistakes_are_told_with_what_to_do(pilotfish: CommandLine, failed: FakeMaster, words: list[str], text: str, fix: str) -> None:
    said = pilotfish("rerun", *words)
    assert said.status == 2 and text in said.err and fix in said.err
    assert not any(kind == "rerun" for kind, _ in failed.asked)


def test_a_new_file_whose_name_is_not_utf8_is_refused_before_anything_runs(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("mesh").mkdir()
    Path("mesh/points").write_text("1")
    master.outcome = fail_all
    pilotfish("run", "--input", "mesh", "--", "cat", "mesh/points")
    Path(os.fsdecode(b"mesh/caf\xe9")).write_text("2")
    said = pilotfish("rerun")
    assert said.status == 2 and "error: inputs: 'mesh/caf\\udce9' is not UTF-8\n" in said.err


def test_single_tasks_and_cancelled_ones(pilotfish: CommandLine, failed: FakeMaster) -> None:
    failed.outcome = lambda argv: (0, b"", {})
    assert pilotfish("rerun", "1.1").out.startswith("Run 1: 1 task again.\n")
    assert [task.state for task in failed.runs[1].tasks] == ["failed", "done"]
    failed.runs[1].tasks[1].state = "cancelled"
    assert pilotfish("rerun", "1", "--cancelled").out.startswith("Run 1: 1 task again.\n")
    assert [task.state for task in failed.runs[1].tasks] == ["failed", "done"]
    assert all(task.state in TASK_STATES for task in failed.runs[1].tasks)


def test_a_rerun_tells_its_own_time_and_cancelled_tasks_are_called_cancelled(pilotfish: CommandLine, failed: FakeMaster) -> None:
    failed.outcome = lambda argv: (0, b"", {})
    said = pilotfish("rerun", "1").out
    assert "2 done in " in said and "1 h" not in said and "3600" not in said, said
    task = failed.runs[1].tasks[1]
    for reason, shown in (("asked for", "cancelled"), ("too many failures", "cancelled: too many failures")):
        task.state, task.failure, task.result = "cancelled", Failure("cancelled", "user", reason), b""
        assert f"  {shown}\n" in pilotfish("results", "1").out
        assert f"  {shown}\n" in pilotfish("tasks", "1").out


def test_a_script_that_runs_where_it_is_is_named_if_it_changed_since(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("script.sh").write_text("exit 1")
    os.utime("script.sh", (1, 1))
    master.outcome = fail_all
    pilotfish("run", "--", "sh", "script.sh")
    assert "Changed" not in pilotfish("rerun").out
    os.utime("script.sh")
    assert "Changed since the last try: script.sh\n" in pilotfish("rerun").out


def test_what_must_fail_again_is_not_advised() -> None:
    assert rerun_command(3, [{"cause": "exit"}], some_cancelled=True) == "pilotfish rerun 3"
    assert rerun_command(3, [{"cause": "exit"}, {"cause": "dependency"}]) == "pilotfish rerun 3 --failed"
    assert rerun_command(3, [{"cause": "no-directory"}, {"cause": "version"}, {"cause": "dependency"}]) == ""
    assert rerun_command(3, [{"cause": "missing-output"}]) == ""
    assert rerun_command(3, [{"cause": "missing-output"}, {"cause": "exit"}]) == "pilotfish rerun 3 --failed"


def test_options_are_advised_if_they_help_all_tasks() -> None:
    assert "pilotfish rerun 3 --failed" in fix_with_options(3, [{"cause": "missing-output"}])
    assert "--output" in fix_with_options(3, [{"cause": "missing-output"}, {"cause": "dependency"}, {"cause": "missing-output"}])
    assert "--sandbox" in fix_with_options(3, [{"cause": "no-directory"}])
    for causes in ((), ("exit",), ("dependency",), ("exit", "missing-output"), ("no-directory", "missing-output")):
        assert fix_with_options(3, [{"cause": cause} for cause in causes]) == ""


def test_a_rerun_is_advised_with_twice_the_largest_limit_that_was_reached() -> None:
    times = [{"cause": "time", "limit": 90.0}, {"cause": "time", "limit": 600.0}]
    memory = {"cause": "oom", "limit": 1.5 * 2**30}
    assert rerun_command(3, times) == "pilotfish rerun 3 --failed --time 20m"
    assert rerun_command(3, [memory, {"cause": "exit"}]) == "pilotfish rerun 3 --failed --memory 3G"
    assert rerun_command(3, [*times, memory, {"cause": "dependency"}]) == "pilotfish rerun 3 --failed --memory 3G --time 20m"
    assert rerun_command(3, [{"cause": "oom", "limit": 2**20}]) == "pilotfish rerun 3 --failed --memory 2M"
