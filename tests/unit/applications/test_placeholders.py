"""Braces in commands: which are placeholders, and which are left alone."""

from __future__ import annotations

import pytest

from pilotfish.applications.sweeps.axes import ListedValues
from pilotfish.applications.sweeps.placeholders import check_all_used, check_values, make_command_templates, make_template
from pilotfish.applications.sweeps.sweep import make_sweep
from pilotfish.errors import BadInput


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{alpha}", "0.1"),
        ("--a={alpha} --s={seed}", "--a=0.1 --s=7"),
        ("out-{#}.dat", "out-41.dat"),
        ("plain", "plain"),
        ("{{alpha}}", "{alpha}"),
        ("{{}}", "{}"),
        ("{{{alpha}}}", "{0.1}"),
        ('{"lr":{alpha}}', '{"lr":0.1}'),
        ('{"a":{"b":1}}', '{"a":{"b":1}}'),
        ("{print $1}", "{print $1}"),
        ("${HOME}", "${HOME}"),
        ("{a,b}", "{a,b}"),
        ("{", "{"),
        ("}}", "}}"),
        ("", ""),
    ],
)
def test_only_braces_round_a_name_are_filled(text: str, expected: str) -> None:
    assert make_template(text, ("alpha", "seed"), "the command").fill(("0.1", "7"), 41) == expected


def test_empty_braces_are_the_line_or_the_only_value() -> None:
    assert make_template("<{}>", ("", "a"), "the command").fill(("line", "1"), 0) == "<line>"
    assert make_template("<{}>", ("a",), "the command").fill(("1",), 0) == "<1>"


@pytest.mark.parametrize(
    ("text", "names", "said", "hint"),
    [
        ("{alpah}", ("alpha",), "no parameter 'alpah'", "Did you mean 'alpha'?"),
        ("{zzz}", ("alpha",), "{zzz}", "Add --param zzz=values"),
        ("{print}", (), "{print}", "{{print}}"),
        ("{}", (), "nothing to put there", "--each-line"),
        ("{}", ("a", "b"), "several parameters", "{a}, {b}"),
    ],
)
def test_a_placeholder_for_nothing_is_refused_with_the_fix(text: str, names: tuple[str, ...], said: str, hint: str) -> None:
    with pytest.raises(BadInput) as refused:
        make_template(text, names, "the command")
    assert said in str(refused.value)
    assert hint in refused.value.hint


def axis(*names: str) -> ListedValues:
    return ListedValues(names, [])


def test_parameters_that_nothing_uses_are_refused() -> None:
    used = [make_template("{alpha}", ("alpha", "seed", "x", "y", ""), "the command")]
    with pytest.raises(BadInput, match="parameter seed is not used"):
        check_all_used(used, [axis("alpha"), axis("seed")], "the command")
    with pytest.raises(BadInput, match="does not use the lines"):
        check_all_used(used, [axis("")], "the command")
    check_all_used(used, [axis("alpha", "x", "y")], "the command")


@pytest.mark.parametrize(
    ("value", "no_ending", "base", "directory", "stem"),
    [
        ("data/run.1/mesh.tar.gz", "data/run.1/mesh.tar", "mesh.tar.gz", "data/run.1", "mesh.tar"),
        ("run.1/mesh", "run.1/mesh", "mesh", "run.1", "mesh"),
        ("mesh.dat", "mesh", "mesh.dat", ".", "mesh"),
        ("cases/a.d/", "cases/a", "a.d", "cases", "a"),
        ("/top", "/top", "top", "/", "top"),
    ],
)
def test_the_parts_of_a_path_are_those_of_gnu_parallel(value: str, no_ending: str, base: str, directory: str, stem: str) -> None:
    expected = (no_ending, base, directory, stem)
    line = [make_template(text, ("",), "the command") for text in ("{.}", "{/}", "{//}", "{/.}")]
    assert tuple(one.fill((value,), 0) for one in line) == expected
    named = [make_template(f"{{mesh:{form}}}", ("n", "mesh"), "the command") for form in (".", "/", "//", "/.")]
    assert tuple(one.fill(("7", value), 0) for one in named) == expected
    listed = [make_template(f"{{2{form}}}", ("1", "2"), "the command") for form in (".", "/", "//", "/.")]
    assert tuple(one.fill(("7", value), 0) for one in listed) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{i:03d}", "007"),
        ("{#:05d}", "00041"),
        ("{x:.2f}", "0.12"),
        ("{x:.1e}", "1.2e-01"),
        ("{i:x}", "7"),
        ("{kind:>6s}|", "  fast|"),
        ("{{i:03d}}", "{i:03d}"),
        ('{"n":{i:02d}}', '{"n":07}'),
        ("{whole:d}", "3"),
    ],
)
def test_formats_are_those_of_python(text: str, expected: str) -> None:
    names, values = ("i", "x", "kind", "whole"), ("7", "0.125", "fast", "3.00")
    assert make_template(text, names, "the command").fill(values, 41) == expected


def test_a_format_applies_to_the_only_value() -> None:
    assert make_template("f-{:04d}", ("a",), "the command").fill(("7",), 0) == "f-0007"


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("{x+1}", "{x+1}", "Write {x} and let the program compute, or write {{x+1}}"),
        ("{2*x}", "nothing is computed", "{{2*x}}"),
        ("{alhpa*2}", "nothing is computed", "Did you mean 'alpha'?"),
        ("{x!r}", "{x!r}", "{{x!r}}"),
        ("{x[0]}", "{x[0]}", "{{x[0]}}"),
        ("{x:5}", "'5' is not a format", ":03d"),
        ("{x:999999999d}", "not a format", ":03d"),
        ("{x:,s}", "not a format", ":03d"),
        ("{alhpa:.2f}", "no parameter 'alhpa'", "Did you mean 'alpha'?"),
        ("{x.}", "no parameter 'x.'", "{x:.}"),
        *((text, f"{text}, which is not a placeholder of Pilotfish", "{/.}") for text in ("{%}", "{..}", "{/..}", "{+/}", "{1..}", "{-1}")),
        ("{}", "several parameters", "{x}, {alpha}"),
        ("{.}", "several parameters", "{x:.}, {alpha:.}"),
    ],
)
def test_what_looks_like_a_placeholder_and_is_none_is_refused(text: str, said: str, hint: str) -> None:
    with pytest.raises(BadInput) as refused:
        make_template(text, ("x", "alpha"), "the command")
    assert said in str(refused.value)
    assert hint in refused.value.hint


@pytest.mark.parametrize("text", ["{n+1}", '"{:.2f}".format(3)', "{x:.2f}", "a{2,3}", "{1}", "{a:1}", "{x!r}", "{{n+1}}", "{1.}"])
def test_without_a_sweep_only_plain_placeholders_count(text: str) -> None:
    assert make_template(text, None, "the command").fill((), 0) == text


@pytest.mark.parametrize("text", ["{x:03d}", "{x:.2f}", "{1}", "{n+1}", "{%}"])
def test_a_repetition_is_a_sweep_without_parameters(text: str) -> None:
    with pytest.raises(BadInput, match="the command has"):
        make_template(text, (), "the command")
    assert make_template("{#:03d} a{2}", (), "the command").fill((), 7) == "007 a{2}"


@pytest.mark.parametrize("text", ["{2}", "--x={2}", "dir/{2}", "echo {2}"])
def test_a_list_that_is_not_there_is_refused_but_not_a_pattern(text: str) -> None:
    with pytest.raises(BadInput, match=r"has \{2\}, but there are fewer lists"):
        make_template(text, ("x",), "the command")
    pattern = r"[0-9]{2} \d{3} x{2} .{2} (ab){2} ${2} a {2}b"
    assert make_template(pattern, ("x",), "the command").fill(("1",), 0) == pattern


@pytest.mark.parametrize("text", ["a{2,3}", "a{3}", "{x,alpha}", "{lr:0.1}", "{a;b}", "{x:1,y:2}", "{i=0}", "{ x }", "{1..3}"])
def test_other_braces_are_left_alone_in_a_sweep(text: str) -> None:
    assert make_template(text, ("x", "alpha"), "the command").fill(("1", "2"), 0) == text


def test_a_value_that_does_not_fit_its_format_is_found_before_anything_starts() -> None:
    sweep = make_sweep(["x=1,2,fast"])
    templates = [make_template("{x:03d}", sweep.names, "the command")]
    with pytest.raises(BadInput, match="the command has {x:03d}, and 'fast' is not a whole number"):
        check_values(templates, sweep.axes)
    with pytest.raises(BadInput, match="'2.5' is not a whole number"):
        check_values(templates, make_sweep(["x=2.5"]).axes)
    check_values(templates, make_sweep(["x=1..9"]).axes)


SCRIPTS = [
    ("sh", "-c", "echo {}"),
    ("/bin/bash", "-lc", "echo {}"),
    ("bash", "-euo", "pipefail", "-c", "echo {}"),
    ("sh", "-c", "-e", "echo {}"),
    ("env", "A=1", "srun", "-n", "1", "sh", "-c", "echo '{}'"),
    ("python3.12", "-c", "print('{}')"),
    ("python", "-Bcprint('{}')"),
    ("python3", "-Ic", "print('{}')"),
    ("perl", "-ne", "print '{}'"),
    ("node", "-e", "console.log('{}')"),
    ("sh", "-c", "echo {/.}"),
    ("sh", "-c", "echo {:s}"),
    ("sh", "-co", "pipefail", "echo {}"),
    ("sh", "-c", "-o", "pipefail", "echo {}"),
    ("bash", "--rcfile", "f", "-c", "echo {}"),
    ("fish", "--command=echo {}"),
    ("julia", "-t", "4", "-e", "echo {}"),
    ("julia", "-L", "f.jl", "-e", "echo {}"),
    ("julia", "--project", ".", "-e", "echo {}"),
    ("julia", "-e", "1", "-E", "echo {}"),
    ("node", "--max-old-space-size", "100", "-e", "echo {}"),
    ("node", "-pe", "echo {}"),
    ("ruby", "-ropen-uri", "-e", "echo {}"),
    ("ruby", "-r", "open-uri", "-ne", "echo {}"),
    ("perl", "-Mstrict", "-I", "lib", "-lne", "echo {}"),
    ("perl", "-e", "1;", "-e", "echo {}"),
    ("python", "-W", "ignore", "-X", "dev", "-c", "echo {}"),
    ("sh{}", "-c", "-e", "echo {}"),
    ("env", "A=1", "{}", "-c", "echo {}"),
    ("flock", "F", "-c", "echo {}"),
    ("flock", "-w", "5", "F", "-c", "echo {}"),
    ("su", "-c", "echo {}"),
    ("su", "-", "me", "-c", "echo {}"),
    ("script", "-qc", "echo {}", "log"),
    ("script", "-qc", "echo {}"),
    ("env", "-S", "echo {}"),
    ("env", "-i", "-Secho {}"),
    ("awk", "echo {}", "file"),
    ("gawk", "-F", ",", "-v", "x=1", "echo {}"),
    ("octave", "--no-gui", "--eval", "echo {}"),
    ("R", "-q", "-e", "echo {}"),
    ("R", "--vanilla", "-e", "echo {}"),
    ("Rscript", "--vanilla", "-e", "echo {}"),
    ("matlab", "-nodisplay", "-batch", "echo {}"),
    ("gnuplot", "-p", "-e", "echo {}"),
    ("php", "-n", "-r", "echo {};"),
    ("perl", "-Ilib", "-e", "echo {}"),
    ("perl", "-lI", "lib", "-e", "echo {}"),
    ("R", "--gui", "Tk", "-e", "echo {}"),
    ("nice", "-n", "5", "node", "-e", "echo {}"),
    ("flock", "F", "node", "-e", "echo {}"),
]


@pytest.mark.parametrize("command", SCRIPTS, ids=" ".join)
@pytest.mark.parametrize("value", ["; rm -rf x", "$(id)", "a b", "it's", "`id`", "x\ny", "a>b", "~"])
def test_a_value_never_becomes_code_of_a_script(command: tuple[str, ...], value: str) -> None:
    axes = make_sweep(lists=[(":::", (value,))]).axes
    templates = make_command_templates(command, ("1",))
    with pytest.raises(BadInput, match="in a script, where the value .* could run as code") as refused:
        check_values(templates, axes)
    assert refused.value.hint.startswith("Pass it as an argument: ")
    with pytest.raises(BadInput):  # a file may change after the check
        [template.fill((value,), 0) for template in templates]


@pytest.mark.parametrize("value", ["1", "-0.5", "1e-5", "data/mesh_1.tar.gz", "a=b,c", "2024-01-01T10:30", "über", "user@host", "50%"])
def test_plain_values_may_stand_in_a_script(value: str) -> None:
    templates = make_command_templates(("sh", "-c", "echo {} {#}"), ("1",))
    check_values(templates, make_sweep(lists=[(":::", (value,))]).axes)
    assert templates[2].fill((value,), 3) == f"echo {value} 3"


@pytest.mark.parametrize(
    "command",
    [
        ("sh", "-c", 'echo "$1"', "sh", "{}"),
        ("sh", "script.sh", "-c", "{}"),
        ("python", "-m", "tool", "-c", "{}"),
        ("python", "-c", "import sys", "{}"),
        ("grep", "-c", "{}"),
        ("python", "-u", "train.py", "-c", "{}"),
        ("python", "-Bm", "tool", "-c", "{}"),
        ("bash", "-eu", "script.sh", "-c", "{}"),
        ("perl", "-e", "print @ARGV", "--", "-e", "{}"),
        ("julia", "f.jl", "-e", "{}"),
        ("awk", "-F:", "{print $1}", "{}"),
        ("awk", "-v", "x={}"),
        ("awk", "-f", "program.awk", "{}"),
        ("env", "X=1", "./sim", "-S", "{}"),
        ("flock", "F", "./sim", "-c", "{}"),
        ("./sim", "{#}", "-c", "{}"),
        ("{#}/sim", "-c", "{}"),
        ("R", "CMD", "BATCH", "-e", "{}"),
        ("perl", "-Ilib", "script.pl", "-e", "{}"),
        ("python", "-Wignore", "train.py", "-c", "{}"),
        ("julia", "-t4", "fit.jl", "-e", "{}"),
        ("ruby", "-ropen-uri", "fit.rb", "-e", "{}"),
        ("node", "--max-old-space-size=4096", "app.js", "-p", "{}"),
        ("Rscript", "--vanilla", "fit.R", "-e", "{}"),
        ("echo", "script", "-c", "{}"),
        ("./sim", "node", "-e", "{}"),
    ],
)
def test_arguments_of_a_script_take_any_value(command: tuple[str, ...]) -> None:
    templates = make_command_templates(command, ("1",))
    assert templates[-1].fill(("; rm -rf x",), 0).endswith("; rm -rf x")
    check_values(templates, make_sweep(lists=[(":::", ("; rm -rf x",))]).axes)
