"""What nobody can mean about a site is refused when it is read, with the field, the value and a fix, and spoils no other site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pilotfish import plugins
from pilotfish.cli.site_commands.site_keys import apply_changes
from pilotfish.config import SITE_KEYS, make_site, read_sites
from pilotfish.errors import BadInput
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model.backend_traits import ANY_OPTIONS
from tests.support.machine_stage import Stage

VAST = 16**5000
"""Python refuses to write it down in decimals."""
NEEDED = {"kubernetes": {"options": {"image": "python"}}, "arc": {"options": {"endpoint": "https://ce/arex"}}}


def refusal(table: object, name: str = "big") -> BadInput:
    with pytest.raises(BadInput) as problem:
        make_site(name, table, "sites.toml")
    assert "\n" not in str(problem.value) and len(str(problem.value)) < 300
    assert str(problem.value).startswith("sites.toml: ") and problem.value.hint
    return problem.value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, 10**26) for key in ("max_pilots", "max_queued", "max_cores", "commands_at_once")),
        ("cores", 2**64),
        ("memory", "99999999999T"),
        ("memory", 10**400),
        pytest.param("memory", VAST, id="memory-vast"),
        ("memory", -1),
        *(("submissions_per_minute", float(value)) for value in ("nan", "inf", "-inf", "-1")),
        *(("walltime", value) for value in ("1000000d", "5s", float("nan"), float("inf"), -1, 10**400, "9" * 400 + ":00:00", "")),
        *(("period", value) for value in (0, 0.5, "10ms", "11y", True)),
        ("poll", 0.001),
        *(("folder", value) for value in ("", "/", "..", "-x", "/a\nb")),
        ("nodes", 0),
        ("max_queued", -1),
        ("reach", "magic"),
        ("credentials", ["password"]),
        ("credentials", ["ssh-certificate"]),
        ("credentials", ["x509:/a\nb"]),
    ],
)
def test_a_value_that_makes_no_sense_is_named_with_its_field_and_a_fix(key: str, value: object) -> None:
    assert f"site big: {key}" in str(refusal({"backend": "slurm", key: value}))


@pytest.mark.parametrize("value", ["8", 8.0, True, [8], {"a": 1}])
def test_a_whole_number_is_written_as_one(value: object) -> None:
    problem = refusal({"backend": "slurm", "cores": value})
    assert str(problem) == f"sites.toml: site big: cores = {value!r}"
    assert problem.hint == "write a whole number, without quotes, such as cores = 8"


@pytest.mark.parametrize(
    ("key", "value", "message", "fix"),
    [
        ("paused", "yes", "paused = 'yes'", "true or false"),
        ("paused", 1, "paused = 1", "true or false"),
        ("submissions_per_minute", "many", "submissions_per_minute = 'many'", "write a number"),
        ("queue", 3, "queue = 3", 'queue = "..."'),
        ("queue", {"name": "batch"}, "queue = {'name': 'batch'}", 'queue = "..."'),
        ("setup", "module load x", "setup = 'module load x'", 'setup = ["...", "..."]'),
        ("hosts", [1, 2], "hosts = 1 is not a text", 'hosts = "..."'),
        ("options", ["image"], "options = ['image']", 'options = { NAME = "..." }'),
        ("options", {"accounting": False}, "options.accounting = False is not a text", 'options.accounting = "..."'),
        ("environment", {"PORT": 8080}, "environment.PORT = ... is not a text", 'environment.PORT = "..."'),
        ("walltime", {"hours": 2}, "walltime = {'hours': 2} is not a duration", "10 min"),
        ("memory", ["8G"], "memory = ['8G'] is not a size", "2 GiB"),
        ("account", "x" * 10_000 + "\n", "account = 'xxx", "newline"),
    ],
)
def test_a_value_of_another_type_is_shown_with_what_is_expected(key: str, value: object, message: str, fix: str) -> None:
    problem = refusal({"backend": "slurm", key: value})
    assert message in str(problem) and fix in problem.hint


@pytest.mark.parametrize("key", ["queue", "account", "scratch", "python", "folder"])
@pytest.mark.parametrize("value", ["a\nb", "a\0b", "a\x1bb", "-a"])
def test_a_text_is_one_line_without_anything_that_could_be_taken_for_another(key: str, value: str) -> None:
    assert key in str(refusal({"backend": "slurm", key: value}))


@pytest.mark.parametrize("key", ["directives", "setup"])
@pytest.mark.parametrize("value", ["a\nb", "a\0b", "a\r"])
def test_a_line_is_one_line(key: str, value: str) -> None:
    problem = refusal({"backend": "slurm", key: ["--fine", value]})
    assert f"{key} = {value!r} is not one line" in str(problem)


@pytest.mark.parametrize("value", ["-oProxyCommand=id", "a b", "a\tb", "a\n", "me@-x", "a;id", "$(id)", "`id`", "a'b"])
def test_what_is_no_machine_never_comes_near_ssh(value: str) -> None:
    for key in ("via", "address"):
        assert f"{key} = {value!r} is not a machine" in str(refusal({"backend": "slurm", key: value}))
    assert f"hosts = {value!r} is not a machine" in str(refusal({"backend": "ssh", "hosts": ["good", value]}))


@pytest.mark.parametrize(
    "value", ["login", "me@login.example.org", "ssh://me@host:2222", "CAMPUS\\me@host", "fe80::1%eth0", "[::1]", "é.org"]
)
def test_a_machine_may_be_named_in_every_way_that_ssh_knows(value: str) -> None:
    assert make_site("x", {"backend": "slurm", "via": value}, "sites.toml").via == value


@pytest.mark.parametrize("name", ["1A", "A-B", "A B", "", "A=B", "Ä", "A\nB"])
def test_a_variable_has_a_name_that_a_shell_takes_and_its_value_stays_secret(name: str) -> None:
    problem = refusal({"backend": "slurm", "environment": {name: "hush"}})
    assert "is not a variable" in str(problem) and "hush" not in str(problem)
    assert "hush" not in str(refusal({"backend": "slurm", "environment": {"TOKEN": "hush\nhush"}}))


@pytest.mark.parametrize("name", ["site", "a=b", "a b", ""])
def test_a_tag_has_a_name_of_its_own(name: str) -> None:
    problem = refusal({"backend": "slurm", "tags": {name: "x"}})
    assert f"tags.{name}" in str(problem)


@pytest.mark.parametrize(
    ("backend", "directive"),
    [
        ("slurm", "#SBATCH --exclusive"),
        ("slurm", "--mem=1G --array=1-5"),
        ("slurm", "-a 1-5"),
        ("sge", "-t 1-5"),
        ("pbs", "-J 1-5"),
        ("lsf", "-J more[1-5]"),
        ("htcondor", "Queue 5"),
    ],
)
def test_a_directive_that_would_be_misread_or_multiply_jobs_is_refused(backend: str, directive: str) -> None:
    assert f"directives = {directive!r}" in str(refusal({"backend": backend, "directives": [directive]}))


@pytest.mark.parametrize("directive", ["--account=x", "-A x", "-tc 5", "queue_limit = 3", "--time=7", "(queue=x)"])
@pytest.mark.parametrize("backend", ["slurm", "sge", "pbs", "lsf", "htcondor", "arc"])
def test_other_directives_are_left_to_the_batch_system(backend: str, directive: str) -> None:
    make_site("x", {"backend": backend, "directives": [directive], **NEEDED.get(backend, {})}, "sites.toml")


@pytest.mark.parametrize("backend", plugins.names("backends"))
def test_several_nodes_are_for_those_who_have_them(backend: str) -> None:
    table = {"backend": backend, "nodes": 2, **NEEDED.get(backend, {})}
    if backend in ("slurm", "pbs", "lsf"):
        assert make_site("x", table, "sites.toml").nodes == 2
    else:
        problem = refusal(table)
        assert "nodes = 2" in str(problem) and problem.hint == f"{backend} gives a pilot one node: leave nodes out"


@pytest.mark.parametrize("backend", plugins.names("backends"))
def test_what_a_backend_would_not_heed_is_refused(backend: str) -> None:
    for key, value in {"queue": "q", "account": "a", "directives": ["d"]}.items():
        table = {"backend": backend, key: value, **NEEDED.get(backend, {})}
        if key in plugins.traits(backend).ignores:
            assert f"leave {key} out" in refusal(table).hint
        else:
            make_site("x", table, "sites.toml")


@pytest.mark.parametrize(("backend", "name"), [("kubernetes", "image"), ("arc", "endpoint")])
def test_what_a_backend_cannot_do_without_is_asked_for(backend: str, name: str) -> None:
    problem = refusal({"backend": backend})
    assert f"{backend} needs options.{name}" in str(problem) and f"--option {name}=" in problem.hint


@pytest.mark.parametrize(
    ("backend", "name", "value", "fix"),
    [
        ("slurm", "acounting", "no", "did you mean accounting?"),
        ("ssh", "image", "python", "known are: ssh_config"),
        ("pbs", "zzz", "", "known are: flavour, ssh_config"),
        ("slurm", "accounting", "maybe", "yes or no"),
        ("sge", "account_flag", "-x", "-P or -A"),
        ("sge", "pe", "smp 4", "one word"),
        ("pbs", "flavour", "pro", "openpbs or torque"),
        ("kubernetes", "image", "", "one word"),
        ("kubernetes", "run_as", "root", "the number of a user"),
        ("kubernetes", "node_selector", "disk", "name=value"),
        ("kubernetes", "pull_policy", "sometimes", "Always"),
        ("kubernetes", "pod", "{", "a JSON object"),
        ("kubernetes", "pod", "[]", "a JSON object"),
        pytest.param("kubernetes", "pod", "[" * 10**5, "a JSON object", id="deep"),
        ("kubernetes", "pod", '{"volumes": 1}', "a JSON object"),
        ("arc", "endpoint", "ce.example.org", "https://"),
        ("arc", "endpoint", "https://ce example", "https://"),
        ("slurm", "ssh_config", "a\nb", "a path"),
    ],
)
def test_an_option_is_one_of_its_backend_and_of_its_form(backend: str, name: str, value: str, fix: str) -> None:
    options = {**NEEDED.get(backend, {}).get("options", {}), name: value}
    problem = refusal({"backend": backend, "options": options})
    assert f"options.{name}" in str(problem) and fix in problem.hint


def test_the_options_that_are_known_are_those_that_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/sites.md").read_text()
    documented = re.findall(r"^\| (\w+) \| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(documented) == sorted(
        (backend, name) for backend in plugins.names("backends") for name in plugins.traits(backend).options
    )
    assert all(f"`{name}`" in page for name in ANY_OPTIONS)


def test_an_example_of_every_option_is_accepted() -> None:
    good = {
        "sge": {"pe": "smp", "memory_resource": "none", "gpu_resource": "gpu", "account_flag": "-A"},
        "pbs": {"flavour": "Torque"},
        "slurm": {"accounting": "no", "ssh_config": "~/.ssh/other config"},
        "kubernetes": {
            **{"image": "ghcr.io/a/b:c@sha256:d", "namespace": "n", "context": "me@c", "kubeconfig": "/my files/k", "service_account": "s"},
            **{
                "pull_policy": "Always",
                "node_selector": "a/b=c, d=",
                "run_as": "1000",
                "gpu": "amd.com/gpu",
                "pod": '{\n "volumes": []\n}',
            },
        },
        "arc": {"endpoint": "https://ce.example.org:443/arex", "proxy": "/tmp/x509up_u1", "capath": "/c", "cacert": "/d"},
    }
    for backend, options in good.items():
        assert make_site("x", {"backend": backend, "options": options}, "sites.toml").options == options


@pytest.mark.parametrize(
    ("table", "message", "fix"),
    [
        ({"backend": "slurm", "hosts": ["a"]}, "hosts are for the backend ssh", "via = 'a'"),
        ({"backend": "slurm", "reach": "tunnel"}, "reach = 'tunnel' leads nowhere", "via"),
        ({"backend": "slurm", "cores": 8, "nodes": 2, "max_cores": 15}, "max_cores = 15 is less than one pilot has", "16"),
        ({"backend": "slurm", "wall_time": 1}, "unknown setting 'wall_time' of site big", "did you mean walltime?"),
        ({"backend": "slurm", "x" * 9999: 1}, "unknown setting 'xxx", "known are: backend"),
        ({}, "there is no backend None", "known are: ssh"),
        ({"backend": ["slurm"]}, "there is no backend ['slurm']", "known are: ssh"),
        ({"backend": "slrum"}, "there is no backend 'slrum'", "did you mean slurm?"),
        (3, "big = 3 is not a site", "[big]"),
        pytest.param(VAST, "is not a site", "[big]", id="vast"),
    ],
)
def test_what_does_not_go_together_is_said(table: object, message: str, fix: str) -> None:
    problem = refusal(table)
    assert message in str(problem) and fix in problem.hint


@pytest.mark.parametrize("name", ["local", "", "-x", "a b", "a/b", "é", "x" * 41])
def test_a_site_has_a_name_that_can_be_typed(name: str) -> None:
    assert "cannot be the name of a site" in str(refusal({"backend": "slurm"}, name))


def test_the_largest_site_that_is_accepted_can_be_written_down() -> None:
    most = 1_000_000
    table = {"backend": "slurm", "max_pilots": most, "max_cores": most, "cores": most, "memory": 10**15, "walltime": "3650d"}
    site = make_site("big", {**table, "submissions_per_minute": 7}, "sites.toml")
    record = f.TurnRecord(0.0, [f.SiteDescribed("big", site)])
    assert f.decode_record(f.encode_record(record)) == record


# --- the file -------------------------------------------------------------------------------------------------------------------------

GOOD = '[pond]\nbackend = "slurm"\ncores = 2\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "sites.toml"
    path.write_text(text)
    return path


def test_one_bad_site_does_not_spoil_the_others(tmp_path: Path) -> None:
    path = written(tmp_path, f'[reef]\nbackend = "slurm"\ncores = "two"\n{GOOD}')
    sites = read_sites(path)
    assert list(sites) == ["pond"] and sites["pond"].cores == 2
    assert str(sites.bad["reef"]) == f"{path}: site reef: cores = 'two'" and "write a whole number" in sites.bad["reef"].hint
    assert "reef" in sites and "lake" not in sites
    with pytest.raises(BadInput, match="site reef: cores = 'two'"):
        sites["reef"]
    with pytest.raises(KeyError):
        sites["lake"]


def test_a_master_keeps_the_old_of_a_site_that_became_bad_and_takes_on_the_new_of_others(tmp_path: Path) -> None:
    stage = Stage()

    def read(text: str) -> list[e.Effect]:
        found = read_sites(written(tmp_path, text))
        stage.tell(i.SitesRead(dict(found), tuple(found.bad)))
        return list(stage.effects)

    read(f'{GOOD}[reef]\nbackend = "sge"\ncores = 4\n')
    (told,) = read(f'{GOOD.replace("2", "3")}[reef]\nbackend = "sge"\ncores = "four"\n')
    assert isinstance(told, e.DescribeSite) and told.name == "pond" and told.site is not None and told.site.cores == 3
    kept = stage.machine.state.sites["reef"].site
    assert kept is not None and kept.cores == 4
    (gone,) = read(GOOD.replace("2", "3"))
    assert gone == e.DescribeSite("reef", None)


@pytest.mark.parametrize(
    "content",
    [b"[pond", b"\xff\xfe", b"x = " + b"9" * 5000, b"x = " + b"[" * 100_000, b"a = 1\na = 2\n", b"x = 2026-99-99\n"],
)
def test_a_file_that_is_no_toml_is_named_with_a_way_out(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "sites.toml"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="is not valid TOML") as problem:
        read_sites(path)
    assert str(path) in str(problem.value) and "mv " in problem.value.hint


def test_a_file_that_cannot_be_read_is_an_error_and_one_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert read_sites(tmp_path / "nothing") == {}
    with pytest.raises(BadInput, match="cannot be read: Is a directory"):
        read_sites(tmp_path)


def test_tables_in_tables_in_tables_are_no_site_and_no_catastrophe(tmp_path: Path) -> None:
    deep = ".".join("a" * 3000)
    sites = read_sites(written(tmp_path, f'{GOOD}[reef]\nbackend = "slurm"\n[reef.options.{deep}]\nx = 0x{"f" * 9999}\n'))
    assert list(sites) == ["pond"] and list(sites.bad) == ["reef"]


def test_every_key_has_a_type_that_is_checked() -> None:
    odd: list[Any] = [object(), 1.5, None, {"a": {"b": "c"}}, [["a"]]]
    for key in SITE_KEYS:
        for value in odd:
            if not (type(value) is float and key in ("submissions_per_minute", "period", "poll", "idle", "memory", "cache_size")):
                refusal({"backend": "slurm", key: value})


def test_a_key_that_does_not_exist_can_be_taken_out_by_hand() -> None:
    assert apply_changes("x", {"backend": "slurm", "quue": "a", "max-cores": 1}, ["quue=", "max-cores="]) == {"backend": "slurm"}
    with pytest.raises(BadInput, match="there is no key 'quue'"):
        apply_changes("x", {"backend": "slurm"}, ["quue="])
