"""Python calls get input files: each call runs in a fresh directory that has them under their names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotfish import Executor, Run
from pilotfish.errors import BadInput, TaskFailed
from tests.support.scripted_master import eventually


def read(*names: str) -> dict[str, bytes]:
    from pathlib import Path

    return {name: Path(name).read_bytes() for name in names}


def spoil(name: str) -> list[str]:
    import os

    before = sorted(os.listdir("."))
    with open(name, "w") as file:
        file.write("spoiled")
    open("scratch.tmp", "w").close()
    return [os.getcwd(), *before]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A small file, a file that is sent as a content, and a directory, in the current directory."""
    monkeypatch.chdir(tmp_path)
    found = {"model.dat": b"model", "large.bin": os.urandom(200_000), "tables/a/one.txt": b"one", "tables/two.txt": b"two"}
    for name, content in found.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    return found


def test_calls_find_their_inputs_by_name_in_a_directory_of_their_own(files: dict[str, bytes], tmp_path: Path) -> None:
    inputs = ["model.dat", "large.bin", "tables"]
    with Executor(2, inputs=inputs) as executor:
        assert executor.submit(read, *files).result() == files
        first, *listed = executor.submit(spoil, "model.dat").result()
        second, *listed_again = executor.submit(spoil, "model.dat").result()
        assert listed == listed_again == ["large.bin", "model.dat", "tables"]
        assert len({first, second, str(tmp_path)}) == 3
        eventually(lambda: not os.path.exists(first) and not os.path.exists(second))
        assert executor.submit(read, *files).result() == files
    assert {name: Path(name).read_bytes() for name in files} == files


def test_options_of_a_run_give_inputs_under_other_names_and_other_calls_run_where_they_did(files: dict[str, bytes]) -> None:
    with Run("inputs") as run:
        named = run.options(inputs={"m/x.dat": "model.dat", "given": b"bytes"})
        assert named.submit(read, "m/x.dat", "given").result() == {"m/x.dat": b"model", "given": b"bytes"}
        plain = run.submit(os.getcwd)
        in_sandbox = named.submit(os.getcwd)
        assert plain.result() == os.getcwd() != in_sandbox.result()
        assert run.submit(os.getcwd).result() == os.getcwd()
        with pytest.raises(FileNotFoundError):
            named.submit(read, "model.dat").result()


def test_inputs_are_sent_as_they_are_when_options_is_called(files: dict[str, bytes]) -> None:
    with Run("now") as run:
        old = run.options(inputs=["model.dat"])
        Path("model.dat").write_bytes(b"new")
        new = run.options(inputs=["model.dat"])
        assert [one.submit(read, "model.dat").result()["model.dat"] for one in (old, new)] == [b"model", b"new"]


def test_a_call_that_is_killed_leaves_no_directory(files: dict[str, bytes]) -> None:
    def say_and_die(place: str) -> None:
        import os
        import signal
        from pathlib import Path

        Path(place).write_text(os.getcwd())
        os.kill(os.getpid(), signal.SIGKILL)

    place = Path("where").absolute()
    with Run("killed") as run:
        future = run.options(inputs=["model.dat"]).submit(say_and_die, str(place))
        with pytest.raises(TaskFailed):
            future.result()
        eventually(lambda: not os.path.exists(place.read_text()))


def test_wrong_inputs_are_refused_at_once(files: dict[str, bytes]) -> None:
    with pytest.raises(BadInput, match="'modle.dat' does not exist"):
        Executor(1, inputs=["modle.dat"])
    with pytest.raises(BadInput, match="is one name, not a list"):
        Executor(1, inputs="model.dat")
