"""Tests with real processes that output files arrive: after kills, detached runs, and in Python."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.terminal import Typist


@pytest.fixture
def typist() -> Iterator[Typist]:
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-outputs-"))
    person = Typist(directory)
    yield person
    said = person.type("stop", "--now", "--json")
    assert said.status == 0, said
    shutil.rmtree(directory)


def test_the_files_of_a_killed_client_arrive_where_it_would_have_put_them(typist: Typist) -> None:
    gate = typist.directory / "gate"
    script = f"while ! test -e {gate}; do sleep 0.02; done; echo {{i}} > frame.png; head -c 100000 /dev/zero > large"
    words = ["--local-cores", "2", "--output", "frame.png=frames/{i:03d}.png", "--output", "large", "--param", "i=1..2"]
    terminal = typist.sit_down("run", *words, "--", "sh", "-c", script)
    terminal.wait_for("2 running")
    os.kill(terminal.process.pid, signal.SIGKILL)
    terminal.finish()
    gate.touch()
    attached = typist.type("attach", "1")
    assert attached.status == 0, attached
    assert attached.out.endswith("4 files in frames/, run-1/\n")
    assert [(typist.directory / f"frames/00{number}.png").read_text() for number in (1, 2)] == ["1\n", "2\n"]
    assert (typist.directory / "run-1/1/large").stat().st_size == 100_000


PROGRAM = """
import os, sys
from pathlib import Path
from pilotfish import Run

with Run(into="all", overwrite="--overwrite" in sys.argv) as run:
    picture = run.executable(["sh", "-c", "echo 1 > frame.png"], outputs={"frame.png": "frames/1.png"})
    picture.result()
    assert picture.destinations == {"frame.png": "frames/1.png"}
    print(Path("all/frames/1.png").read_text(), end="")
    log = run.executable(["sh", "-c", "echo log > log"], outputs=["log"])
    log.result()
    assert log.destinations == {"log": "1/log"}
    if "--die" in sys.argv:
        run.executable(["sh", "-c", "sleep 0.3; echo late > late"], outputs={"late": "late/"})
        run.uid
        run._session.client.ask("run", run=run.id)
        os.kill(os.getpid(), 9)
print(Path("all/1/log").read_text(), end="")
"""


def test_python_gets_output_files_where_it_wants_them_also_after_its_death(typist: Typist) -> None:
    (typist.directory / "draw.py").write_text(PROGRAM)
    assert typist.run(sys.executable, "draw.py").out == "1\nlog\n"
    again = typist.run(sys.executable, "draw.py")
    assert again.status == 1 and "frames/1.png exists and would be overwritten" in again.err
    assert typist.run(sys.executable, "draw.py", "--overwrite", "--die").status == -signal.SIGKILL
    assert typist.type("attach", "3").status in (0, 1)
    assert (typist.directory / "all/late/late").read_text() == "late\n"


def test_the_files_of_rerun_tasks_arrive_beside_those_of_the_first_attempts(typist: Typist) -> None:
    script = f"test {{i}} = 1 -o -e {typist.directory}/fixed && echo {{i}} > frame.png"
    said = typist.type("run", "--output", "frame.png=frames/{i}.png", "--param", "i=1..2", "--", "sh", "-c", script)
    assert said.status == 1 and said.out.endswith("1 file in frames/\n"), said
    (typist.directory / "fixed").touch()
    elsewhere = typist.directory / "elsewhere"
    elsewhere.mkdir()
    again = typist.run("sh", "-c", f"cd {elsewhere} && {typist.command} rerun 1")
    assert again.status == 0 and again.out.endswith(f"2 files in {typist.directory}/frames/\n"), again
    assert [(typist.directory / f"frames/{number}.png").read_text() for number in (1, 2)] == ["1\n", "2\n"]
    assert not list(elsewhere.iterdir())


def test_a_failed_task_delivers_the_outputs_that_exist_and_a_successful_rerun_replaces_them(typist: Typist) -> None:
    here = typist.directory
    script = f"echo partial > part.log; head -c 100000 /dev/zero > large; test -e {here}/fixed && echo whole | tee part.log > absent"
    words = ["--output", "part.log", "--output", "absent", "--output", "large=big/{#}", "--", "sh", "-c", script]
    said = typist.type("run", *words)
    assert said.status == 1 and "exit status 1" in said.out + said.err and "absent" not in said.err, said
    assert (here / "run-1/0/part.log").read_text() == "partial\n"
    assert (here / "big/0").stat().st_size == 100_000
    saved = typist.type("results", "1", "--save", "saved")
    assert saved.status == 0 and sorted(os.listdir(here / "saved/0")) == ["large", "part.log", "stderr", "stdout"], saved
    refused = typist.type("run", "--input", "1.0:part.log", "--", "true")
    assert refused.status != 0 and "task 1.0 is failed" in refused.err, refused
    (here / "fixed").touch()
    again = typist.type("rerun", "1")
    assert again.status == 0 and (here / "run-1/0/part.log").read_text() == "whole\n", again


def test_a_task_that_exceeds_its_time_limit_or_misses_an_output_delivers_the_others(typist: Typist) -> None:
    here = typist.directory
    late = typist.type("run", "--output", "log.txt", "--time", "1s", "--", "sh", "-c", "echo partial > log.txt; sleep 60")
    assert late.status == 1 and (here / "run-1/0/log.txt").read_text() == "partial\n", late
    incomplete = typist.type("run", "--output", "absent", "--output", "log.txt", "--", "sh", "-c", "echo all > log.txt")
    assert incomplete.status == 1 and "did not leave the file 'absent'" in incomplete.err + incomplete.out, incomplete
    assert (here / "run-2/0/log.txt").read_text() == "all\n"


def test_a_misspelt_output_is_answered_with_the_names_of_the_files_and_no_plain_rerun(typist: Typist) -> None:
    words = ["run", "--output", "sumary.json", "--", "sh", "-c", "echo 1 > summary.json; echo 2 > trajectory.csv"]
    left = "it left 'summary.json', 'trajectory.csv'; did you mean 'summary.json'?"
    fix = "run it again with the right name in --output"
    single = typist.type(*words)
    assert single.status == 1 and left in single.err + single.out and f"fix         {fix}" in single.err + single.out, single
    several = typist.type("run", "--times", "2", *words[1:])
    answers = [(run, typist.type("why", name)) for run, name in ((1, "1"), (2, "2"), (2, "2.0"))]
    for run, said in ((1, single), (2, several), *answers):
        assert fix in said.out + said.err and left in said.out + said.err, said
        assert f"correct the program: pilotfish rerun {run} --failed" in said.out + said.err, "a rerun helps if the name was right"
        assert "Rerun:" not in said.out, said


def test_output_files_named_as_streams_are_saved_beside_the_streams(typist: Typist) -> None:
    script = "echo data > stdout; mkdir stderr; echo trace > stderr/1; echo printed; echo told >&2"
    said = typist.type("run", "--output", "stdout", "--output", "stderr/*", "--", "sh", "-c", script)
    assert said.status == 0, said
    saved = typist.type("results", "1", "--save", "saved")
    assert saved.status == 0, saved
    assert "0/stdout is an output file, so the standard output of the task is in 0/stdout.stream" in saved.err
    found = {path: (typist.directory / "saved/0" / path).read_text() for path in ("stdout", "stdout.stream", "stderr/1", "stderr.stream")}
    assert found == {"stdout": "data\n", "stdout.stream": "printed\n", "stderr/1": "trace\n", "stderr.stream": "told\n"}


FAILING = """
from pathlib import Path
from pilotfish import ExecutableFailed, Run

with Run(into="all") as run:
    bad = run.executable(["sh", "-c", "echo partial > part.log; exit 2"], outputs=["part.log"])
    error = bad.exception()
    assert isinstance(error, ExecutableFailed) and error.completed.files["part.log"].content == b"partial\\n", error
    assert bad.destinations == {"part.log": "0/part.log"}, bad.destinations
print(Path("all/0/part.log").read_text(), end="")
"""


def test_python_gets_the_outputs_of_a_failed_executable(typist: Typist) -> None:
    (typist.directory / "fail.py").write_text(FAILING)
    said = typist.run(sys.executable, "fail.py")
    assert said.out == "partial\n", said


def test_a_script_behind_an_interpreter_finds_itself_and_its_own_modules_in_the_sandbox(typist: Typist) -> None:
    here = typist.directory
    (here / "code").mkdir()
    (here / "code/picture.py").write_text("import sys, shades\nopen('out.pgm', 'w').write(shades.of(sys.argv[1]))\n")
    (here / "code/shades.py").write_text("def of(text):\n    return f'P2 {text}\\n'\n")
    drawn = typist.type("run", "--param", "cx=1..2", "--output", "out.pgm={cx}.pgm", "--", sys.executable, "code/picture.py", "{cx}")
    assert drawn.status == 0, drawn
    assert [(here / f"{number}.pgm").read_text() for number in (1, 2)] == ["P2 1\n", "P2 2\n"]
    each = typist.type("run", "--output", "out.pgm=each/{}/", "--", sys.executable, "{}", "7", ":::", "code/picture.py")
    assert each.status == 0, each
    (here / "list").write_text(f"out=out.pgm -- {sys.executable} code/picture.py 5\n" * 2)
    listed = typist.type("run", "--tasks", "list")
    assert listed.status == 0, listed


def test_an_older_run_does_not_put_its_files_over_those_of_a_later_run(typist: Typist) -> None:
    here = typist.directory
    script = here / "gen.sh"
    outputs = ["--input", "gen.sh", "--output", "o.txt=res/{x}.txt"]
    words = ["--resume", *outputs, "--param", "x=1..3", "--", "sh", "-c", "sh gen.sh {x} > o.txt"]

    def read() -> list[str]:
        return [(here / f"res/{x}.txt").read_text() for x in (1, 2, 3)]

    script.write_text("test $1 != 2 && echo old\n")
    assert typist.type("run", "--detach", *words).status == 0
    assert typist.type("attach", "1").status == 1
    script.write_text("echo new\n")
    assert typist.type("run", *words).status == 0
    assert read() == ["new\n"] * 3
    attached = typist.type("attach", "1")
    kept = "were made later by run 2 and are kept; to replace them: pilotfish attach 1 --overwrite\n"
    assert attached.status == 1 and attached.out.endswith(f"res/1.txt and 2 more {kept}"), attached
    assert read() == ["new\n"] * 3
    script.write_text("echo again\n")
    again = typist.type("rerun", "1")
    assert again.status == 0 and again.out.endswith(f"1 file in res/; res/1.txt and 1 more {kept}"), again
    assert read() == ["new\n", "again\n", "new\n"]
    assert typist.type("attach", "2").out.endswith(
        "res/2.txt was made later by run 1 and is kept; to replace it: pilotfish attach 2 --overwrite\n"
    )
    assert typist.type("attach", "1", "--overwrite").status == 0
    assert read() == ["old\n", "again\n", "old\n"]
