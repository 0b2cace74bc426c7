"""Tests with real processes that a long output arrives complete, and that what is left out is marked and told."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.terminal import Typist

pytestmark = pytest.mark.xdist_group("long output")  # one pool serves all of them
LINES = 3_000_000


@pytest.fixture(scope="module")
def typist() -> Iterator[Typist]:
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-output-"))
    person = Typist(directory)
    yield person
    said = person.type("stop", "--now", "--json")
    assert said.status == 0 and json.loads(said.out)["left"] == [], said
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def numbers() -> bytes:
    return subprocess.run(["seq", "1", str(LINES)], capture_output=True, check=True).stdout


def save(typist: Typist, command: str) -> tuple[bytes, bytes]:
    """Returns what a shell command writes to standard output and standard error."""
    typist.run("sh", "-c", f"{command} > out 2> err")
    return (typist.directory / "out").read_bytes(), (typist.directory / "err").read_bytes()


def test_a_long_output_arrives_byte_for_byte_also_on_stderr_of_a_failed_task(typist: Typist, numbers: bytes) -> None:
    script = f"seq 1 {LINES}; seq 1 {LINES} >&2; exit 3"
    out, error = save(typist, f"{typist.command} run --name both -- sh -c '{script}'")
    assert out == numbers and error.startswith(numbers) and b"left out" not in error
    assert b"exit status 3" in error[len(numbers) :]
    assert save(typist, f"{typist.command} logs both --stdout")[0].endswith(b"\n" + numbers)
    assert typist.type("tail", "-n", "1", "1.0").out == f"{LINES}\n"
    assert typist.type("results", "both", "--save", "saved").status == 0
    assert (typist.directory / "saved/0/stderr").read_bytes() == numbers
    row = json.loads(typist.type("results", "both", "--json").out)[0]
    assert (row["stdout_dropped"], row["stderr_dropped"]) == (0, 0) and Path(row["stdout_file"]).read_bytes() == numbers
    assert f"left out here; all of it: {row['stdout_file']}]\n" in row["stdout"]
    assert row["stdout"].endswith(f"\n{LINES}\n") and len(row["stdout"]) < len(numbers) / 10


def test_beyond_the_limit_of_the_user_the_cut_is_marked_and_told(typist: Typist, numbers: bytes) -> None:
    out, error = save(typist, f"{typist.command} run --name cut --max-output 18M -- seq 1 {LINES}")
    head, _, rest = out.partition(b"\n[pilotfish: ")
    mark, _, tail = rest.partition(b"]\n")
    assert numbers.startswith(head) and numbers.endswith(tail) and len(head) + len(tail) == 18 << 20
    assert mark == b"4.01 MB left out here; keep more with --max-output 32M"
    assert error == b"warning: task 2.0: 4.01 MB of stdout left out; a line in the output says where and why\n"
    said = typist.type("results", "cut", "--json")
    assert json.loads(said.out)[0]["stdout_dropped"] == len(numbers) - (18 << 20)
    assert json.loads(typist.type("tasks", "cut", "--json").out)[0]["left_out_bytes"] == len(numbers) - (18 << 20)
    assert "4.01 MB of its output left out" in typist.type("tasks", "cut").out
    assert said.err == "warning: the output of 1 task is not complete; a line in the output says where and why\n"


PROGRAM = """
import sys
from pilotfish import Run

def talk(lines):
    for start in range(0, lines, 10000):
        sys.stdout.write("".join(f"{n}\\n" for n in range(start, start + 10000)))
    if lines == 20000000:
        raise ValueError("enough")

with Run(name="calls") as run:
    call = run.submit(talk, 8000000)
    whole = run.executable(["seq", "1", "3000000"])
    cut = run.executable(["seq", "1", "3000000"], max_output="1M")
call.result()
assert len(call.stdout) == sum(len(f"{n}\\n") for n in range(8000000))
assert whole.result().stdout_file.path.stat().st_size == whole.result().stdout_file.size > 20_000_000
assert f"all of it: {whole.result().stdout_file.path}]" in whole.result().text and whole.result().stdout_dropped == 0
assert b"left out here; keep more with --max-output 32M]" in cut.result().stdout and cut.result().stdout_dropped > 20_000_000
"""


PRIVATE = """
from pilotfish import Executor

def talk(lines, fails):
    print("\\n".join(map(str, range(lines))), flush=True)
    if fails:
        raise ValueError("enough")

with Executor(max_workers=1) as executor:
    good, bad = executor.submit(talk, 4000000, False), executor.submit(talk, 4000000, True)
for future in (good, bad):
    assert future.stdout == ("\\n".join(map(str, range(4000000))) + "\\n").encode()
assert isinstance(bad.exception(), ValueError)
"""


def test_a_future_has_the_whole_output_of_its_call_also_after_its_private_pool(typist: Typist) -> None:
    (typist.directory / "program.py").write_text(PRIVATE)
    said = typist.run(sys.executable, "program.py")
    assert said.status == 0, said.err
    assert said.out.count("MB left out here; all of it: stdout of its future]") == 2 and said.out.count("all of it") == 2


def test_what_a_python_call_prints_arrives_byte_for_byte(typist: Typist) -> None:
    (typist.directory / "program.py").write_text(PROGRAM)
    said = typist.run(sys.executable, "program.py")
    assert said.status == 0, said.err
    out, _ = save(typist, f"{typist.command} logs 3.0")
    assert out == "".join(f"{n}\n" for n in range(8_000_000)).encode()


REUSING = """
import sys
from pilotfish import Run

def talk(lines):
    sys.stdout.write("".join(f"{n}\\n" for n in range(lines)))

with Run(name=sys.argv[1], resume=True) as run:
    call, command = run.submit(talk, 4000000), run.executable(["seq", "1", "3000000"])
    call.result()
    command.result()
print(run.status()["reused"])
"""


def test_a_reused_long_output_outlives_the_run_that_made_it(typist: Typist, numbers: bytes) -> None:
    (typist.directory / "reusing.py").write_text(REUSING)
    for name, reused in (("maker", "0\n"), ("user", "2\n")):
        said = typist.run(sys.executable, "reusing.py", name)
        assert said.status == 0 and said.out == reused, said
    assert typist.type("forget", "maker").status == 0
    assert typist.type("results", "user", "--save", "user").status == 0
    assert (typist.directory / "user/0/stdout").read_bytes() == "".join(f"{n}\n" for n in range(4_000_000)).encode()
    assert (typist.directory / "user/1/stdout").read_bytes() == numbers
