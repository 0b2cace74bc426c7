import json
import os
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from pilotfish.applications import input_files
from pilotfish.applications.executables import executable_encoder
from pilotfish.applications.executables.executable import Completed, ExecutableFailed, decode_completed, decode_executable_failure
from pilotfish.applications.executables.executable_encoder import EXECUTABLE_KEYWORDS, ExecutableDefaults, ExecutableEncoder
from pilotfish.applications.input_files import PackedFiles, Source, StoredFile
from pilotfish.applications.reuse.task_keys import FilesVersion, files_version
from pilotfish.applications.task_options import EXECUTABLE_ONLY, TASK_KEYWORDS, read_task_options
from pilotfish.errors import BadInput, DamagedPayload
from pilotfish.model.task import Failure, TaskSpec
from pilotfish.portable.payload_format import pack, unpack
from tests.support.fake_slot import completed_parcel


class Register:
    def __init__(self) -> None:
        self.specs: list[tuple[TaskSpec, bytes]] = []

    def __call__(self, spec: TaskSpec, code: bytes) -> int:
        self.specs.append((spec, code))
        return len(self.specs) - 1


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sim").write_text("#!/bin/sh\n")
    (tmp_path / "sim").chmod(0o755)
    (tmp_path / "model.dat").write_bytes(b"model")
    (tmp_path / "one.dat").write_bytes(b"one")
    return tmp_path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files change with their times, also if they have just been written."""
    monkeypatch.setattr(input_files, "RACY_S", 0.0)


def described(payload: bytes) -> tuple[dict[str, object], list[bytes]]:
    head, *rest = unpack(payload)
    return json.loads(bytes(head)), [bytes(part) for part in rest]


def test_without_files_it_runs_where_we_are(here: Path) -> None:
    register = Register()
    _, payload, _ = ExecutableEncoder(register).encode(["./sim", "--seed", "1"], {}, ExecutableDefaults())
    said, rest = described(payload)
    assert said == {"argv": ["./sim", "--seed", "1"], "env": {}, "inputs": [], "outputs": []}
    assert rest == [b""]
    spec, code = register.specs[0]
    assert (spec.kind, spec.name, code) == ("exec", "sim", b"")
    assert spec.launch["sandbox"] is False
    assert spec.launch["cwd"] == str(here)


def test_with_files_it_gets_a_directory_of_its_own_and_the_program_travels_once() -> None:
    register = Register()
    calls = ExecutableEncoder(register)
    for name in ("one.dat", "model.dat"):
        _, payload, _ = calls.encode(["./sim", name], {"inputs": [name], "outputs": ["out.dat"], "stdin": "hello"}, ExecutableDefaults())
        said, rest = described(payload)
        assert said["inputs"] == [[name, 0o644]]
        assert said["outputs"] == ["out.dat"]
        assert rest == [b"hello", Path(name).read_bytes()]
    ((spec, code),) = register.specs
    assert spec.launch["sandbox"] is True
    assert spec.launch["inputs"] == [["sim", 0o755]]
    assert [bytes(part) for part in unpack(code)] == [b"#!/bin/sh\n"]


def test_defaults_are_shared_and_wishes_of_one_task_make_another_spec() -> None:
    register = Register()
    calls, defaults = ExecutableEncoder(register), ExecutableDefaults()
    defaults.inputs = ["model.dat"]
    defaults.memory = "2 GiB"
    numbers = [calls.encode(["./sim", str(i)], {}, defaults)[0] for i in range(5)]
    numbers.append(calls.encode(["./sim", "big"], {"memory": "4 GiB", "cores": "2-4", "time": "10 min"}, defaults)[0])
    assert numbers == [0, 0, 0, 0, 0, 1]
    small, big = (spec for spec, _ in register.specs)
    assert small.request.memory == 2 << 30
    assert (big.request.memory, big.request.cores, big.request.cores_max, big.time_s) == (4 << 30, 2, 4, 600)


@pytest.mark.parametrize("changed", ["sim", "data/deep/model.dat"])
def test_a_changed_program_or_default_input_is_sent_again_even_if_its_size_and_time_stay(changed: str, here: Path) -> None:
    (here / "data/deep").mkdir(parents=True)
    (here / "data/deep/model.dat").write_text("old")
    register, defaults = Register(), ExecutableDefaults()
    encoder = ExecutableEncoder(register)
    defaults.inputs = ["data"]
    (here / changed).write_text("one")
    stamp = (here / changed).stat()
    for text in ("one", "one", "two"):
        (here / changed).write_text(text)
        os.utime(here / changed, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        number = encoder.encode(["./sim"], {}, defaults)[0]
        assert text.encode() in [bytes(part) for part in unpack(register.specs[number][1])]


def test_files_of_many_executables_are_checked_less_often_and_a_later_change_is_seen(
    here: Path, monkeypatch: pytest.MonkeyPatch, settled: None
) -> None:
    monkeypatch.setattr(executable_encoder, "FREE_CHECKS_S", 0.0)
    seconds = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    checked = list[float]()

    def slow_check(inputs: dict[str, Source]) -> FilesVersion:
        checked.append(seconds[0])
        seconds[0] += 0.001
        return files_version(inputs)

    monkeypatch.setattr(executable_encoder, "files_version", slow_check)
    encoder, defaults = ExecutableEncoder(Register()), ExecutableDefaults()
    defaults.inputs = ["model.dat"]
    numbers = [encoder.encode(["./sim"], {}, defaults)[0] for _ in range(100)]
    assert set(numbers) == {0} and len(checked) == 1
    (here / "model.dat").write_bytes(b"changed")
    seconds[0] += 0.5
    assert encoder.encode(["./sim"], {}, defaults)[0] == 1


def test_the_first_changes_of_a_file_are_seen_however_fast_they_are(here: Path, settled: None) -> None:
    encoder, defaults = ExecutableEncoder(register := Register()), ExecutableDefaults()
    defaults.inputs = ["model.dat"]
    for size in range(3):
        (here / "model.dat").write_bytes(b"x" * size)
        encoder.encode(["./sim"], {}, defaults)
    assert len(register.specs) == 3


def test_without_files_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable_encoder, "files_version", lambda inputs: pytest.fail("there are no files"))
    assert ExecutableEncoder(Register()).encode(["true"], {}, ExecutableDefaults())[0] == 0


def test_an_input_of_one_task_replaces_the_file_of_the_program_in_its_spec_only() -> None:
    encoder = ExecutableEncoder(register := Register())
    for options in ({"inputs": ["one.dat"]}, {"inputs": {"sim": "model.dat"}}):
        encoder.encode(["./sim"], options, ExecutableDefaults())
    assert [spec.launch["inputs"] for spec, _ in register.specs] == [[["sim", 0o755]], []]


def test_a_module_that_a_module_imports_anew_is_sent(here: Path) -> None:
    register = Register()
    encoder = ExecutableEncoder(register)
    (here / "sim.py").write_text("import helper\n")
    for text in ("", "import consts\n"):
        (here / "helper.py").write_text(text)
        (here / "consts.py").write_text("")
        number = encoder.encode(["python", "sim.py"], {"sandbox": True}, ExecutableDefaults())[0]
        names = [entry[0] for entry in register.specs[number][0].launch["inputs"]]
        assert ("consts.py" in names) == bool(text)


@pytest.mark.parametrize(
    ("argv", "options", "said"),
    [
        ("./sim 1", {}, "argv: './sim 1' is not a list of words"),
        ([], {}, "argv: there is no program"),
        (["./sim", 1], {}, r"argv\[1\]: 1 is not text"),
        (["./sim", "a\0b"], {}, r"argv\[1\]"),
        (["./sim"], {"inputs": "model.dat"}, "inputs: 'model.dat' is one name"),
        (["./sim"], {"inputs": ["modle.dat"]}, "inputs: 'modle.dat' does not exist"),
        (["./sim"], {"inputs": ["."]}, "inputs: '.' gives no name to have in the task's directory"),
        (["./sim"], {"inputs": ["/"]}, "inputs: '/' gives no name"),
        (["./sim"], {"inputs": [b"bytes"]}, "inputs: bytes have no name"),
        (["./sim"], {"inputs": [StoredFile(b"bytes")]}, "inputs: this File has no name"),
        (["./sim"], {"inputs": [Future()]}, "inputs: a Future is no file"),
        (["./sim"], {"inputs": {"a": Future()}}, "inputs: a Future is no file"),
        (["./sim"], {"inputs": [3]}, "inputs: 3 is no file"),
        (["./sim"], {"inputs": {"../x": b""}}, "inputs: '../x'"),
        (["./sim"], {"outputs": ["/etc/passwd"]}, "outputs: '/etc/passwd'"),
        (["./sim"], {"outputs": "out.dat"}, "outputs: 'out.dat' is one name"),
        (["./sim"], {"env": {"A": 1}}, r"env\['A'\]: 1 is not text"),
        (["./sim"], {"env": {"A=B": "1"}}, r"env\['A=B'\]"),
        (["./sim"], {"stdin": 5}, "stdin: 5"),
        (["./sim"], {"memroy": "2 GiB"}, "no option 'memroy'"),
        (["./sim"], {"memory": "lots"}, "memory: 'lots'"),
        (["./sim"], {"cwd": "nowhere/at/all"}, "cwd: 'nowhere/at/all'"),
        (["./sim"], {"retries": -1}, "retries: -1"),
        (["./sim"], {"tags": {"site": 1}}, "tags"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_field_value_and_fix(argv: list[str], options: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        ExecutableEncoder(Register()).encode(argv, options, ExecutableDefaults())
    assert caught.value.hint


def test_a_directory_named_in_full_may_be_one_that_only_the_nodes_have() -> None:
    register = Register()
    ExecutableEncoder(register).encode(["sim"], {"cwd": "/only/there"}, ExecutableDefaults())
    assert register.specs[0][0].launch["cwd"] == "/only/there"


def test_a_misspelt_file_or_option_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(BadInput) as caught:
        ExecutableEncoder(Register()).encode(["./sim"], {"inputs": ["modle.dat"]}, ExecutableDefaults())
    assert "model.dat" in caught.value.hint
    with pytest.raises(BadInput) as caught:
        ExecutableDefaults().ouputs = ["x"]
    assert "outputs" in caught.value.hint


def test_what_it_left_comes_back(tmp_path: Path) -> None:
    done = decode_completed(completed_parcel(0, b"out", b"err", {"a.txt": b"A", "d/b.txt": b"B"}))
    assert (done.exit, done.signal, done.stdout, done.stderr, done.text) == (0, None, b"out", b"err", "out")
    written = done.save(tmp_path / "results")
    assert [path.read_bytes() for path in written] == [b"A", b"B"]
    assert (tmp_path / "results/d/b.txt").read_bytes() == b"B"


def test_a_file_that_a_task_left_has_its_name_also_as_an_input() -> None:
    files = decode_completed(completed_parcel(0, b"", b"", {"d/b.txt": b"B"})).files
    _, payload, _ = ExecutableEncoder(Register()).encode(["sim"], {"inputs": [files["d/b.txt"]]}, ExecutableDefaults())
    assert described(payload)[0]["inputs"] == [["d/b.txt", 0o644]]


def test_an_input_that_cannot_be_read_is_told() -> None:
    os.symlink("nowhere", "dangling")
    with pytest.raises(BadInput, match="inputs: 'dangling' cannot be read: no such file or directory"):
        PackedFiles({"a": "dangling"})


def test_outputs_may_be_directories_written_as_such() -> None:
    _, payload, _ = ExecutableEncoder(Register()).encode(["sim"], {"outputs": ["out*/", "./x", "d//e"]}, ExecutableDefaults())
    assert described(payload)[0]["outputs"] == ["out*", "x", "d/e"]


def test_a_python_call_is_told_that_files_are_for_programs() -> None:
    assert set(EXECUTABLE_ONLY) == set(EXECUTABLE_KEYWORDS) - set(TASK_KEYWORDS)
    with pytest.raises(BadInput, match="options: 'inputs' is for programs, not for Python calls") as caught:
        read_task_options({"inputs": ["a"]}, "options")
    assert "run.executable(argv, inputs=…)" in caught.value.hint


def test_a_damaged_report_is_refused() -> None:
    with pytest.raises(DamagedPayload):
        decode_completed(pack([b"{}", b"", b""]))


def test_a_failure_shows_the_end_of_stderr_and_keeps_what_was_left() -> None:
    stderr = "\n".join(f"line {i}" for i in range(50)).encode()
    error = decode_executable_failure(completed_parcel(3, b"out", stderr), Failure("exit", "task", "exit status 3"))
    assert "completed.stderr" in error.hint and "TASK" not in error.hint
    assert isinstance(error, ExecutableFailed)
    assert "line 49" in str(error)
    assert "line 29" not in str(error)
    assert error.completed is not None
    assert error.completed.exit == 3


HOSTILE = ["../x", "/etc/x", "a/../../x", "", ".", "..", "a/", "x\0y", "d/..", "a" * 300]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "results"
    with pytest.raises(BadInput):
        Completed(0, None, b"", b"", {name: StoredFile(b"evil")}).save(target)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"evil"]


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "results"
    outside.mkdir()
    target.mkdir()
    (target / "d").symlink_to(outside)
    (target / "f").symlink_to(outside / "victim")
    (outside / "victim").write_bytes(b"precious")
    with pytest.raises(BadInput, match="cannot be written"):
        Completed(0, None, b"", b"", {"d/x": StoredFile(b"evil")}).save(target)
    Completed(0, None, b"", b"", {"f": StoredFile(b"plain")}).save(target)
    assert (outside / "victim").read_bytes() == b"precious"
    assert not (target / "f").is_symlink()
    assert list(outside.iterdir()) == [outside / "victim"]


def test_setuid_bits_do_not_survive(tmp_path: Path) -> None:
    (path,) = Completed(0, None, b"", b"", {"tool": StoredFile(b"", 0o6777)}).save(tmp_path / "results")
    assert os.stat(path).st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(("given", "number"), [("USR1", 10), ("SIGTERM", 15), ("usr2", 12), (10, 10), (0, 0)])
def test_a_signal_that_warns_is_given_by_name_or_number(given: int | str, number: int) -> None:
    register = Register()
    ExecutableEncoder(register).encode(["true"], {"warn_signal": given}, ExecutableDefaults())
    assert register.specs[0][0].launch.get("warn_signal", 0) == number


@pytest.mark.parametrize("given", ["KILL", "STOP", "SOON", 9, 4711, -1])
def test_a_signal_that_cannot_warn_is_refused(given: int | str) -> None:
    with pytest.raises(BadInput, match="warn signal"):
        ExecutableEncoder(Register()).encode(["true"], {"warn_signal": given}, ExecutableDefaults())
