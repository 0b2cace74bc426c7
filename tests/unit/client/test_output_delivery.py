"""Tests the copying of output files: again, by several clients, next to files of the user, and after a kill at any moment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pilotfish.applications.input_files import StoredFile
from pilotfish.client.outputs.output_delivery import DeliveredFiles, OutputDelivery
from pilotfish.client.outputs.output_destinations import OutputDestinations, read_destinations
from pilotfish.errors import BadInput, PilotfishError


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    directory = tmp_path / "pool"
    directory.mkdir()
    return directory


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "home"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def deliver(pool: Path, files: dict[int, dict[str, bytes]], overwrite: bool = False, run: int = 1) -> DeliveredFiles:
    destinations = read_destinations(pool, run)
    assert destinations is not None
    delivery = OutputDelivery(pool, run, destinations, overwrite)
    with delivery.locked():
        for index, named in files.items():
            delivery.copy_task(index, {name: StoredFile(data, size=len(data), name=name) for name, data in named.items()})
    return delivery.found


def test_a_later_client_knows_the_destinations_of_the_first(pool: Path, home: Path) -> None:
    OutputDestinations(str(home), by_task={0: {"a": "x/0"}}).record(pool, 1)
    with (pool / "outputs-1.jsonl").open("a") as file:
        file.write('[1, {"a": ')  # its client was killed here
    assert read_destinations(pool, 1) == OutputDestinations(str(home), by_task={0: {"a": "x/0"}})
    assert read_destinations(pool, 2) is None
    assert (pool / "outputs-1.jsonl").stat().st_mode & 0o077 == 0


def test_a_second_delivery_writes_nothing_and_counts_the_same(pool: Path, home: Path) -> None:
    OutputDestinations(str(home), by_task={0: {"a": "x/0"}, 1: {"a": "x/1"}}).record(pool, 1)
    files = {0: {"a": b"zero"}, 1: {"a": b"one"}}
    first = deliver(pool, files)
    before = (home / "x/1").stat()
    second = deliver(pool, files)
    assert (first.describe(), second.describe()) == ("2 files in x/", "2 files in x/")
    assert (home / "x/1").stat() == before
    assert sorted(os.listdir(home / "x")) == ["0", "1"], "no temporary file is left"


def test_a_new_version_replaces_the_file_of_an_earlier_attempt(pool: Path, home: Path) -> None:
    OutputDestinations(str(home), by_task={0: {"a": "x/0"}}).record(pool, 1)
    deliver(pool, {0: {"a": b"half"}})
    assert deliver(pool, {0: {"a": b"whole"}}).error() is None
    assert (home / "x/0").read_bytes() == b"whole"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "files",
    [{0: {"a.txt": b"a", "b.txt": b"b"}}, {0: {"a.txt": b"a"}, 1: {"b.txt": b"b"}}, {0: {"a.txt": b"a"}, 1: {"a.txt": b"b"}}],
)
def test_two_files_with_one_destination_are_told_and_the_first_is_kept(
    pool: Path, home: Path, files: dict[int, dict[str, bytes]], overwrite: bool
) -> None:
    OutputDestinations(str(home), by_task={index: dict.fromkeys(named, "q") for index, named in files.items()}).record(pool, 1)
    for _ in range(2):
        problem = deliver(pool, files, overwrite).error()
        assert problem is not None and "q is the destination of a.txt of task 0 and " in str(problem)
        assert "pilotfish results 1 --save DIR" in problem.hint and "--overwrite" not in problem.hint
        assert (home / "q").read_bytes() == b"a"


def test_a_file_of_the_user_is_never_replaced_silently(pool: Path, home: Path) -> None:
    OutputDestinations(str(home), by_task={0: {"a": "mine"}, 1: {"a": "free"}}).record(pool, 1)
    (home / "mine").write_text("thesis")
    found = deliver(pool, {0: {"a": b"new"}, 1: {"a": b"one"}})
    assert (home / "mine").read_text() == "thesis"
    assert (home / "free").read_text() == "one", "the other files are copied"
    problem = found.error()
    assert problem is not None and "mine exists and was not made by run 1" in str(problem)
    assert "pilotfish attach 1 --overwrite" in problem.hint
    assert deliver(pool, {0: {"a": b"new"}}, overwrite=True).error() is None
    assert (home / "mine").read_text() == "new"


def test_a_delivered_file_that_the_user_edited_is_the_users(pool: Path, home: Path) -> None:
    OutputDestinations(str(home), by_task={0: {"a": "x"}}).record(pool, 1)
    deliver(pool, {0: {"a": b"first"}})
    (home / "x").write_text("edited")
    os.utime(home / "x", ns=(1, 1))
    assert deliver(pool, {0: {"a": b"second"}}).kept_back == ["x"]
    assert (home / "x").read_text() == "edited"


def test_a_file_of_another_size_is_the_users_even_if_its_time_was_restored(pool: Path, home: Path) -> None:
    OutputDestinations(str(home), by_task={0: {"a": "a"}}).record(pool, 1)
    deliver(pool, {0: {"a": b"made"}})
    before = (home / "a").stat()
    (home / "a").write_text("edited")
    os.utime(home / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert deliver(pool, {0: {"a": b"made"}}).kept_back == ["a"]
    assert (home / "a").read_text() == "edited"


def test_a_delivered_file_that_is_gone_comes_again(pool: Path, home: Path) -> None:
    OutputDestinations(str(home), by_task={0: {"a": "x"}}).record(pool, 1)
    deliver(pool, {0: {"a": b"first"}})
    (home / "x").unlink()
    assert deliver(pool, {0: {"a": b"first"}}).files == 1
    assert (home / "x").read_text() == "first"


def test_an_equal_file_of_another_client_is_taken_as_it_is(pool: Path, home: Path) -> None:
    OutputDestinations(str(home), by_task={0: {"a": "x"}}).record(pool, 1)
    (home / "x").write_text("same")
    assert (deliver(pool, {0: {"a": b"same"}}).files, deliver(pool, {0: {"a": b"same"}}).error()) == (1, None)


def test_two_tasks_of_a_run_do_not_overwrite_each_other(pool: Path, home: Path) -> None:
    OutputDestinations(str(home), by_task={0: {"*.dat": "all/"}, 1: {"*.dat": "all/"}}).record(pool, 1)
    found = deliver(pool, {0: {"x.dat": b"0"}, 1: {"x.dat": b"1", "y.dat": b"1"}})
    assert (home / "all/x.dat").read_text() == "0" and (home / "all/y.dat").read_text() == "1"
    assert found.kept_back == ["all/x.dat"]


@pytest.mark.parametrize("moment", ["before the name", "before the ledger"])
def test_a_kill_at_any_moment_leaves_whole_files_and_the_next_client_completes_them(
    pool: Path, home: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    OutputDestinations(str(home), by_task={0: {"a": "x"}, 1: {"a": "y"}}).record(pool, 1)

    class Killed(BaseException):
        pass

    def die(*arguments: object) -> None:
        raise Killed

    target = "pilotfish.applications.safe_paths._name_new" if moment == "before the name" else f"{OutputDelivery.__module__}.json.dumps"
    with monkeypatch.context() as patched:
        patched.setattr(target, die)
        with pytest.raises(Killed):
            deliver(pool, {0: {"a": b"zero"}})
    assert not (home / "x").exists()
    with (pool / "delivered-1.jsonl").open("ab") as ledger:
        ledger.write(b'["/home/x", 0, "ab')
    assert deliver(pool, {0: {"a": b"zero"}, 1: {"a": b"one"}}).error() is None
    assert deliver(pool, {0: {"a": b"ZERO"}, 1: {"a": b"one"}}).error() is None, "the ledger can be read after the torn line"
    assert ((home / "x").read_text(), (home / "y").read_text()) == ("ZERO", "one")


def test_a_directory_with_the_name_of_a_file_is_named_as_the_cause(pool: Path, home: Path) -> None:
    (home / "d").mkdir()
    delivery = OutputDelivery(pool, 1, OutputDestinations(str(home), "", overwrite=True, by_task={0: {"d": "d"}}))
    problem = delivery.copy(0, {"d": StoredFile(b"new", name="d")}).error()
    assert problem is not None and "there is a directory 'd'" in str(problem)
    assert "name another destination" in problem.hint and "df" not in problem.hint


def test_a_link_in_the_way_is_not_followed(pool: Path, home: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (home / "frames").symlink_to(tmp_path / "elsewhere")
    destinations = OutputDestinations(str(home), by_task={0: {"a": "frames/0"}})
    with pytest.raises(BadInput, match="is a link or no directory"):
        destinations.check(pool)
    destinations.record(pool, 1)
    assert deliver(pool, {0: {"a": b"evil"}}).error() is not None
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", ["../evil", "/evil", "x/../../evil"])
def test_a_name_of_a_worker_cannot_lead_out(pool: Path, home: Path, name: str) -> None:
    OutputDestinations(str(home), into=str(home / "run-1")).record(pool, 1)
    error = deliver(pool, {0: {name: b"evil"}}).error()
    assert isinstance(error, PilotfishError)
    assert not list(home.parent.glob("**/evil"))


def test_a_new_directory_is_never_that_of_another_pool(pool: Path, home: Path) -> None:
    first, second = (OutputDestinations(str(home), new_directory=True) for _ in range(2))
    first.record(pool, 1)
    second.record(pool, 1)
    assert (first.into, second.into) == (f"{home}/run-1", f"{home}/run-1-2")


def test_existing_destinations_are_refused_before_the_start(pool: Path, home: Path) -> None:
    (home / "frames").mkdir()
    (home / "frames/2.png").write_text("old")
    destinations = OutputDestinations(str(home), by_task={0: {"f": "frames/1.png"}, 1: {"f": "frames/2.png"}})
    with pytest.raises(BadInput, match=r"frames/2.png exists") as refused:
        destinations.check(pool)
    assert "--overwrite" in refused.value.hint
    destinations.overwrite = True
    destinations.check(pool)


def test_an_existing_directory_of_a_task_is_refused_before_the_start(pool: Path, home: Path) -> None:
    (home / "results/3").mkdir(parents=True)
    destinations = OutputDestinations(str(home / "results"), into=str(home / "results"))
    destinations.check(pool, tasks=10)  # it is empty
    (home / "results/3/out").write_text("old")
    destinations.check(pool, tasks=3)
    for other in ("00", "007", "٣"):
        (home / "results" / other).mkdir()
    destinations.check(pool, tasks=3)
    with pytest.raises(BadInput, match="results/3/out exists"):
        destinations.check(pool, tasks=4)


@pytest.mark.parametrize("into", ["", "all"])
def test_a_resumed_run_replaces_files_that_earlier_runs_copied_but_none_that_the_user_changed(pool: Path, home: Path, into: str) -> None:
    def destinations() -> OutputDestinations:
        return OutputDestinations(str(home), into, by_task={} if into else {0: {"f": "0/f"}, 1: {"f": "1/f"}})

    place = home / into
    destinations().record(pool, 1)
    deliver(pool, {0: {"f": b"old"}, 1: {"f": b"old"}})
    with pytest.raises(BadInput, match="0(/f)? exists"):
        destinations().check(pool, tasks=2)
    resumed = destinations()
    resumed.resumes = str(pool)
    resumed.check(pool, tasks=2)
    resumed.record(pool, 2)
    (place / "1/f").write_text("mine")
    with pytest.raises(BadInput, match="1(/f)? exists"):
        resumed.check(pool, tasks=2)
    found = deliver(pool, {0: {"f": b"new"}, 1: {"f": b"new"}}, run=2)
    assert ((place / "0/f").read_text(), (place / "1/f").read_text()) == ("new", "mine")
    assert len(found.kept_back) == 1 and found.kept_back[0].endswith("1/f")


def test_a_new_run_replaces_the_files_of_a_failed_task_but_not_those_of_a_successful_rerun(pool: Path, home: Path) -> None:
    destinations = OutputDestinations(str(home), by_task={0: {"f": "x/f"}})
    destinations.record(pool, 1)
    delivery = OutputDelivery(pool, 1, destinations)
    files = {"f": StoredFile(b"partial", size=7, name="f")}
    delivery.copy(0, files, failed=True)
    destinations.check(pool)
    destinations.record(pool, 2)
    assert deliver(pool, {0: {"f": b"whole"}}, run=2).error() is None and (home / "x/f").read_bytes() == b"whole"
    (home / "x/f").unlink()
    delivery.copy(0, files, failed=True)
    delivery.copy(0, files)
    with pytest.raises(BadInput, match="x/f exists"):
        destinations.check(pool)
    delivery.copy(0, {"f": StoredFile(b"cut", size=3, name="f")}, failed=True)
    (home / "x/f").write_text("mine")
    with pytest.raises(BadInput, match="x/f exists"):
        destinations.check(pool)


@pytest.mark.parametrize("into", ["", "all"])
def test_files_of_an_earlier_run_beside_those_of_a_failed_task_are_told(pool: Path, home: Path, into: str) -> None:
    destinations = OutputDestinations(
        str(home), str(home / into) if into else "", by_task={} if into else {0: {"f": "d/f", "g": "d/g"}}, resumes=str(pool)
    )
    destinations.record(pool, 1)
    deliver(pool, {0: {"f": b"old", "g": b"old"}})
    destinations.record(pool, 2)
    delivery = OutputDelivery(pool, 2, destinations)
    delivery.copy_task(0, {"f": StoredFile(b"new", size=3, name="f")}, failed=True)
    delivery.note_outdated(0)
    place = "all/0" if into else "d"
    assert delivery.found.describe().endswith(f"; {place}/ still has files that run 2 did not make, because tasks failed")
    delivery.copy_task(0, {"g": StoredFile(b"new", size=3, name="g")}, failed=True)
    delivery.found = DeliveredFiles(2)
    delivery.note_outdated(0)
    assert delivery.found.describe() == ""


def test_equal_destinations_of_two_tasks_are_refused_before_the_start(pool: Path, home: Path) -> None:
    with pytest.raises(BadInput, match="task 0 and task 1 would both write x/a"):
        OutputDestinations(str(home), by_task={0: {"a": "x/a"}, 1: {"a": "x/"}}).check(pool)


def deliver_at(pool: Path, run: int, started_at: float, data: bytes, overwrite: bool = False) -> DeliveredFiles:
    destinations = read_destinations(pool, run)
    assert destinations is not None
    delivery = OutputDelivery(pool, run, destinations, overwrite)
    with delivery.locked():
        delivery.copy_task(0, {"f": StoredFile(data, size=len(data), name="f")}, started_at=started_at)
    return delivery.found


@pytest.mark.parametrize("option", [{}, {"resumes": True}, {"overwrite": True}])
def test_an_older_run_never_replaces_the_file_of_a_later_one_silently(pool: Path, home: Path, option: dict[str, Any]) -> None:
    by_task = {0: {"f": "x/f"}}
    OutputDestinations(str(home), by_task=by_task, **option).record(pool, 1)
    OutputDestinations(str(home), by_task=by_task, overwrite=True).record(pool, 2)
    deliver_at(pool, 1, 100.0, b"old")
    deliver_at(pool, 2, 200.0, b"new")
    kept = deliver_at(pool, 1, 100.0, b"old")
    assert (home / "x/f").read_bytes() == b"new"
    assert kept.describe() == "x/f was made later by run 2 and is kept; to replace it: pilotfish attach 1 --overwrite"
    assert kept.error() is None and kept.as_data()["not_overwritten"] == ["x/f"]
    assert deliver_at(pool, 1, 100.0, b"old", overwrite=True).error() is None
    assert (home / "x/f").read_bytes() == b"old"


def test_the_file_of_a_task_that_ran_again_is_later_than_that_of_a_later_run(pool: Path, home: Path) -> None:
    again = b"again"
    for run in (1, 2):
        OutputDestinations(str(home), by_task={0: {"f": "x/f"}}, resumes=str(pool)).record(pool, run)
    deliver_at(pool, 1, 100.0, again)
    assert deliver_at(pool, 1, 300.0, again).files == 1
    assert deliver_at(pool, 2, 200.0, b"old").files == 0
    assert (home / "x/f").read_bytes() == again
    (home / "x/f").unlink()
    assert deliver_at(pool, 2, 200.0, b"old").files == 1, "a missing file is copied"
    assert deliver_at(pool, 1, 300.0, again).error() is None
    assert (home / "x/f").read_bytes() == again


@pytest.mark.parametrize(
    ("directories", "shown"),
    [
        (["run-8"], "run-8/"),
        (["frames/a", "frames/b"], "frames/"),
        (["run-8", "means/a", "means/b"], "means/, run-8/"),
        ([".", "means"], "./, means/"),
        (["a", "b", "c", "d", "e"], "a/, b/, c/ and 2 more"),
        (["."], "./"),
    ],
)
def test_the_places_of_files_without_a_common_directory_are_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, directories: list[str], shown: str
) -> None:
    monkeypatch.chdir(home)
    found = DeliveredFiles(8, files=12, directories={str((home / name).resolve()) for name in directories})
    assert found.describe() == f"12 files in {shown}"
