"""Tests destinations of output files: how they are written, and which file goes where."""

from __future__ import annotations

import pytest

from pilotfish.applications.destinations import (
    check_destination,
    check_destinations,
    check_typed_outputs,
    destination_of,
    known_destination,
    split_output,
)
from pilotfish.errors import BadInput


def test_the_first_single_equals_sign_separates_name_and_destination() -> None:
    assert split_output("out.dat") == ("out.dat", "")
    assert split_output("frame.png=frames/alpha=1.png") == ("frame.png", "frames/alpha=1.png")
    assert split_output("alpha==1.dat") == ("alpha=1.dat", "")
    assert split_output("alpha==1.dat=results/") == ("alpha=1.dat", "results/")


def test_a_comma_or_a_percent_sign_in_a_plausible_name_is_allowed() -> None:
    names = ["x=0.5,y==1.0", "a,b.csv", "frame_1.0,2.0", "50%", "a%20b.txt", "*.csv"]
    check_typed_outputs(names, "--output", "", ["./sim"])
    check_typed_outputs(["a.csv,b.json", "log-%j.out"], "--output", "", ["./sim", "--files=a.csv,b.json", "log-%j.out"])


@pytest.mark.parametrize("text", ["a.csv,b.json", "a.csv,b.json,c.txt=d/", "log-%j.out", "%x_%A.log=d/"])
def test_a_name_that_no_program_writes_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"one name|placeholder of Slurm"):
        check_typed_outputs([text], "--output", "", ["./sim"])


@pytest.mark.parametrize("text", ["a=", "=b"])
def test_an_empty_name_or_destination_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is empty"):
        split_output(text)


@pytest.mark.parametrize(
    ("name", "destination", "said"),
    [
        ("a", "/etc/passwd", "leads out of the directory"),
        ("a", "../b", "leads out of the directory"),
        ("a", "x/../../b", "leads out of the directory"),
        ("*.png", "frames/1", "may match several files"),
        ("a", 3, "is not text"),
    ],
)
def test_a_destination_outside_or_unclear_is_refused(name: str, destination: object, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        check_destination(name, destination, "outputs")


def test_destinations_are_made_plain() -> None:
    assert check_destinations({"a": "./x//b.txt", "dir/": "y/", "c": "."}) == {"a": "x/b.txt", "dir": "y/", "c": "./"}
    assert check_destinations(["a", "b"]) == {}


@pytest.mark.parametrize(
    ("file", "destinations", "path"),
    [
        ("frame.png", {"frame.png": "frames/1.png"}, "frames/1.png"),
        ("frame.png", {"frame.png": "frames/"}, "frames/frame.png"),
        ("fields/deep/u", {"fields": "out/3"}, "out/3/deep/u"),
        ("fields/deep/u", {"fields": "out/"}, "out/fields/deep/u"),
        ("a/x.dat", {"*.dat": "all/"}, None),
        ("a/x.dat", {"a/*.dat": "all/"}, "all/a/x.dat"),
        ("a/b/x.dat", {"**/*.dat": "all/"}, "all/a/b/x.dat"),
        ("other", {"frame.png": "frames/1.png"}, None),
    ],
)
def test_a_file_goes_where_its_output_says(file: str, destinations: dict[str, str], path: str | None) -> None:
    assert destination_of(file, destinations) == path


def test_the_destination_of_a_pattern_is_not_known_before_its_files() -> None:
    assert known_destination("a", "b/") == "b/a"
    assert known_destination("*.dat", "b/") is None
