"""Tests with real processes that the output of a single task is shown while it runs, whole and in order."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.terminal import PATIENCE_S, Typist


@pytest.fixture
def typist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typist]:
    person = Typist(tmp_path_factory.mktemp("live"))
    yield person
    said = person.type("stop", "--now", "--json")
    assert said.status == 0, said


WAITING = "while ! test -e {gate}; do sleep 0.02; done"


def test_a_pipe_gets_each_byte_of_a_running_task_once_and_in_order(typist: Typist) -> None:
    gate = typist.directory / "gate"
    script = f"printf 'a\\377b\\n'; echo warned >&2; {WAITING.format(gate=gate)}; seq 1 50000; printf end; exit 3"
    words = [typist.command, "run", "--", "sh", "-c", script]
    process = subprocess.Popen(
        words, cwd=typist.directory, env=typist.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert not gate.exists() and first == b"a\xffb\n"
    gate.touch()
    rest, warned = process.communicate(timeout=PATIENCE_S)
    assert rest == "".join(f"{number}\n" for number in range(1, 50001)).encode() + b"end"
    assert warned.startswith(b"warned\nTask 1.0 failed") and warned.count(b"warned") == 1
    assert process.returncode == 1


def test_a_terminal_shows_lines_of_a_python_script_at_once_and_attach_names_the_output(typist: Typist) -> None:
    gate = typist.directory / "gate"
    (typist.directory / "slow.py").write_text(
        f"import os, time\nprint('working')\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.02)\nprint('finished')\n"
    )
    terminal = typist.sit_down("run", "--", sys.executable, "slow.py")
    terminal.wait_for("working\r\n")
    terminal.press_ctrl_c()
    status, seen = terminal.finish()
    assert status in (0, 130) and "pilotfish attach 1" in seen and seen.count("working") == 1
    gate.touch()
    attached = typist.type("attach", "1")
    assert attached.status == 0 and "pilotfish logs 1.0" in attached.out, attached


def test_a_second_attempt_is_announced_and_shown_whole(typist: Typist) -> None:
    gate = typist.directory / "gate"
    script = f'echo "try $PILOTFISH_ATTEMPT"; if [ "$PILOTFISH_ATTEMPT" = 1 ]; then {WAITING.format(gate=gate)}; exit 1; fi'
    words = [typist.command, "run", "--retries", "1", "--", "sh", "-c", script]
    process = subprocess.Popen(
        words, cwd=typist.directory, env=typist.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"try 1\n"
    gate.touch()
    rest, told = process.communicate(timeout=PATIENCE_S)
    assert rest == b"try 2\n" and b"attempt 2" in told
    assert process.returncode == 0
