"""Tests executables in a real agent: streams, files, limits and leftovers."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.agent.slots.output_capture import OUTPUT_CAP
from pilotfish.agent.slots.spooled_stream import MAX_OUTPUT
from pilotfish.applications.executables.executable import LaunchSpec, executable_spec
from pilotfish.model import messages as wire
from tests.support.scripted_master import (
    PATIENCE_S,
    Agent,
    Client,
    FakeMaster,
    alive,
    children,
    eventually,
    parcel,
    running_agent,
    unparcel,
)

pytestmark = pytest.mark.xdist_group("agent executables")  # one fixture serves all of them


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeMaster, Agent, Client]]:
    master = FakeMaster(tmp_path_factory.mktemp("executables"), "unix")
    with running_agent(master, "--cores", "2", "--memory", str(1 << 30)) as agent:
        master.wait_for(wire.Hello)
        yield master, agent, Client(master)
    master.close()


@pytest.fixture
def client(setting: tuple[FakeMaster, Agent, Client]) -> Client:
    return setting[2]


@pytest.fixture
def agent(setting: tuple[FakeMaster, Agent, Client]) -> Agent:
    return setting[1]


def shell(client: Client, script: str, **fields: object) -> int:
    spec_fields = {name: fields.pop(name) for name in ("time_s", "needs", "launch") if name in fields}
    return client.command(client.exec(**spec_fields), "/bin/sh", "-c", script, **fields)  # type: ignore[arg-type]


def test_an_executable_gets_its_arguments_stdin_and_environment(client: Client) -> None:
    spec = client.exec(launch={"env": {"A": "spec", "B": "spec"}})
    task = client.command(spec, "sh", "-c", 'cat; echo "$0 $1 $A $B" >&2; exit 7', "one", "two words", stdin=b"input\n", env={"B": "task"})
    outcome = client.outcome(task)
    assert outcome["failure"].cause == "exit" and outcome["failure"].blame == "task" and outcome["exit"] == 7
    assert outcome["stdout"] == b"input\n" and outcome["stderr"] == b"one two words spec task\n"


def test_the_environment_tells_the_task_who_it_is(client: Client) -> None:
    task = shell(client, "env", time_s=1000.0, needs={"cores": 2.0})
    variables = dict(line.split("=", 1) for line in client.outcome(task)["stdout"].decode().splitlines() if "=" in line)
    assert variables["PILOTFISH_TASK"] == f"0.{task}" and variables["PILOTFISH_ATTEMPT"] == "1"
    assert variables["PILOTFISH_CORES"] == "2" and variables["OMP_NUM_THREADS"] == "2"
    assert float(variables["PILOTFISH_DEADLINE"]) > 1000 and variables["PILOTFISH_WORKER"]


def test_input_files_come_and_output_files_go_and_the_directory_is_removed(client: Client) -> None:
    spec = client.exec(
        launch={"inputs": [["bin/tool", 0o755]], "outputs": ["out.txt"]},
        code=parcel(b"#!/bin/sh\ncat data/x.txt > out.txt\nmkdir -p more; echo 1 > more/a.log; pwd\nchmod 640 out.txt\n"),
    )
    task = client.command(spec, "./bin/tool", inputs=[["data/x.txt", 0o600]], outputs=["more/*.log"], files=(b"content",))
    outcome = client.outcome(task)
    assert outcome["failure"] is None, outcome
    assert outcome["contents"] == {"out.txt": b"content", "more/a.log": b"1\n"} and outcome["modes"]["out.txt"] == 0o640
    assert not os.path.exists(outcome["stdout"].decode().strip())


def test_without_a_sandbox_it_runs_where_it_is_told(client: Client, tmp_path: Path) -> None:
    spec = client.exec(launch={"sandbox": False, "cwd": str(tmp_path), "outputs": ["made"]})
    outcome = client.outcome(client.command(spec, "/bin/sh", "-c", "pwd; echo > made"))
    assert outcome["failure"] is None and outcome["stdout"].decode().strip() == str(tmp_path)
    (tmp_path / "made").unlink()
    assert client.failure(client.command(spec, "/bin/true"))[0] == "missing-output"


@pytest.mark.parametrize(("name", "said"), [("absent", "there is no directory"), ("file", "cannot be entered")])
def test_a_directory_that_this_node_has_not_got_is_named_with_what_helps(client: Client, tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").touch()
    spec = client.exec(launch={"sandbox": False, "cwd": str(tmp_path / name)})
    task = client.command(spec, "/bin/echo", "ran")
    cause, blame, message = client.failure(task)
    assert (cause, blame) == ("no-directory", "site") and said in message
    assert all(word in message for word in (repr(str(tmp_path / name)), os.uname().nodename, "--sandbox", "--input", "cwd="))
    assert client.outcome(task)["stdout"] == b""


def test_a_shell_line_is_run_by_the_shell(client: Client) -> None:
    spec = client.exec(launch={"shell": True})
    assert client.outcome(client.command(spec, "echo $((6 * 7)) | cat"))["stdout"] == b"42\n"


@pytest.mark.parametrize("name", ["../escape", "/tmp/escape", "a/../../escape", "nul\0"])
def test_names_that_lead_out_are_refused_before_anything_runs(client: Client, name: str) -> None:
    task = client.command(client.exec(), "/bin/echo", "ran", inputs=[[name, 0o644]], files=(b"x",))
    assert client.failure(task)[1] == "user" and client.outcome(task)["stdout"] == b""


def test_a_declared_output_that_is_missing_is_a_failure_of_the_task(client: Client) -> None:
    task = client.command(client.exec(), "/bin/sh", "-c", "echo said; ln -s /etc/passwd stolen", outputs=["stolen"])
    cause, blame, message = client.failure(task)
    assert (cause, blame) == ("missing-output", "task") and "stolen" in message
    assert client.outcome(task)["stdout"] == b"said\n"


def test_a_task_may_remove_its_own_directory(client: Client) -> None:
    task = client.command(client.exec(), "/bin/sh", "-c", 'rm -rf "$PWD"; ln -s /etc "$PWD"', outputs=["passwd"])
    assert client.failure(task)[:2] == ("missing-output", "task")
    task = client.command(client.exec(), "/bin/sh", "-c", 'rm -rf "$(dirname "$PWD")"')
    assert client.outcome(task)["failure"] is None
    tasks = [client.command(client.exec(), "/bin/echo", "fine") for _ in range(4)]
    assert {client.outcome(task)["stdout"] for task in tasks} == {b"fine\n"}


def test_processor_time_is_charged_to_the_task_that_used_it(client: Client) -> None:
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    spec = client.exec()
    for task in [client.command(spec, sys.executable, "-c", burn) for _ in range(2)]:
        assert client.outcome(task)["usage"].cpu_us >= 300_000
    nap = client.python(lambda: __import__("time").sleep(0.01))
    for task in [client.call(nap) for _ in range(4)]:
        client.value(task)
        assert client.master.wait_for_result(task)[0].cpu_us < 250_000


def test_programs_that_cannot_start_say_why(client: Client, tmp_path: Path) -> None:
    cause, blame, message = client.failure(client.command(client.exec(), "no-such-program"))
    assert (cause, blame) == ("spawn", "task") and "no-such-program" in message
    assert client.failure(client.command(client.exec(), "/no/such/program"))[:2] == ("spawn", "task")
    assert client.failure(client.command(client.exec(), "/etc/passwd"))[:2] == ("spawn", "task")
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter -u\n")
    script.chmod(0o755)
    cause, blame, message = client.failure(client.command(client.exec(), str(script)))[:3]
    assert (cause, blame) == ("spawn", "task") and "no interpreter '/no/such/interpreter'" in message


def test_a_task_that_cannot_be_read_is_refused_and_the_slot_goes_on(client: Client) -> None:
    spec = client.exec()
    for payload in (b"", b"garbage", parcel(b"{}"), parcel(b"{}", b""), parcel(b"[", b""), parcel(json.dumps({"argv": 5}).encode(), b"")):
        (task,) = client.start(spec, payload)
        assert client.failure(task)[:2] == ("unpickle", "user")
    assert client.outcome(client.command(spec, "/bin/echo", "fine"))["stdout"] == b"fine\n"


def test_endless_output_keeps_head_and_tail_and_costs_no_memory(client: Client) -> None:
    spec = client.exec(launch={"max_output": 1000})
    code = "import sys\nfor n in range(20): sys.stdout.write(str(n % 10) * 1000000)\nsys.stdout.write('the end')"
    outcome = client.outcome(client.command(spec, sys.executable, "-c", code))
    assert outcome["stdout"].startswith(b"0" * 500) and outcome["stdout"].endswith(b"9the end") and len(outcome["stdout"]) == 1000
    assert outcome["stdout_dropped"] == 20_000_007 - 1000


def test_as_much_is_kept_of_an_executables_output_as_of_a_calls_and_as_the_documentation_says(client: Client) -> None:
    def flood(size: int) -> None:
        print("x" * size, end="")

    size, launch = OUTPUT_CAP + 1000, {"max_output": OUTPUT_CAP}
    executable = client.outcome(client.command(client.exec(launch=launch), sys.executable, "-c", f"print('x' * {size}, end='')"))
    call = unparcel(client.master.wait_for_result(client.call(client.python(flood, launch=launch), size))[1])
    assert len(executable["stdout"]) == len(call[2]) == OUTPUT_CAP
    assert executable["stdout_dropped"] == json.loads(call[0])["stdout_dropped"] == 1000
    assert "max_output" not in executable_spec("sh", LaunchSpec())[0].launch, "the agent decides"
    assert (
        f"{MAX_OUTPUT >> 30} GiB of standard output and {MAX_OUTPUT >> 30} GiB of standard error"
        in Path("docs/how-to/files.md").read_text()
    )


def test_stdin_and_output_may_be_large(client: Client) -> None:
    data = os.urandom(5 << 20)
    outcome = client.outcome(client.command(client.exec(), "/bin/cat", stdin=data))
    assert outcome["stdout"] == data


def test_an_ending_by_signal_is_told_with_its_name(client: Client) -> None:
    task = shell(client, "kill -SEGV $$")
    assert client.failure(task) == ("signal", "task", "it was ended by SIGSEGV") and client.outcome(task)["signal"] == 11
    assert client.failure(shell(client, "kill -KILL $$"))[:2] == ("killed", "worker")


def test_what_it_leaves_running_is_ended_with_it(client: Client) -> None:
    script = "sleep 1000 & echo $!; setsid sleep 1000 & echo $!; (setsid sh -c 'sleep 1000 & echo $!; sleep 1000') & sleep 0.2"
    outcome = client.outcome(shell(client, script))
    pids = [int(word) for word in outcome["stdout"].split()]
    assert len(pids) == 3 and not any(alive(pid) for pid in pids)


def test_it_may_kill_its_group_and_its_parent_and_nobody_else_suffers(client: Client, agent: Agent) -> None:
    before = agent.pid
    assert client.failure(shell(client, "kill -KILL 0"))[:2] == ("killed", "worker")
    assert client.failure(shell(client, "kill -KILL $PPID; sleep 1000"))[:2] == ("slot-lost", "worker")
    assert client.outcome(shell(client, "echo fine"))["stdout"] == b"fine\n"
    assert agent.pid == before


def test_a_time_limit_ends_the_whole_tree_and_keeps_what_was_written(client: Client, agent: Agent) -> None:
    task = shell(client, "echo before; sleep 1000 & sleep 1000", time_s=0.3)
    assert client.failure(task)[:2] == ("time", "task")
    assert client.outcome(task)["stdout"] == b"before\n"
    assert [pid for slot in agent.slots() for pid in children(slot)] == []


def test_a_time_limit_is_not_escaped_by_ignoring_the_signal(client: Client) -> None:
    task = shell(client, "trap '' TERM; echo deaf; while :; do sleep 1000; done", time_s=0.3)
    assert client.failure(task)[:2] == ("time", "task")
    assert client.outcome(task)["usage"].wall_us > 2_000_000


def test_the_memory_of_the_whole_tree_counts_against_the_limit(client: Client) -> None:
    code = "import subprocess,sys,time\nblock=bytearray(60<<20)\nblock[::4096]=b'x'*len(block[::4096])\n"
    parent = code + f"subprocess.Popen([sys.executable,'-c',{code + 'time.sleep(1000)'!r}]).wait()"
    task = client.command(client.exec(needs={"memory": float(100 << 20)}), sys.executable, "-c", parent)
    cause, blame, message = client.failure(task)
    assert (cause, blame) == ("oom", "task") and "100 MiB" in message
    usage = client.outcome(task)["usage"]
    assert usage.rss_kib > 100 << 10


def test_a_program_that_alone_exceeds_its_limit_is_to_blame_even_if_the_limit_is_little_more_than_a_slot_needs(client: Client) -> None:
    client.outcome(shell(client, "true"))  # its slot has kept some memory
    code = "import time\nblock=bytearray(60<<20)\nblock[::4096]=b'x'*len(block[::4096])\ntime.sleep(1000)"
    task = client.command(client.exec(needs={"memory": float(20 << 20)}), sys.executable, "-c", code)
    assert client.failure(task)[:2] == ("oom", "task")


def test_neighbours_are_not_touched_when_one_is_killed(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    neighbour = shell(client, f"while [ ! -e {gate} ]; do sleep 0.05; done; echo alive")
    assert client.failure(shell(client, "sleep 1000", time_s=0.2))[0] == "time"
    gate.touch()
    assert client.outcome(neighbour)["stdout"] == b"alive\n"


def test_kill_stops_an_attempt_and_says_nothing_of_it(client: Client, agent: Agent, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    task = shell(client, f"echo $$ > {mark}; sleep 1000")
    eventually(lambda: mark.exists() and mark.read_text().strip())
    client.master.peer.send(wire.Kill([(task, 1)]))
    eventually(lambda: not alive(int(mark.read_text())))
    assert client.outcome(shell(client, "echo next"))["stdout"] == b"next\n"
    assert (task, 1) not in client.master.results


def test_output_of_a_running_executable_can_be_looked_at(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    task = shell(client, f"echo hello; while [ ! -e {gate} ]; do sleep 0.05; done")

    def peek() -> bool:
        client.master.peer.send(wire.Peek(1, task, 1, 1, 2))
        while True:
            message, body = client.master.heard.get(timeout=PATIENCE_S)
            if isinstance(message, wire.Peeked):
                return bool(message.known) and (message.offset, body) == (2, b"llo\n")

    eventually(peek)
    gate.touch()
    assert client.outcome(task)["stdout"] == b"hello\n"


def test_a_sandbox_that_its_task_made_unreadable_is_removed(client: Client) -> None:
    outcome = client.outcome(shell(client, "pwd; mkdir -p a/b; touch a/b/c; chmod 0 a/b a ."))
    assert not os.path.exists(outcome["stdout"].decode().strip())


def test_processor_time_and_memory_of_children_are_measured(client: Client) -> None:
    code = "import time\nblock = bytearray(80 << 20)\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    usage = client.outcome(client.command(client.exec(), "/bin/sh", "-c", f"{sys.executable} -c '{code}'"))["usage"]
    assert usage.cpu_us > 190_000 and usage.wall_us > 190_000 and usage.rss_kib > 30_000


def test_a_look_at_output_is_answered_whatever_the_slot_is_doing(client: Client, agent: Agent, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    task = shell(client, f"echo $PPID > {pid}.new; mv {pid}.new {pid}; exec sleep 1000")
    eventually(pid.exists)
    slot = int(pid.read_text())
    os.kill(slot, signal.SIGSTOP)
    client.master.peer.send(wire.Peek(71, task, 1, 1, 5))
    answer = client.master.wait_for(wire.Peeked)
    assert (answer.query, answer.known, answer.offset) == (71, True, 5)
    client.master.peer.send(wire.Peek(72, task, 1, 1, 5))
    os.kill(slot, signal.SIGKILL)
    assert client.master.wait_for(wire.Peeked).query == 72
    assert client.failure(task)[:2] == ("slot-lost", "worker")


def test_a_look_at_output_is_answered_before_the_slot_is_up(client: Client) -> None:
    tasks = [shell(client, "exec sleep 0.1", needs={"cores": 0.2}) for _ in range(8)]
    for task in tasks:
        client.master.peer.send(wire.Peek(100 + task, task, 1, 1, 0))
    assert {client.master.wait_for(wire.Peeked).query for _ in tasks} == {100 + task for task in tasks}


def test_results_of_short_executables_do_not_wait_for_a_long_one_behind_them(client: Client, tmp_path: Path) -> None:
    """Both slots have prefetched tasks; a report that waits for others to be sent with still leaves while the next task runs."""
    spec = client.exec()
    for task in [client.command(spec, "/bin/true") for _ in range(20)]:
        client.outcome(task)
    gate = tmp_path / "gate"
    payloads = [["/bin/true"]] * 6 + [["/bin/sh", "-c", f"until test -e {gate}; do sleep 0.05; done"]] * 2
    tasks = client.start(spec, *[parcel(json.dumps({"argv": argv}).encode(), b"") for argv in payloads])
    for task in tasks[:6]:
        assert client.outcome(task)["failure"] is None
    gate.touch()
    for task in tasks[6:]:
        assert client.outcome(task)["failure"] is None
