"""What a site's variables are set to may be secret: it is in no log, on no command line, and in no file that others can read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from pilotfish.backends.interface import Command, CommandOutput, PilotBatch
from pilotfish.backends.pilot_script import pilot_script
from pilotfish.cli.site_commands.site_keys import as_data, shown
from pilotfish.master.sites.command_runner import CommandRunner
from pilotfish.model.site import PilotSize, Site
from tests.unit.cli.conftest import CommandLine, master, pilotfish
from tests.unit.cli.test_site import ADD, path
from tests.unit.cli.test_site_check import programs, put

__all__ = ["master", "path", "pilotfish", "programs"]  # fixtures

HUSH = 'hush \'it"s" $HOME `id` \\n é'
SITE = Site(backend="slurm", environment={"SITE_TOKEN": HUSH, "OTHER": ""})
LOOK = 'printf "%s|%s|" "$SITE_TOKEN" "$OTHER"; tr "\\0" " " </proc/$$/cmdline; cat; exit 3'


def run(site: Site, folder: Path, *argv: str, stdin: str = "") -> tuple[CommandOutput, str]:
    """The answer, and the diary."""

    async def whole() -> CommandOutput:
        runner = CommandRunner("here", site, folder, folder / "diary")
        try:
            return await runner.run(Command(argv, stdin))
        finally:
            await runner.close()

    return asyncio.run(whole()), (folder / "diary").read_text()


@pytest.mark.parametrize("stdin", ["", "one\ntwo", "no end", "\n\nblank"])
def test_variables_reach_a_command_and_nothing_of_its_input_is_lost(tmp_path: Path, stdin: str) -> None:
    answer, _ = run(SITE, tmp_path, "sh", "-c", LOOK, stdin=stdin)
    value, other, rest = answer.stdout.split("|", 2)
    assert (answer.status, value, other) == (3, HUSH, "")
    assert rest == f"sh -c {LOOK} {stdin}"


@pytest.mark.parametrize("stdin", ["", "script"])
def test_the_diary_has_the_names_of_variables_and_not_their_values(tmp_path: Path, stdin: str) -> None:
    _, diary = run(SITE, tmp_path, "sh", "-c", "cat; exit 1", stdin=stdin)
    assert "env SITE_TOKEN=... OTHER=... sh -c 'cat; exit 1'" in diary and "hush" not in diary
    assert (tmp_path / "diary").stat().st_mode & 0o077 == 0


def test_a_path_that_is_set_is_where_the_command_is_looked_for_and_one_that_is_missing_is_missing(tmp_path: Path) -> None:
    put(tmp_path, "sbatch", "echo 7")
    site = Site(backend="slurm", environment={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert run(site, tmp_path, "sbatch")[0] == CommandOutput(0, "7\n", "")
    assert run(site, tmp_path, "pilotfish-nonesuch")[0].status == 127


def test_a_site_without_variables_and_a_command_that_sets_its_own_are_left_alone(tmp_path: Path) -> None:
    answer, diary = run(Site(backend="lsf"), tmp_path, "env", "LSB_NTRIES=1", "sh", "-c", 'echo "$LSB_NTRIES"')
    assert answer.stdout == "1\n" and "env LSB_NTRIES=1 sh" in diary


def test_what_is_shown_of_a_site_has_no_values_of_variables() -> None:
    assert shown(SITE)["environment"] == "SITE_TOKEN=..., OTHER=..."
    assert as_data("hpc", SITE)["environment"] == {"SITE_TOKEN": "...", "OTHER": "..."}


def test_only_the_plan_for_a_pilot_shows_values_and_says_so(pilotfish: CommandLine, path: Path) -> None:
    pilotfish(*ADD, "--env", "SITE_TOKEN=hush")
    changed = pilotfish("site", "set", "hpc", "environment.OTHER=hush").out
    assert "environment is now SITE_TOKEN, OTHER (values are hidden)." in changed
    for words in (("show", "hpc"), ("show", "hpc", "--json"), ("list", "--json"), ("set", "hpc", "environment.MORE=hush")):
        said = pilotfish("site", *words)
        assert said.status == 0 and "SITE_TOKEN" in said.out and "hush" not in said.out + said.err
    plan = pilotfish("site", "show", "hpc", "--dry-run").out
    assert "SITE_TOKEN=hush" in plan and "are shown only here" in plan


def test_the_doctor_tells_no_values_and_sees_who_may_read_them(pilotfish: CommandLine, programs: Path) -> None:
    put(programs, "squeue", "echo 'squeue: error: no' >&2; exit 1")
    pilotfish("site", "set", "hpc", "environment.SITE_TOKEN=hush")
    file = programs.parent / ".pilotfish" / "sites.toml"
    open_to_all = file.rename(programs / "sites.toml")
    file.symlink_to(open_to_all)
    open_to_all.chmod(0o644)
    said = pilotfish("doctor", "hpc", "--json", "--no-pilot")
    found = {one["check"]: one for one in json.loads(said.out)["findings"]}
    assert "env SITE_TOKEN=... squeue" in found["answers"]["cure"] and "hush" not in said.out
    assert found["description"]["cure"] == f"chmod 600 {open_to_all}"
    file.unlink()
    open_to_all.rename(file)
    assert "chmod" not in pilotfish("doctor", "hpc", "--json", "--no-pilot").out


def test_secrets_of_a_site_are_taken_from_the_jobs_that_its_system_hands_them_on_to() -> None:
    order = PilotBatch("pf-1", 1, PilotSize(), "/folder", "/agent.pyz")
    script = pilot_script(Site(backend="slurm", environment={"SITE_TOKEN": "hush", "SLURM_CONF": "/etc/s"}), order, ["#SBATCH --x"])
    assert "\nunset SITE_TOKEN\n" in script and "SLURM_CONF" not in script
    assert "unset" not in pilot_script(Site(backend="slurm"), order, [])
