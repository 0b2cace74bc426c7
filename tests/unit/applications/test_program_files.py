"""The record of a command changes with every file of its program."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotfish.applications.calls.own_modules import OwnModules
from pilotfish.applications.executables.executable import Executable, LaunchSpec, executable_payload, executable_spec
from pilotfish.applications.reuse.file_changes import CLOCK_S
from pilotfish.applications.reuse.program_files import ProgramSearch, words_in, written_files
from pilotfish.applications.reuse.task_keys import ExecutableKeys
from pilotfish.applications.task_options import read_task_options


def record(*argv: str) -> bytes:
    keys = ExecutableKeys()
    environment = {"PATH": f"{os.getcwd()}/venv/bin:{os.environ['PATH']}"}
    spec, code = executable_spec("sim", LaunchSpec(cwd=os.getcwd(), env=environment), read_task_options({}))
    keys.add_spec(0, spec, code)
    payload, _ = executable_payload(Executable(argv))
    return keys.record(0, argv, payload)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("src", "package", "project", "venv/bin", "venv/lib/python3.11/site-packages/solver-1.0.dist-info"):
        Path(place).mkdir(parents=True)
    for place in ("simmod.py", "helper.py", "src/inner.py", "package/__init__.py", "package/__main__.py", "project/mysim.py"):
        Path(place).write_text("x = 1\n")
    Path("ana.py").write_text("import sys\nsys.path.insert(0, 'src')\nimport inner, mysim, fast\n")
    Path("fast.cpython-311-x86_64-linux-gnu.so").write_bytes(b"1")
    write_program("job.sh", "#!/bin/sh\npython simmod.py\n")
    write_program("below.sh", "#!/bin/sh\ncd project\npython mysim.py\n")
    write_program("long", f"#!/bin/sh\n'''exec' {tmp_path}/venv/bin/python \"$0\" \"$@\"\n' '''\nimport helper\n")
    write_program("venv/bin/python", "")
    write_program("venv/bin/mysim", f"#!{tmp_path}/venv/bin/python\nfrom mysim import x\n")
    Path("venv/lib/python3.11/site-packages/mysim.pth").write_text(f"{tmp_path}/project\n")
    Path("main.pl").write_text('require "./lib.pl";\nopen(my $in, "<", "points.dat");\n')
    Path("main.R").write_text("source('src/lib.R')\n")
    Path("plain").write_text('require "./lib.pl";\n')
    write_program("tool", '#!/usr/bin/perl\nrequire "./lib.pl";\n')
    for place in ("lib.pl", "src/lib.R"):
        Path(place).write_text("1")
    Path("Makefile").write_text("all:\n\tpython simmod.py\n")


def write_program(name: str, text: str) -> None:
    Path(name).write_text(text)
    Path(name).chmod(0o755)


COMMANDS = {
    "the module after -m": ("simmod.py", ("python", "-m", "simmod", "3")),
    "the package after -m": ("package/__main__.py", ("python", "-m", "package")),
    "a module in the text after -c": ("helper.py", ("python", "-c", "import sys; import helper; print(1)")),
    "a script in the text after -c": ("simmod.py", ("sh", "-c", "python simmod.py 3 > out.txt")),
    "a module in the text of a shell": ("simmod.py", ("sh", "-c", "python -m simmod")),
    "a script of a script": ("simmod.py", ("./job.sh",)),
    "a script in another directory": ("project/mysim.py", ("./below.sh",)),
    "a module of a script of pip with a long path": ("helper.py", ("./long",)),
    "a script behind a variable": ("helper.py", ("sh", "-c", "HERE=$PWD; python $HERE/helper.py")),
    "a script of a script of a shell": ("simmod.py", ("sh", "-c", "./job.sh && echo $HOME/x")),
    "an editable installation": ("project/mysim.py", ("python", "ana.py")),
    "a console script": ("project/mysim.py", ("mysim", "3")),
    "a console script in a shell": ("project/mysim.py", ("sh", "-c", "mysim 3")),
    "a directory in sys.path": ("src/inner.py", ("python", "ana.py")),
    "a compiled module": ("fast.cpython-311-x86_64-linux-gnu.so", ("python", "ana.py")),
    "a script of a script in Perl": ("lib.pl", ("perl", "-w", "main.pl")),
    "a script of a script in R": ("src/lib.R", ("sh", "-c", "Rscript main.R")),
    "a script of a script without a suffix": ("lib.pl", ("./tool",)),
    "a script of a file behind an interpreter": ("lib.pl", ("perl", "plain")),
    "a makefile": ("Makefile", ("make", "all")),
    "a script of a makefile": ("simmod.py", ("make",)),
}


@pytest.mark.parametrize(("file", "argv"), COMMANDS.values(), ids=COMMANDS)
def test_a_changed_file_of_the_program_gives_another_record(file: str, argv: tuple[str, ...]) -> None:
    before = record(*argv)
    assert record(*argv) == before
    Path(file).write_text("x = 22\n")
    assert record(*argv) != before


def test_the_modules_of_a_script_are_searched_once_for_many_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    search = OwnModules.files_for_script

    def note(own: OwnModules, path: str) -> list[str]:
        searched.append(path)
        return search(own, path)

    monkeypatch.setattr(OwnModules, "files_for_script", note)
    keys = ExecutableKeys()
    keys.add_spec(0, *executable_spec("sim", LaunchSpec(cwd=os.getcwd(), env=dict(os.environ)), read_task_options({})))
    for number in range(100):
        keys.record(0, ("sh", "-c", f"python ana.py {number}"), b"")
    assert 0 < len(searched) < 50


def test_a_compiled_module_counts_only_for_the_scripts_that_import_it() -> None:
    before = record("python", "ana.py"), record("python", "simmod.py")
    Path("fast.cpython-311-x86_64-linux-gnu.so").write_bytes(b"22")
    assert record("python", "ana.py") != before[0] and record("python", "simmod.py") == before[1]


def upgrade() -> None:
    os.rename("venv/lib/python3.11/site-packages/solver-1.0.dist-info", "venv/lib/python3.11/site-packages/solver-2.0.0.dist-info")


@pytest.mark.parametrize("argv", [("python", "ana.py"), ("mysim",), ("sh", "-c", "python simmod.py"), ("python", "-c", "print(1)")])
def test_an_upgraded_package_of_the_interpreter_gives_another_record(argv: tuple[str, ...]) -> None:
    before, other = record(*argv), record("sh", "-c", "echo 1")
    upgrade()
    assert record(*argv) != before and record("sh", "-c", "echo 1") == other


def test_an_editable_installation_with_a_finder_is_found() -> None:
    library = Path("venv/lib/python3.11/site-packages")
    (library / "mysim.pth").write_text("import __editable___mysim_finder; __editable___mysim_finder.install()\n")
    (library / "__editable___mysim_finder.py").write_text(f"MAPPING = {{'mysim': '{os.getcwd()}/project/mysim'}}\n")
    before = record("mysim")
    Path("project/mysim.py").write_text("x = 2\n")
    assert record("mysim") != before


def test_words_that_name_files_are_found_in_options_and_texts() -> None:
    assert {"a.dat", "b.dat"} <= set(words_in("./sim --config=a.dat <b.dat >> log 2>err", is_shell=True))
    assert not {"log", "err"} & set(words_in("./sim --config=a.dat <b.dat >> log 2>err", is_shell=True))
    assert "a.dat" in words_in('$1 > "a.dat"')
    assert written_files(["sh", "-c", "echo 1 > a; echo 2 >>'b'; echo 3 >&2 2>&1; x >(y)"]) == ["a", "b"]
    assert written_files(["bash", "-euo", "pipefail", "-c", "awk '$1 > 5' data > c; (( x > 3 )); [[ a > b ]]", "bash", "x > y"]) == ["c"]
    assert written_files(["awk", "$1 > 5", "data"]) == written_files(["sh", "-c", "cd sub && echo hi > made.txt"]) == []
    assert written_files(["env", "A=1", "sh", "-c", "-e", "./sim > d"]) == ["d"]


def test_a_script_with_many_changes_of_the_directory_is_searched_quickly() -> None:
    Path("many.sh").write_text("".join(f"cd d{number}; cat x.dat\n" for number in range(40)))
    assert os.path.abspath("many.sh") in ProgramSearch(("sh", "many.sh"), os.getcwd(), os.environ["PATH"], ()).found


def test_files_of_other_directories_and_unused_files_are_not_followed() -> None:
    search = ProgramSearch(("sh", "-c", "cat helper.txt"), os.getcwd(), os.environ["PATH"], ())
    assert not any("simmod" in file for file in search.found) and not search.libraries


def last_change(*argv: str, declared: tuple[str, ...] = (), sandbox: bool = False) -> str:
    keys = ExecutableKeys()
    launch = LaunchSpec(cwd=os.getcwd(), env=dict(os.environ), sandbox=sandbox)
    keys.add_spec(0, *executable_spec("sim", launch, read_task_options({})))
    return os.path.relpath(keys.last_change(0, argv, declared).file or ".")


def test_files_that_a_command_names_are_found_and_compared_by_time() -> None:
    for name in ("a.dat", "b.dat", "points.dat"):
        Path(name).touch()
    assert last_change("perl", "main.pl") == "points.dat"
    Path("job.sh").write_text("sort a.dat > b.dat\n")
    assert last_change("./sim", "--config=a.dat") == last_change("sh", "-c", "./sim a.dat > b.dat") == last_change("./job.sh") == "a.dat"
    assert last_change("awk", '$1 > "a.dat"', "x") == "a.dat"
    assert last_change("./sim", "a.dat", declared=("a.dat",)) == last_change("./sim", "/proc/cpuinfo", "/dev/null") == "."
    assert last_change("cat", "a.dat", sandbox=True) == last_change("python", "simmod.py") == "."
    assert last_change("cat", os.path.abspath("a.dat"), sandbox=True) == "a.dat"


def later(change: Callable[[], None], *argv: str) -> str:
    """Returns what changed after ``change`` began; empty if nothing did."""
    started = time.time()
    Path("clock").touch()
    while os.stat("clock").st_ctime <= started + 2 * CLOCK_S:  # the clock of a file system is coarse
        os.utime("clock")
    change()
    keys = ExecutableKeys()
    environment = {"PATH": f"{os.getcwd()}/venv/bin:{os.environ['PATH']}"}
    keys.add_spec(0, *executable_spec("sim", LaunchSpec(cwd=os.getcwd(), env=environment), read_task_options({})))
    change_found = max(keys.last_change(0, argv), keys.program_change(0, argv))
    return os.path.relpath(change_found.file) if change_found.at > started else ""


def replace_link(link: str, target: str) -> None:
    os.symlink(target, "new")
    os.rename("new", link)


def exchange(old: str, new: str) -> None:
    os.rename(old, "gone")
    os.rename(new, old)


def test_a_link_that_leads_to_another_file_is_a_change() -> None:
    for name in ("v1", "v2"):
        Path(name).mkdir()
        Path(name, "x.dat").write_text(name)
        Path(name, "run.sh").write_text("echo 1")
    os.symlink("v1", "latest")
    os.symlink("latest/x.dat", "current.dat")
    os.symlink("circle", "circle")
    for argv in (("cat", "latest/x.dat"), ("cat", "current.dat"), ("sh", "-c", "cat current.dat"), ("sh", "latest/run.sh")):
        assert later(lambda: replace_link("latest", "v2"), *argv) == "latest"
    assert later(lambda: replace_link("current.dat", "v1/x.dat"), "cat", "current.dat") == "current.dat"
    assert later(lambda: Path("v1/other").touch(), "cat", "latest/x.dat", "circle") == ""


def test_a_file_that_is_replaced_by_an_older_file_with_several_links_is_a_change() -> None:
    for name in ("old.dat", "new.dat"):
        Path(name).write_text(name)
    os.link("new.dat", "other.dat")
    assert later(lambda: exchange("old.dat", "new.dat"), "cat", "old.dat") == "old.dat"


def test_a_program_that_gets_another_hard_link_is_no_change() -> None:
    write_program("venv/bin/solve", "binary")
    os.link("venv/bin/solve", "1")
    assert later(lambda: os.link("venv/bin/solve", "2"), "sh", "-c", "solve x") == ""
    assert later(lambda: os.utime("venv/bin/solve"), "sh", "-c", "solve x") == "venv/bin/solve"


def test_a_directory_that_replaces_another_directory_is_a_change_and_a_new_file_in_it_is_none() -> None:
    for name in ("p", "q"):
        Path(name).mkdir()
        Path(name, "f").write_text(name)
    assert later(lambda: Path("p/g").touch(), "cat", "p/f") == ""
    assert later(lambda: exchange("p", "q"), "cat", "p/f") == "p"


def test_other_programs_beside_a_compiled_program_are_commands_and_no_data() -> None:
    for name in ("solve", "convert"):
        write_program(f"venv/bin/{name}", "\0binary")
    search = ProgramSearch(("venv/bin/solve", "sh", "-c", "convert x"), os.getcwd(), f"{os.getcwd()}/venv/bin:{os.environ['PATH']}", ())
    assert os.path.abspath("venv/bin/convert") in search.commands and not search.named
