"""pilotfish site, sites, pilots add and run --site, against a fake master."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import click
import pytest

from pilotfish.cli.site_commands.site_command import site
from pilotfish.config import read_tables
from tests.support.fake_session import FakeMaster
from tests.unit.cli.conftest import CommandLine
from tests.unit.cli.test_completions import offered

ADD = ("site", "add", "hpc", "--backend", "slurm", "--cores", "4")


def row(name: str = "hpc", **more: Any) -> dict[str, Any]:
    waits = {"queue_wait_median_s": 90.0, "queue_wait_90_s": None}
    counts = {"waiting": 1, "active": 2, "workers": 2, "failures": {"refused": 1, "bootstrap": 3}}
    about = {"site": name, "backend": "slurm", "via": "", "state": "ready", "used": True, "wanted": -1, "held": "", "trouble": ""}
    reason = {"code": "some", "text": f"site {name} stands so", "commands": [f"pilotfish doctor {name}"]}
    return {**about, "reason": reason, **counts, **waits, **more}


@pytest.fixture
def path(pilotfish: CommandLine, tmp_path: Path) -> Path:
    home = tmp_path / ".pilotfish"
    home.chmod(0o700)
    return home / "sites.toml"


@pytest.fixture
def hpc(pilotfish: CommandLine, path: Path, master: FakeMaster) -> Path:
    assert pilotfish(*ADD).status == 0
    master.asked.clear()
    return path


def test_a_site_is_added_as_it_was_typed_and_only_its_owner_can_read_it(pilotfish: CommandLine, path: Path, master: FakeMaster) -> None:
    more = ("--memory", "8G", "--walltime", "2h", "--via", "me@login", "--directive", "--exclusive", "--directive", "--qos=long")
    said = pilotfish(*ADD, *more, "--setup", "module load x", "--env", "A=b=c", "--tag", "os=el9", "--option", "accounting=no")
    assert said == (0, "Site hpc is added: slurm through me@login. Try it: pilotfish site test hpc\n", "")
    assert read_tables(path)["hpc"] == {
        "backend": "slurm",
        "via": "me@login",
        "cores": 4,
        "memory": "8G",
        "walltime": "2h",
        "directives": ["--exclusive", "--qos=long"],
        "options": {"accounting": "no"},
        "environment": {"A": "b=c"},
        "setup": ["module load x"],
        "tags": {"os": "el9"},
    }
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert ("sites_reread", {}) in master.asked


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        (["--backend", "slrum"], "there is no backend 'slrum'", "did you mean slurm?"),
        (["--backend", "slurm", "--cores", "four"], "cores = 'four' is not a whole number", "write it like cores=8"),
        (["--backend", "slurm", "--walltime", "soon"], "site hpc: walltime: 'soon' is not a duration", "write it like"),
        (["--backend", "slurm", "--host", "a"], "hosts are for the backend ssh", "via = 'a'"),
        (["--backend", "slurm", "--max-pilots", "0"], "max_pilots = 0", "set max_pilots to 1 or more"),
        (["--backend", "slurm", "--env", "A"], "--env 'A' is not NAME=VALUE", "write it like --env NAME=VALUE"),
        (["--backend", "slurm", "--reach", "magic"], "reach = 'magic'", "known are: auto, direct, tunnel"),
    ],
)
def test_nothing_is_written_of_a_site_that_is_wrong(pilotfish: CommandLine, path: Path, words: list[str], message: str, fix: str) -> None:
    said = pilotfish("site", "add", "hpc", *words)
    assert said.status == 2
    assert message in said.err
    assert fix in said.err
    assert not path.exists()


def test_a_site_is_not_added_twice(pilotfish: CommandLine, hpc: Path) -> None:
    before = hpc.read_text()
    said = pilotfish(*ADD)
    assert said.status == 2
    assert "there is a site 'hpc' already\n  fix: Change it: pilotfish site set hpc KEY=VALUE" in said.err
    assert hpc.read_text() == before


def test_keys_are_set_as_the_remedies_say(pilotfish: CommandLine, hpc: Path, master: FakeMaster) -> None:
    assert pilotfish("site", "set", "hpc", "walltime=7260", "max-pilots=8", "cores=16", "memory=8G").out == (
        "Site hpc: max_pilots is now 8, cores is now 16, memory is now 8 GiB, walltime is now 2 h 1 min.\n"
    )
    assert master.asked == [("sites_reread", {})]
    pilotfish("site", "set", "hpc", "environment.A=1", "environment.B=2", "setup=module load x", 'directives=["--a", "--b"]', "paused=yes")
    table = read_tables(hpc)["hpc"]
    assert table["walltime"] == 7260
    assert table["environment"] == {"A": "1", "B": "2"}
    assert table["setup"] == ["module load x"]
    assert table["directives"] == ["--a", "--b"]
    assert table["paused"] is True
    pilotfish("site", "set", "hpc", "environment.A=", "setup=", "directives=", "walltime=", "memory=")
    assert read_tables(hpc)["hpc"] == {"backend": "slurm", "cores": 16, "max_pilots": 8, "paused": True, "environment": {"B": "2"}}
    assert pilotfish("site", "set", "hpc", "cores=16").out == "Site hpc is unchanged.\n"


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        (["hpc", "corse=2"], "site hpc: there is no key 'corse'", "Did you mean 'cores'?"),
        (["hpc", "cores"], "'cores' is not KEY=VALUE", "pilotfish site set hpc max_pilots=8"),
        (["hpc", "cores=-1"], "cores = -1 is negative", "set cores to 0 or more"),
        (["hpc", "cores.x=1"], "cores has no parts", "pilotfish site set hpc cores=VALUE"),
        (["hpc", "environment=x"], "is not a table", "environment.NAME=VALUE"),
        (["hpc", "setup=[x"], "is not TOML", 'setup=["one", "two"]'),
        (["hpc", "paused=maybe"], "neither true nor false", "paused=true"),
        (["hpd", "cores=1"], "there is no site 'hpd'", "Did you mean 'hpc'?\n  fix: pilotfish site set hpc cores=1"),
    ],
)
def test_a_wrong_change_changes_nothing(pilotfish: CommandLine, hpc: Path, words: list[str], message: str, fix: str) -> None:
    before = hpc.read_text()
    said = pilotfish("site", "set", *words)
    assert said.status == 2
    assert message in said.err
    assert fix in said.err
    assert hpc.read_text() == before


def test_this_machine_is_set_elsewhere(pilotfish: CommandLine, hpc: Path) -> None:
    said = pilotfish("site", "set", "local", "cache_size=100M")
    assert "error: local is this machine" in said.err
    assert "config.toml" in said.err


def test_a_site_is_paused_resumed_and_removed(pilotfish: CommandLine, hpc: Path, master: FakeMaster) -> None:
    assert pilotfish("site", "pause", "hpc").out == "Site hpc is paused. Resume it: pilotfish site resume hpc\n"
    assert read_tables(hpc)["hpc"]["paused"] is True
    master.asked.clear()
    assert pilotfish("site", "resume", "hpc").out == "Site hpc may be used and is tried again. See: pilotfish sites\n"
    assert read_tables(hpc)["hpc"]["paused"] is False
    assert master.asked == [("sites_reread", {}), ("site_release", {"site": "hpc"})]
    assert pilotfish("site", "remove", "hpc").out == "Site hpc is removed.\n"
    assert read_tables(hpc) == {}
    assert pilotfish("site", "remove", "hpc").status == 2


def test_sites_are_changed_without_a_master(pilotfish: CommandLine, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotfish.client.session._connector", None)
    assert pilotfish(*ADD).status == 0
    assert pilotfish("site", "resume", "hpc").out == "Site hpc may be used. See: pilotfish sites\n"
    assert pilotfish("sites").out.splitlines()[2].split() == ["hpc", "slurm", "ready", "0", "0", "0", "-", "-", "-"]


def test_what_is_written_is_listed_and_shown(pilotfish: CommandLine, hpc: Path) -> None:
    assert pilotfish("site", "list").out.splitlines()[1].split() == ["hpc", "slurm", "-", "-", "10", "4", "1", "h"]
    assert json.loads(pilotfish("site", "list", "--json").out)[0]["walltime_s"] == 3600.0
    assert "walltime                1 h\n" in pilotfish("site", "show", "hpc").out
    assert json.loads(pilotfish("site", "show", "hpc", "--json").out)["cores"] == 4
    hpc.unlink()
    assert pilotfish("site", "list").out == "No sites are configured. Add one: pilotfish site add NAME --backend slurm\n"
    assert json.loads(pilotfish("site", "list", "--json").out) == []


def test_the_plan_for_a_pilot_is_shown_to_the_letter(pilotfish: CommandLine, hpc: Path) -> None:
    pilotfish("site", "set", "hpc", "via=me@login", "queue=batch", "environment.SLURM_CONF=/c", "folder=/scratch/me")
    said = pilotfish("site", "show", "hpc", "--dry-run").out
    assert "ssh me@login 'env SLURM_CONF=/c sbatch --parsable --job-name=pf-00000000-1" in said
    assert "\n#SBATCH --cpus-per-task=4\n" in said
    assert "\n#SBATCH --partition=batch\n" in said
    assert "exec sh /scratch/me/00000000/pf-00000000-1/start.sh" in said
    data = json.loads(pilotfish("site", "show", "hpc", "--dry-run", "--json").out)
    assert data["submit"]["argv"][:3] == ["env", "SLURM_CONF=/c", "sbatch"]
    assert data["submit"]["stdin"].startswith("#!/bin/sh\n#SBATCH")


@pytest.mark.parametrize("backend", ["ssh", "sge", "pbs", "lsf", "htcondor", "kubernetes", "arc"])
def test_there_is_a_plan_for_every_kind_of_site(pilotfish: CommandLine, path: Path, backend: str) -> None:
    needed = {"kubernetes": ("--option", "image=i"), "arc": ("--option", "endpoint=https://e")}.get(backend, ())
    assert pilotfish("site", "add", "x", "--backend", backend, *needed).status == 0
    said = pilotfish("site", "show", "x", "--dry-run")
    assert said.status == 0, said.err
    assert "# 2. The pilot is submitted:" in said.out


def test_the_states_of_sites_come_with_the_next_command(pilotfish: CommandLine, hpc: Path, master: FakeMaster) -> None:
    master.sites = [
        row("a", state="held", held="3 pilots in a row ended"),
        row("b", state="trouble"),
        row("c", state="paused", failures={}),
        row("d"),
    ]
    lines = pilotfish("sites").out.splitlines()
    assert " ".join(lines[0].split()) == "SITE BACKEND STATE QUEUED RUNNING WORKERS MEDIAN WAIT P90 WAIT FAILURES"
    assert lines[1].split()[:6] == ["a", "slurm", "held", "1", "2", "2"]
    assert lines[1].endswith("1 min 30 s         -  bootstrap 3, refused 1")
    assert lines[2].split()[2] == "trouble"
    assert lines[5:] == [line for name in "abc" for line in (f"site {name} stands so", f"  fix:    pilotfish doctor {name}")]
    assert [one["state"] for one in json.loads(pilotfish("sites", "--json").out)] == ["held", "trouble", "paused", "ready"]


def test_why_finds_a_site_by_its_name(pilotfish: CommandLine, hpc: Path, master: FakeMaster) -> None:
    pilotfish("run", "--", "echo")
    master.sites = [row()]
    assert pilotfish("why", "hpc").out.startswith("site hpc is ")
    assert pilotfish("why", "hpd").status == 2


def test_why_finds_a_pilot_that_is_gone(pilotfish: CommandLine, hpc: Path, master: FakeMaster) -> None:
    master.ends["hpc-3"] = {"kind": "failed", "cause": "refused", "reason": "was refused"}
    assert pilotfish("why", "hpc-3").out.startswith("pilot hpc-3 is ")
    assert pilotfish("why", "hpc-4").status == 2


def test_a_run_is_sent_to_sites(pilotfish: CommandLine, hpc: Path, master: FakeMaster) -> None:
    assert pilotfish("run", "--site", "hpc", "--site", "local", "--", "echo").status == 0
    assert master.runs[1].options.sites == ("hpc", "local")
    assert master.asked[:2] == [("sites_reread", {}), ("site_use", {"site": "hpc", "pilots": -1})]
    pilotfish("run", "--site", "hpc:4", "--site", "local:2", "--", "echo")
    assert ("site_use", {"site": "hpc", "pilots": 4}) in master.asked
    assert master.workers_asked == 2
    Path("flow.py").write_text("def run(tasks):\n    tasks.add(['echo'])\n")
    assert pilotfish("run", "--site", "hpc", "flow.py").status == 0
    assert master.runs[3].options.sites == ("hpc",)


@pytest.mark.parametrize(("word", "message"), [("hpd", "there is no site 'hpd'"), ("hpc:0", "site 'hpc:0' is not understood")])
def test_a_run_for_a_site_that_is_not_there_is_refused_before_anything_starts(
    pilotfish: CommandLine, hpc: Path, master: FakeMaster, word: str, message: str
) -> None:
    said = pilotfish("run", "--site", word, "--", "echo")
    assert said.status == 2
    assert message in said.err
    assert master.asked == []
    assert not master.runs


def test_pilots_are_added_at_a_site(pilotfish: CommandLine, hpc: Path, master: FakeMaster) -> None:
    assert pilotfish("pilots", "add", "hpc", "2").out == "Requested 2 pilots at site hpc: hpc-1, hpc-2. See: pilotfish sites\n"
    assert master.asked == [("sites_reread", {}), ("pilots_add", {"site": "hpc", "pilots": 2})]
    assert json.loads(pilotfish("pilots", "add", "hpc", "--json").out) == {"site": "hpc", "pilots": ["hpc-1"]}
    for words in (["add"], ["add", "hpd"], ["add", "hpc", "many"], ["add", "local", "2"], ["remove", "hpc"]):
        assert pilotfish("pilots", *words).status == 2


def test_a_command_is_run_as_the_master_would(pilotfish: CommandLine, path: Path) -> None:
    pilotfish(*ADD, "--env", "CONF=secret")
    said = pilotfish("site", "exec", "hpc", "--", "sh", "-c", "echo $CONF $0; echo oh >&2; exit 3", "--flag")
    assert (said.status, said.out, said.err) == (3, "secret --flag\n", "oh\n")
    assert pilotfish("site", "exec", "hpd", "--", "true").status == 2 == pilotfish("site", "exec", "hpc", "--").status
    assert "there is no such command" in pilotfish("site", "exec", "hpc", "nowhere-to-be-found").err


def test_a_site_that_is_described_badly_is_named_in_the_list_and_only_once(pilotfish: CommandLine, hpc: Path) -> None:
    hpc.write_text(hpc.read_text() + '\n[reef]\nbackend = "slurm"\ncores = "two"\n')
    said = pilotfish("site", "list")
    assert "hpc" in said.out and said.err.count("site reef: cores = 'two'") == 1
    assert pilotfish("site", "show", "reef").err.count("site reef: cores = 'two'") == 1
    assert pilotfish("site", "show", "hpc").err == ""


def test_a_login_needs_somewhere_to_log_in(pilotfish: CommandLine, hpc: Path) -> None:
    said = pilotfish("site", "login", "hpc")
    assert said.status == 2
    assert "site hpc has no login node" in said.err


def test_a_login_is_an_ssh_in_the_foreground(pilotfish: CommandLine, hpc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/words\nexit 5\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}{os.pathsep}{os.environ['PATH']}")
    pilotfish("site", "set", "hpc", "via=me@login")
    said = pilotfish("site", "login", "hpc")
    assert said.status == 4
    assert "ssh to me@login ended with exit status 5\n  fix: Try it by hand: ssh me@login" in said.err
    words = (tmp_path / "words").read_text().splitlines()
    assert words[-3:] == ["--", "me@login", "exit 0"]
    assert "BatchMode=yes" not in words


def test_what_a_site_lacks_is_told_while_a_run_waits(pilotfish: CommandLine, hpc: Path, master: FakeMaster) -> None:
    master.stuck = True
    master.reasons = [
        {"code": "too-big", "text": "a task asks for 64 cores", "commands": ["pilotfish site set hpc cores=64"]},
        {"code": "no-site", "text": "there is no site x", "commands": []},
    ]
    master.watch_run = lambda run, cursor: Impatient()  # type: ignore[method-assign,assignment,return-value]
    said = pilotfish("run", "--site", "hpc", "--param", "x=1..2", "--", "echo", "{x}")
    assert said.status == 0, "it may still come to something, so that a person who leaves is told how to come back"
    assert "a task asks for 64 cores" in said.err
    assert "fix:    pilotfish site set hpc cores=64" in said.err


class Impatient:
    """Nothing happens until somebody presses Ctrl-C."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + 1.0

    def next(self, timeout_s: float) -> None:
        if time.monotonic() > self._ends:
            raise KeyboardInterrupt

    def close(self) -> None:
        pass


def test_every_option_of_its_commands_has_help(pilotfish: CommandLine) -> None:
    for command in site.commands.values():
        assert command.help, command.name
        for parameter in command.params:
            assert not isinstance(parameter, click.Option) or parameter.help, f"site {command.name} {parameter.opts}"


def test_a_misspelt_command_is_told_the_nearest(pilotfish: CommandLine) -> None:
    assert pilotfish("site", "ad").err == "error: there is no command 'site ad'\n  fix: Did you mean 'add'?\n"
    assert "pilotfish site --help" in pilotfish("site", "frobnicate").err


@pytest.mark.usefixtures("hpc")
def test_sites_and_keys_are_offered() -> None:
    assert offered("site", "show", "") == offered("doctor", "h") == offered("run", "--site", "") == ["hpc"]
    assert offered("site", "set", "hpc", "max_p") == ["max_pilots="]
    assert offered("pilots", "") == ["add"]
    assert "hpc" in offered("why", "h")


def test_sites_shows_the_errors_of_sites_that_are_described_badly(pilotfish: CommandLine, path: Path, master: FakeMaster) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text('[reef]\nbackend = "slurn"\n')
    for words in (["sites"], ["sites", "--json"]):
        said = pilotfish(*words)
        assert "error: " in said.err and "site reef: there is no backend 'slurn'" in said.err and "did you mean slurm?" in said.err
        assert "No other sites" not in said.out
