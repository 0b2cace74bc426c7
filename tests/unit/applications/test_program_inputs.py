"""The files of a program that its sandbox must have: the program, its scripts and their own modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.applications.executables.program_inputs import program_inputs, uncovered
from pilotfish.errors import BadInput


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = tmp_path / "here"
    for path, text in {
        "sim": "#!/bin/sh\n",
        "julia.py": "import numpy_is_not_here, lattice\n",
        "lattice.py": "from shapes import square\n",
        "shapes/__init__.py": "",
        "shapes/square.py": "",
        "unused.py": "",
        "code/ising.py": "#!/usr/bin/env python3\nimport spins, extra\n",
        "code/spins.py": "",
        "lib/extra.py": "",
        "model.jl": "",
        "data.txt": "",
        "../outside.py": "",
    }.items():
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).write_text(text)
    (here / "sim").chmod(0o755)
    (here / "link.py").symlink_to("code/ising.py")
    monkeypatch.chdir(here)
    return here


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("./sim data.txt", "sim"),
        ("sim data.txt", ""),
        ("python julia.py 0.1 data.txt", "julia.py lattice.py shapes/__init__.py shapes/square.py"),
        ("env X=1 python3 -u ./code/ising.py", "code/ising.py code/spins.py"),
        ("mpirun -n 4 ./sim", "sim"),
        ("julia model.jl", "model.jl"),
        ("sh -c ./sim", "sim"),
        ("sh -c 'echo 1'", ""),
        ("wc -l data.txt", ""),
        ("python missing.py", ""),
        ("python {here}/julia.py", ""),
        ("link.py", ""),
        ("python link.py", "link.py spins.py"),
    ],
)
def test_program_scripts_and_own_modules_keep_their_relative_paths(command: str, names: str, directory: Path) -> None:
    import shlex

    found = program_inputs(shlex.split(command.replace("{here}", str(directory))), {})
    assert sorted(found) == names.split()
    assert all(Path(str(source)).is_file() for source in found.values())


def test_modules_below_a_relative_directory_of_the_python_path_are_found() -> None:
    assert "lib/extra.py" in program_inputs(["python", "code/ising.py"], {"PYTHONPATH": "lib:/nowhere"})


def test_a_script_outside_of_the_directory_is_refused_with_its_full_path(directory: Path) -> None:
    with pytest.raises(BadInput, match=r"'../outside.py' is outside of the current directory") as refused:
        program_inputs(["python", "../outside.py"], {})
    assert str(directory.parent / "outside.py") in refused.value.hint


def test_files_that_the_user_names_are_not_added_again() -> None:
    found = program_inputs(["python", "code/ising.py"], {})
    assert uncovered(found, {"code": "code"}) == {}
    assert sorted(uncovered(found, {"code/ising.py": "other.py"})) == ["code/spins.py"]
