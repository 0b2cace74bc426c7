"""Tests Python calls and application workers in a real agent."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.agent.slots.output_capture import OUTPUT_CAP
from pilotfish.model import messages as wire
from tests.support.scripted_master import PATIENCE_S, Agent, Client, FakeMaster, alive, call_payload, eventually, running_agent, unparcel

pytestmark = pytest.mark.xdist_group("agent calls")  # one fixture serves all of them


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeMaster, Agent, Client]]:
    master = FakeMaster(tmp_path_factory.mktemp("calls"), "unix")
    with running_agent(master, "--cores", "2", "--memory", str(1 << 30)) as agent:
        master.wait_for(wire.Hello)
        yield master, agent, Client(master)
    master.close()


@pytest.fixture
def client(setting: tuple[FakeMaster, Agent, Client]) -> Client:
    return setting[2]


def payload_parts(client: Client, task: int) -> list[bytes]:
    return unparcel(client.master.wait_for_result(task)[1])


def test_a_call_returns_its_value_and_is_measured(client: Client) -> None:
    def work(count: int) -> int:
        return sum(range(count))

    task = client.call(client.python(work), 2_000_000)
    assert client.value(task) == sum(range(2_000_000))
    item, _ = client.master.wait_for_result(task)
    assert item.wall_us > 1000 and item.cpu_us > 1000 and item.rss_kib > 1000


def test_many_calls_all_come_back(client: Client) -> None:
    spec = client.python(lambda number: number * 2)
    tasks = client.start(spec, *[call_payload(number) for number in range(3000)])
    assert [client.value(task) for task in tasks] == [2 * number for number in range(3000)]


def test_one_long_call_does_not_hold_up_short_ones_behind_it(client: Client, tmp_path: Path) -> None:
    def work(gate: str) -> str:
        import time

        while gate and not os.path.exists(gate):
            time.sleep(0.01)
        return gate

    spec = client.python(work)
    for task in client.start(spec, *[call_payload("")] * 50):
        client.value(task)
    gate = tmp_path / "gate"
    (held, *others) = client.start(spec, call_payload(str(gate)), *[call_payload("")] * 200)
    for task in others:
        assert client.value(task) == ""
    assert (held, 1) not in client.master.results
    gate.touch()
    assert client.value(held) == str(gate)


def test_in_a_mixture_of_short_and_long_calls_each_runs_exactly_once(client: Client, tmp_path: Path) -> None:
    def work(number: int, path: str) -> int:
        import time

        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, b"%d\n" % number)
        os.close(descriptor)
        if number % 37 == 5:
            time.sleep(0.04)
        elif number % 11 == 3:
            time.sleep(0.002)
        return number

    tasks = client.start(client.python(work), *[call_payload(number, str(tmp_path / "log")) for number in range(1500)])
    assert [client.value(task) for task in tasks] == list(range(1500))
    assert sorted(map(int, (tmp_path / "log").read_text().split())) == list(range(1500))


def test_the_result_of_a_quick_call_does_not_wait_for_a_slow_one_that_follows_it(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def work(path: str) -> int:
        import time

        while path and not os.path.exists(path):
            time.sleep(0.01)
        return 1

    spec = client.python(work)
    for task in client.start(spec, *[call_payload("")] * 500):
        client.value(task)
    quick_and_slow = [call_payload("")] * 20 + [call_payload(str(gate))]
    *quick, slow = client.start(spec, *quick_and_slow)
    for task in quick:
        assert client.value(task) == 1
    gate.touch()
    assert client.value(slow) == 1


def test_an_exception_comes_back_with_its_traceback_and_its_output(client: Client) -> None:
    def fail() -> None:
        print("before")
        sys.stderr.write("trouble\n")
        raise KeyError("missing")

    task = client.call(client.python(fail))
    assert client.failure(task) == ("exception", "task", "KeyError: 'missing'")
    meta, pickled, out, error = payload_parts(client, task)
    assert b'"type": "KeyError"' in meta and b"in fail" in meta and b"pilotfish_agent" not in meta
    import pickle

    assert isinstance(pickle.loads(pickled), KeyError)
    assert (out, error) == (b"before\n", b"trouble\n")


def test_an_exception_that_cannot_be_pickled_comes_back_as_text(client: Client) -> None:
    def fail() -> None:
        class Odd(Exception):
            def __reduce__(self) -> Any:
                raise RuntimeError("no")

        raise Odd("strange")

    task = client.call(client.python(fail))
    assert client.failure(task) == ("exception", "task", "Odd: strange")
    assert payload_parts(client, task)[1] == b""


def test_a_message_that_is_no_proper_text_does_no_harm(client: Client) -> None:
    def fail() -> None:
        raise ValueError("half a pair: \udcff \x00 end")

    cause, _, message = client.failure(client.call(client.python(fail)))
    assert cause == "exception" and message.startswith("ValueError: half a pair: ") and message.endswith("end")


def test_a_call_whose_directory_is_not_on_this_node_runs_in_a_directory_of_the_worker(client: Client, tmp_path: Path) -> None:
    absent, file = tmp_path / "absent", tmp_path / "file"
    file.touch()
    places = [client.value(client.call(client.python(os.getcwd, launch={"cwd": str(place)}))) for place in (absent, file)]
    assert not any(place.startswith(str(tmp_path)) for place in places) and all("slot-" in place for place in places)
    spec = client.python(os.getcwd, launch={"cwd": str(absent)})
    assert all("slot-" in client.value(client.call(spec)) for _ in range(2))
    assert client.value(client.call(client.python(os.getcwd, launch={"cwd": str(tmp_path)}))) == str(tmp_path)


def test_a_kind_of_task_that_is_not_known_is_said_to_be_so(client: Client) -> None:
    cause, blame, message = client.failure(client.call(client.spec("music", {})))
    assert (cause, blame) == ("spawn", "worker") and "music" in message


def test_output_belongs_to_the_call_that_wrote_it_at_whatever_level(client: Client) -> None:
    def talk(number: int) -> None:
        import subprocess

        print("python", number, flush=False)
        os.write(1, b"descriptor %d\n" % number)
        subprocess.run(["/bin/echo", "child", str(number)])

    spec = client.python(talk)
    tasks = [client.call(spec, number) for number in range(6)]
    for number, task in enumerate(tasks):
        lines = sorted(payload_parts(client, task)[2].decode().splitlines())
        assert lines == [f"child {number}", f"descriptor {number}", f"python {number}"]


def test_endless_output_is_cut_to_head_and_tail(client: Client) -> None:
    def talk() -> int:
        line = b"x" * 99 + b"\n"
        for _ in range(300):
            os.write(1, line * 1000)
        os.write(1, b"the end")
        return 300 * 100_000

    task = client.call(client.python(talk, launch={"max_output": OUTPUT_CAP}))
    total = client.value(task) + len("the end")
    meta, _, out, _ = payload_parts(client, task)
    import json

    assert len(out) <= OUTPUT_CAP and out.endswith(b"the end")
    assert json.loads(meta)["stdout_dropped"] == total - len(out)


def test_large_values_travel_out_of_band_and_arguments_are_writable(client: Client) -> None:
    def flip(data: Any) -> Any:
        import pickle

        data[0] = 255 - data[0]
        return pickle.PickleBuffer(data)

    import pickle

    original = bytearray(os.urandom(3 << 20))
    task = client.call(client.python(flip), pickle.PickleBuffer(original))
    result = client.value(task)
    assert bytes(result[1:]) == bytes(original[1:]) and result[0] == 255 - original[0]
    assert len(payload_parts(client, task)) == 5


def test_read_only_arguments_stay_read_only(client: Client) -> None:
    import pickle

    def check(data: Any) -> bool:
        return memoryview(data).readonly

    spec = client.python(check)
    assert client.value(client.call(spec, pickle.PickleBuffer(b"constant"))) is True
    assert client.value(client.call(spec, pickle.PickleBuffer(bytearray(b"variable")))) is False


def test_a_result_that_cannot_be_pickled_is_said_to_be_so(client: Client) -> None:
    task = client.call(client.python(lambda: __import__("threading").Lock()))
    cause, blame, message = client.failure(task)
    assert (cause, blame) == ("result", "user") and "lock" in message


def test_a_lambda_can_be_a_result(client: Client) -> None:
    assert client.value(client.call(client.python(lambda: lambda x: x + 1)))(41) == 42


def test_a_function_that_cannot_be_loaded_is_said_to_be_so(client: Client) -> None:
    task = client.call(client.spec("python", {"form": "pickle", "python": list(sys.version_info[:2])}, b"garbage"))
    assert client.failure(task)[:2] == ("unpickle", "user")
    task = client.start(client.python(lambda: 1), b"garbage")[0]
    assert client.failure(task)[:2] == ("unpickle", "user")


def test_another_python_is_named_with_the_remedy(client: Client) -> None:
    task = client.call(client.python(lambda: 1, launch={"python": [3, 6]}))
    cause, blame, message = client.failure(task)
    assert (cause, blame) == ("version", "user")
    assert "3.6" in message and ".".join(map(str, sys.version_info[:2])) in message and "source" in message


def test_a_function_may_travel_as_source(client: Client) -> None:
    source = "import math\ndef area(radius):\n    return math.pi * radius ** 2\n"
    spec = client.python(source, launch={"form": "source", "name": "area", "python": [2, 7]})
    assert client.value(client.call(spec, 1)) == pytest.approx(3.14159, abs=1e-4)
    task = client.call(client.python("def f(:\n", launch={"form": "source"}))
    assert client.failure(task)[:2] == ("unpickle", "user")


def test_each_spec_gets_its_environment_directory_and_path(client: Client, tmp_path: Path) -> None:
    (tmp_path / "module_of_mine.py").write_text("VALUE = 7\n")

    def look() -> Any:
        import subprocess

        import module_of_mine  # type: ignore[import-not-found]

        names = ("COLOUR", "PILOTFISH_CORES", "PILOTFISH_TASK", "PILOTFISH_ATTEMPT", "PILOTFISH_WORKER", "OMP_NUM_THREADS")
        child = subprocess.run(["/bin/sh", "-c", "echo $PILOTFISH_TASK $COLOUR"], stdout=subprocess.PIPE).stdout.decode().split()
        return module_of_mine.VALUE, os.getcwd(), [os.environ.get(name) for name in names], child

    spec = client.python(look, launch={"env": {"COLOUR": "red"}, "cwd": str(tmp_path), "path": [str(tmp_path)]})
    other = client.python(lambda: os.environ.get("COLOUR"))
    for task in [client.call(spec if number % 2 else other) for number in range(8)]:
        client.value(task)
    task = client.call(spec)
    value, directory, variables, child = client.value(task)
    assert child == [f"0.{task}", "red"]
    assert (value, directory) == (7, str(tmp_path))
    assert variables[:4] == ["red", "1", f"0.{task}", "1"] and variables[4] and variables[5] == "1"
    assert {client.value(client.call(other)) for _ in range(6)} == {None}


def test_what_a_call_changes_in_its_surroundings_is_put_right_for_the_next(client: Client, tmp_path: Path) -> None:
    def spoil() -> None:
        os.environ["SPOILT"] = "yes"
        os.environ.pop("PATH", None)
        os.chdir("/")
        sys.stdout = None
        os.close(1)

    def look() -> Any:
        print("still here")
        return os.environ.get("SPOILT"), "PATH" in os.environ, os.getcwd()

    spoiling, looking = client.python(spoil), client.python(look, launch={"cwd": str(tmp_path)})
    for _ in range(4):
        client.value(client.call(spoiling))
        task = client.call(looking)
        assert client.value(task) == (None, True, str(tmp_path))
        assert payload_parts(client, task)[2] == b"still here\n"


@pytest.mark.parametrize("way", ["sys.exit(3)", "raise SystemExit('bye')", "raise KeyboardInterrupt", "raise GeneratorExit"])
def test_calls_that_want_to_end_the_process_are_failures_like_others(client: Client, way: str) -> None:
    spec = client.python(f"import sys\ndef f():\n    {way}\n", launch={"form": "source"})
    assert client.failure(client.call(spec))[:2] == ("exception", "task")


def test_a_call_that_forks_and_returns_twice_counts_once(client: Client) -> None:
    def fork() -> int:
        os.fork()
        return 1

    spec = client.python(fork)
    tasks = [client.call(spec) for _ in range(5)]
    assert [client.value(task) for task in tasks] == [1] * 5


def test_children_left_behind_are_ended_after_the_call(client: Client) -> None:
    def leave(kind: str) -> int:
        import subprocess
        import sys

        if kind == "plain":
            return subprocess.Popen(["sleep", "1000"]).pid
        if kind == "session":
            return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid
        code = "import os, subprocess\nif os.fork(): os._exit(0)\nos.setsid()\n"
        code += "print(subprocess.Popen(['sleep', '1000'], stdout=2).pid, flush=True)"
        return int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE).stdout)

    spec = client.python(leave)
    for kind in ("plain", "session", "twice"):
        pid = client.value(client.call(spec, kind))
        assert not alive(pid), kind


def test_multiprocessing_works_in_one_call_after_the_other(client: Client) -> None:
    def work() -> list[int]:
        import multiprocessing

        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(abs, [-1, -2])

    spec = client.python(work)
    for _ in range(4):
        task = client.call(spec)
        assert client.value(task) == [1, 2]
        assert payload_parts(client, task)[3] == b""


def test_an_application_worker_is_made_once_per_slot_and_keeps_its_children(client: Client) -> None:
    class Worker:
        def initialize(self) -> None:
            import subprocess

            self.helper = subprocess.Popen(["sleep", "1000"])
            self.count = 0

        def do_work(self, parameters: Any) -> Any:
            self.count += 1
            return os.getpid(), self.count, self.helper.poll(), parameters

    import pickle

    from tests.support.scripted_master import parcel

    spec = client.python(Worker, kind="application")
    tasks = client.start(spec, *[parcel(pickle.dumps({"n": number})) for number in range(20)])
    values = [client.value(task) for task in tasks]
    assert all(value[2] is None for value in values) and [value[3] for value in values] == [{"n": number} for number in range(20)]
    for pid in {value[0] for value in values}:
        counts = [value[1] for value in values if value[0] == pid]
        assert sorted(counts) == list(range(1, len(counts) + 1))


def test_output_of_a_running_call_can_be_looked_at(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def talk(path: str) -> None:
        import time

        print("hello", flush=True)
        while not os.path.exists(path):
            time.sleep(0.01)

    task = client.call(client.python(talk), str(gate))
    assert client.master.wait_for(wire.Heartbeat).started or client.master.wait_for(wire.Heartbeat).started

    def peek() -> bool:
        client.master.peer.send(wire.Peek(1, task, 1, 1, 0))
        while True:
            message, body = client.master.heard.get(timeout=PATIENCE_S)
            if isinstance(message, wire.Peeked):
                return bool(message.known) and body == b"hello\n"

    eventually(peek)
    client.master.peer.send(wire.Peek(2, 999_999, 1, 1, 0))
    assert client.master.wait_for(wire.Peeked).known is False
    gate.touch()
    client.value(task)


def ask_usage(client: Client, task: int) -> tuple[float, int]:
    client.master.peer.send(wire.Peek(7, task, 1, 0, 0))
    while True:
        message, body = client.master.heard.get(timeout=PATIENCE_S)
        if isinstance(message, wire.Peeked) and message.query == 7:
            return tuple(json.loads(body)) if message.known and body else (0.0, 0)


def test_cpu_time_and_memory_of_a_running_call_are_told_on_request_without_those_of_earlier_calls(client: Client, tmp_path: Path) -> None:
    def work(seconds: float, size: int, path: str) -> None:
        import time

        block = bytearray(size)
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        open(path + ".worked", "w").close()
        while not os.path.exists(path):
            time.sleep(0.01)
        del block

    spec, gate = client.python(work), tmp_path / "gate"
    task = client.call(spec, 0.3, 100 << 20, str(gate))
    eventually((tmp_path / "gate.worked").exists)
    cpu_s, memory = ask_usage(client, task)
    assert 0.2 < cpu_s < 10 and memory > 100 << 20
    gate.touch()
    client.value(task)
    second = tmp_path / "second"
    later = client.call(spec, 0.0, 0, str(second))
    eventually((tmp_path / "second.worked").exists)
    assert ask_usage(client, later)[0] < 0.2
    second.touch()
    client.value(later)


@pytest.mark.parametrize(
    "harm",
    [
        "import pickle; pickle.loads = pickle.dumps = None",
        "import json; json.loads = json.dumps = None",
        "import os; os.getpid = os.lseek = os.pread = None",
        "import os; os._exit = None",
        "import time; time.perf_counter = time.process_time = time.time = None",
        "import sys; sys.stdout = sys.stderr = None",
        "import sys; sys.stdout.close()",
        "import resource; resource.getrusage = None",
        "import builtins; builtins.len = None",
        "import builtins; builtins.isinstance = None",
        "import builtins; builtins.sorted = None",
        "import builtins; del builtins.__import__",
        "import traceback; traceback.format_exception = None",
    ],
)
def test_a_call_that_breaks_its_process_harms_no_later_call(harm: str, tmp_path: Path) -> None:
    def work(number: int) -> tuple[int, list[str]]:
        import textwrap

        print("working")
        return len(str(number)), sorted(textwrap.wrap("b a", 1))

    def fail(number: int) -> None:
        raise ValueError(number)

    master = FakeMaster(tmp_path, "unix")
    with running_agent(master, "--cores", "1"):
        master.wait_for(wire.Hello)
        client = Client(master)
        assert client.value(client.call(client.python(work), 1)) == (1, ["a", "b"])
        harming = client.call(client.python(f"def f():\n    {harm}\n", launch={"form": "source"}))
        tasks = [client.call(client.python(function), 1234) for function in (work, fail, work)]
        item, _ = master.wait_for_result(harming)
        assert item.failure is None or item.failure.blame == "worker"
        for task in tasks:
            failure = master.wait_for_result(task)[0].failure
            assert failure is None or failure.blame == "worker" or (failure.cause, task) == ("exception", tasks[1]), failure
        assert client.value(client.call(client.python(work), 1)) == (1, ["a", "b"])
        assert client.failure(client.call(client.python(fail), 7)) == ("exception", "task", "ValueError: 7")
    master.close()
