"""Tests commands and files of a site, run here or on a login node with a real sshd and an ordinary user."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.backends.interface import Command, CommandOutput, CommandRefused, UnclearAnswer
from pilotfish.master.agent_bundle import bundle_content
from pilotfish.master.sites.command_runner import CommandRunner, RateLimit
from pilotfish.master.sites.site_files import absolute_folder, read_tail, remove, stage
from pilotfish.master.sites.ssh_connection import control_directory, remote_command, remove_control_directory
from pilotfish.model.site import LOGIN_NEEDED, Site
from tests.engines import requirements
from tests.support.scripted_master import alive, eventually
from tests.support.sshd import Sshd, access_to, running_sshd, words_of

pytestmark = pytest.mark.xdist_group("site access")  # one fixture serves all of them

ODD = ("two words", "it's", 'say "!" twice!', "$HOME `id` \\n", "", "tab\tend", "é*?[a]~#;&|<>")
Story = Callable[[CommandRunner], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def server() -> Iterator[Sshd]:
    with running_sshd() as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that no connection and no process on the login node is left."""
    yield
    if "server" in request.fixturenames:
        server = request.getfixturevalue("server")
        eventually(lambda: not server.processes(), "something is left on the login node", 100.0)
        assert list(server.sockets.iterdir()) == []


def play(story: Story, site: Site, sockets: Path, log: Path | None = None) -> None:
    async def whole() -> None:
        runner = CommandRunner("here", site, sockets, log)
        try:
            await story(runner)
        finally:
            await runner.close()

    asyncio.run(whole())


def run_one(server: Sshd, *argv: str, **fields: Any) -> CommandOutput:
    answers = []

    async def story(runner: CommandRunner) -> None:
        answers.append(await runner.run(Command(argv, **fields)))

    play(story, server.site(), server.sockets)
    return answers[0]


def until_dead(pid: int) -> None:
    eventually(lambda: not alive(pid))


# --- here ---------------------------------------------------------------------------------------------------------------------------


def test_commands_are_run_here_if_a_site_has_no_login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.setenv("PILOTFISH_HOME", "secret")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")

    async def story(runner: CommandRunner) -> None:
        told = await runner.run(Command(("sh", "-c", "cat; echo no >&2; exit 3"), stdin="yes"))
        assert told == CommandOutput(3, "yes", "no\n")
        environment = (await runner.run(Command(("env",)))).stdout
        assert "LC_ALL=C\n" in environment and "secret" not in environment and "PATH=" in environment
        assert (await runner.run(Command(("pilotfish-nonesuch",)))).status == 127
        assert (await runner.run(Command(("/",)))).status == 126
        assert (await runner.run(Command(("sh", "-c", "kill -9 $$")))).status == 128 + signal.SIGKILL
        assert (await runner.run(Command(("printf", "%s|", *ODD)))).stdout == "".join(f"{word}|" for word in ODD)

    play(story, Site(backend="slurm"), tmp_path, tmp_path / "log")
    first, complaint = (tmp_path / "log").read_text().splitlines()[:2]
    assert first.endswith(" s  exit 3     sh -c 'cat; echo no >&2; exit 3'  # 3 characters of input") and complaint.strip() == "no"


def test_a_command_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    async def story(runner: CommandRunner) -> None:
        answer = await runner.run(Command(("sh", "-c", "sleep 1000 & echo $!; wait"), timeout_s=0.3))
        assert answer.status is None and answer.complaint() == "it did not answer in time"
        eventually(lambda: not alive(int(answer.stdout)))

    play(story, Site(backend="slurm"), tmp_path)


def test_nobody_waits_for_what_a_command_left_in_the_background(tmp_path: Path) -> None:
    async def story(runner: CommandRunner) -> None:
        answer = await runner.run(Command(("sh", "-c", "sleep 1000 & echo $!")))
        assert answer.status == 0 and alive(int(answer.stdout))
        os.kill(int(answer.stdout), signal.SIGKILL)

    play(story, Site(backend="slurm"), tmp_path)


def test_output_beyond_the_limit_is_an_error_without_output(tmp_path: Path) -> None:
    async def story(runner: CommandRunner) -> None:
        answer = await runner.run(Command(("head", "-c", "20000000", "/dev/zero")))
        assert answer.status is None and not answer.stdout and "more than" in answer.complaint()

    play(story, Site(backend="slurm"), tmp_path)


@pytest.mark.parametrize("pipe", ["1", "2"])
def test_a_command_with_endless_output_is_stopped(tmp_path: Path, pipe: str) -> None:
    """It is stopped long before the timeout, because no useful output is that long."""

    async def story(runner: CommandRunner) -> None:
        command = Command(("sh", "-c", f"echo $$ > {tmp_path}/pid; exec yes >&{pipe}"), timeout_s=1000.0)
        answer = await asyncio.wait_for(runner.run(command), 100.0)
        assert answer.status is None and not answer.stdout and "more than 16 MiB" in answer.complaint()
        await asyncio.to_thread(until_dead, int((tmp_path / "pid").read_text()))

    play(story, Site(backend="slurm"), tmp_path)


def test_hundreds_of_commands_can_run_at_once(tmp_path: Path) -> None:
    async def story(runner: CommandRunner) -> None:
        answers = await asyncio.gather(*(runner.run(Command(("echo", str(number)))) for number in range(200)))
        assert [answer.stdout for answer in answers] == [f"{number}\n" for number in range(200)]

    play(story, Site(backend="slurm", commands_at_once=200), tmp_path)


def test_submissions_have_a_pace_after_a_few_at_once() -> None:
    pace = RateLimit(60.0)
    waits = [pace.take(1000.0) for _ in range(8)]
    assert waits == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0]
    assert pace.take(2000.0) == 0.0
    assert [RateLimit(0.0).take(1.0), RateLimit(6.0).take(1.0)] == [0.0, 0.0]
    slow = RateLimit(6.0)
    assert [slow.take(100.0), slow.take(100.0)] == [0.0, 10.0]


# --- there --------------------------------------------------------------------------------------------------------------------------


def test_commands_are_run_on_the_login_node_word_for_word(server: Sshd) -> None:
    assert run_one(server, "id", "-un") == CommandOutput(0, f"{server.user}\n")
    assert run_one(server, "printf", "%s|", *ODD).stdout == "".join(f"{word}|" for word in ODD)
    assert run_one(server, "sh", "-c", "cat; echo $LC_ALL >&2; exit 7", stdin="é\n$x") == CommandOutput(7, "é\n$x", "C\n")


def test_words_pass_unharmed_through_csh() -> None:
    requirements.require("csh")
    line = remote_command(["sh", "-c", 'printf "%s|" "$@"', "sh", *ODD])
    said = subprocess.run(["tcsh", "-f", "-c", line], capture_output=True, text=True)
    assert said.stdout == "".join(f"{word}|" for word in ODD), said.stderr


def test_what_the_shell_says_at_its_start_is_no_output(server: Sshd) -> None:
    (server.home / ".bashrc").write_text("echo Welcome to the cluster\n")
    try:
        assert run_one(server, "echo", "mine") == CommandOutput(0, "mine\n")
    finally:
        (server.home / ".bashrc").unlink()


def test_a_command_that_only_login_shells_know_is_found(server: Sshd) -> None:
    (server.home / "bin").mkdir()
    command = server.home / "bin" / "squeue-there"
    command.write_text('#!/bin/sh\necho "queue $1"\n')
    command.chmod(0o755)
    (server.home / ".bash_profile").write_text(f"PATH=$PATH:{server.home}/bin\n")
    for path in (server.home / "bin", command, server.home / ".bash_profile"):
        shutil.chown(path, server.user)
    assert run_one(server, "squeue-there", "of  me!") == CommandOutput(0, "queue of  me!\n")
    assert run_one(server, "pilotfish-nonesuch").status == 127


def test_a_status_of_255_is_told_from_nobody_answering(server: Sshd) -> None:
    assert run_one(server, "sh", "-c", "echo down >&2; exit 255") == CommandOutput(255, "", "down\n")

    async def story(runner: CommandRunner) -> None:
        lost = asyncio.create_task(runner.run(Command(("sleep", "1000"))))
        pid = await asyncio.to_thread(eventually, lambda: next((one for one in server.processes() if "1000" in words_of(one)[1:2]), 0))
        os.kill(server.server_of(pid), signal.SIGKILL)
        answer = await lost
        assert answer.status is None and answer.complaint() != "it did not answer in time"
        os.kill(pid, signal.SIGKILL)
        assert (await runner.run(Command(("echo", "well")))).stdout == "well\n"

    play(story, server.site(), server.sockets)


def test_nobody_at_an_address_is_no_answer(server: Sshd) -> None:
    async def story(runner: CommandRunner) -> None:
        answer = await runner.run(Command(("true",)))
        assert answer.status is None and "Connection refused" in answer.complaint() and not runner.login_needed
        with pytest.raises(UnclearAnswer, match="Connection refused"):
            await access_to(runner).ask(stage("/tmp/pilotfish-never", {"a": (b"", 0o600)}))

    play(story, server.site(via="nowhere"), server.sockets)


@pytest.mark.parametrize(("destination", "words"), [("refused", "Permission denied"), ("unknown", "Host key verification failed")])
def test_a_login_that_needs_the_user_is_reported_and_not_retried_at_once(server: Sshd, destination: str, words: str) -> None:
    log = server.directory / "sshd.log"

    async def story(runner: CommandRunner) -> None:
        answers = await asyncio.gather(*(runner.run(Command(("true",))) for _ in range(5)))
        knocks = log.read_text().count("Connection from")
        answers.append(await runner.run(Command(("true",))))
        assert all(answer.status is None and words in answer.complaint() for answer in answers)
        assert all("pilotfish site login here" in answer.complaint() for answer in answers)
        assert all(answer.code == LOGIN_NEEDED for answer in answers)
        assert words in runner.login_needed and log.read_text().count("Connection from") == knocks
        # After a login by the user, the same runner continues.
        ready = ["-i", str(server.directory / "id"), "-o", f"UserKnownHostsFile={server.directory}/known_hosts"]
        log_in = runner.ssh().open(login=True)
        subprocess.run([*log_in[:1], *ready, *log_in[1:]], check=True)
        assert (await runner.run(Command(("echo", "in")))).stdout == "in\n" and not runner.login_needed
        subprocess.run(runner.ssh().control("exit"), check=True, capture_output=True)

    play(story, server.site(via=destination), server.sockets)


def test_fifty_commands_share_one_connection_and_respect_the_limit(server: Sshd) -> None:
    log = server.directory / "sshd.log"
    script = "mkdir -p ~/count; touch ~/count/$$; ls ~/count | wc -l; sleep 0.02; rm ~/count/$$"
    logins = log.read_text().count("Accepted publickey")

    async def story(runner: CommandRunner) -> None:
        answers = await asyncio.gather(*(runner.run(Command(("sh", "-c", script))) for _ in range(50)))
        assert all(answer.status == 0 for answer in answers)
        assert 1 < max(int(answer.stdout) for answer in answers) <= 4

    play(story, server.site(), server.sockets)
    assert log.read_text().count("Accepted publickey") == logins + 1


def test_a_command_that_hangs_there_harms_no_other(server: Sshd) -> None:
    async def story(runner: CommandRunner) -> None:
        hanging = asyncio.create_task(runner.run(Command(("sh", "-c", "echo $$; exec sleep 1000"), timeout_s=1.0)))
        for _ in range(3):
            assert (await runner.run(Command(("echo", "well")))).stdout == "well\n"
        answer = await hanging
        assert answer.status is None and answer.complaint() == "it did not answer in time"
        assert (await runner.run(Command(("echo", "well")))).stdout == "well\n"
        # It would end a little later by itself.
        os.kill(int(answer.stdout), signal.SIGKILL)

    play(story, server.site(), server.sockets)


def test_a_remote_command_with_endless_output_is_stopped(server: Sshd) -> None:
    async def story(runner: CommandRunner) -> None:
        answer = await asyncio.wait_for(runner.run(Command(("yes",), timeout_s=1000.0)), 100.0)
        assert answer.status is None and not answer.stdout and "more than 16 MiB" in answer.complaint()
        assert (await runner.run(Command(("echo", "well")))).stdout == "well\n"

    play(story, server.site(), server.sockets)


def test_a_broken_connection_is_opened_again(server: Sshd) -> None:
    async def story(runner: CommandRunner) -> None:
        for _ in range(2):
            assert (await runner.run(Command(("echo", "well")))).stdout == "well\n"
            said = subprocess.run(runner.ssh().control("check"), capture_output=True, text=True).stderr
            pid = int(said.partition("pid=")[2].partition(")")[0])
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(until_dead, pid)
            assert runner.ssh().socket_path().exists()

    play(story, server.site(), server.sockets)


def test_one_machine_is_reached_by_way_of_another(server: Sshd) -> None:
    log = server.directory / "sshd.log"
    logins = log.read_text().count("Accepted publickey")
    assert run_one(server, "id", "-un", at="inner") == CommandOutput(0, f"{server.user}\n")
    assert log.read_text().count("Accepted publickey") == logins + 2


def test_the_place_for_connections_is_private_and_short(tmp_path: Path) -> None:
    place = control_directory(tmp_path / ("deep" * 50))
    assert stat.S_IMODE(place.stat().st_mode) == 0o700 and len(str(place)) < 70
    assert place == control_directory(tmp_path / ("deep" * 50)) != control_directory(tmp_path)


def test_places_for_connections_that_nobody_uses_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", tempfile.mkdtemp(dir="/tmp"))
    left, used, young = (control_directory(tmp_path / name) for name in ("left", "used", "young"))
    (used / "socket").touch()
    for place in (left, used):
        os.utime(place, (0, 0))
    mine = control_directory(tmp_path)
    assert (left.exists(), used.exists(), young.exists(), mine.exists()) == (False, True, True, True)
    remove_control_directory(tmp_path)
    remove_control_directory(tmp_path / "used")
    assert used.exists() and not mine.exists()
    shutil.rmtree(tempfile.gettempdir())


def test_a_place_for_connections_that_somebody_removed_is_made_again(server: Sshd) -> None:
    async def story(runner: CommandRunner) -> None:
        server.sockets.rmdir()
        assert (await runner.run(Command(("echo", "well")))).stdout == "well\n"
        assert stat.S_IMODE(server.sockets.stat().st_mode) == 0o700 and runner.ssh().is_open()

    play(story, server.site(), server.sockets)


# --- files --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [True, False])
def test_files_arrive_intact_with_their_modes_and_twice_is_once(
    server: Sshd, tmp_path: Path, far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = server.home if far else tmp_path

    async def story(runner: CommandRunner) -> None:
        top = await access_to(runner).ask(absolute_folder("~/.pilot fish!"))
        assert top == f"{home}/.pilot fish!" and stat.S_IMODE(os.stat(top).st_mode) == 0o700
        folder = Path(top) / "pool" / "order 1"
        for round in range(2):
            secret = bytes(range(256)) * 1000 + b"key %d" % round
            await access_to(runner).ask(
                stage(str(folder), {"1.json": (secret, 0o600), "start.sh": (b"#!/bin/sh\n", 0o755), "empty": (b"", 0o640)})
            )
            found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
            assert found == {"1.json": 0o600, "start.sh": 0o755, "empty": 0o640}
            assert (folder / "1.json").read_bytes() == secret
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and folder.owner() == (server.user if far else Path.home().owner())
        assert "rm -rf" in (log := (tmp_path / "log").read_text()) and "key" not in log
        assert await access_to(runner).ask(read_tail(str(folder / "1.json"), 5)) == "key 1"
        assert await access_to(runner).ask(read_tail(str(folder / "none"))) == ""
        for _ in range(2):
            await access_to(runner).ask(remove(str(folder)))
            assert not folder.exists()
        await access_to(runner).ask(remove(top))

    play(story, server.site() if far else Site(backend="slurm"), server.sockets, tmp_path / "log")


def test_a_folder_may_have_variables_in_it_or_begin_with_nothing(server: Sshd) -> None:
    async def story(runner: CommandRunner) -> None:
        found = [await access_to(runner).ask(absolute_folder(folder)) for folder in ("$HOME/a", "${HOME}/b", "c", f"{server.home}/d", "~")]
        assert found == [*(f"{server.home}/{name}" for name in "abcd"), str(server.home)]
        assert await access_to(runner).ask(absolute_folder(f"{server.home}/of $USER/x;id")) == f"{server.home}/of {server.user}/x;id"
        with pytest.raises(CommandRefused, match="NONESUCH"):
            await access_to(runner).ask(absolute_folder("$NONESUCH/a"))

    play(story, server.site(), server.sockets)


def test_what_cannot_be_put_there_is_refused_and_leaves_nothing(server: Sshd) -> None:
    async def story(runner: CommandRunner) -> None:
        with pytest.raises(CommandRefused, match="ermission denied"):
            await access_to(runner).ask(stage("/usr/pilotfish/order", {"a": (b"", 0o600)}))
        folder = f"{server.home}/half"
        os.makedirs(f"{folder}/a/b")
        for path in (folder, f"{folder}/a", f"{folder}/a/b"):
            shutil.chown(path, server.user)
        with pytest.raises(CommandRefused, match="half"):
            await access_to(runner).ask(stage(folder, {"a": (b"", 0o600)}))
        assert os.listdir(folder) == ["a"] and os.listdir(f"{folder}/a") == ["b"]
        for bad in ("relative", "/", "/home", "/home/..", "~/x", ""):
            with pytest.raises(ValueError, match="no folder"):
                await access_to(runner).ask(remove(bad))
        with pytest.raises(ValueError, match="no name"):
            await access_to(runner).ask(stage(folder, {"../a": (b"", 0o600)}))

    play(story, server.site(), server.sockets)


def test_the_agent_is_sent_once_and_again_if_somebody_tidied_up(server: Sshd) -> None:
    async def story(runner: CommandRunner) -> None:
        folder = await access_to(runner).ask(absolute_folder("~/.pilotfish"))
        path = Path(await access_to(runner).stage_bundle(folder))
        assert path.read_bytes() == bundle_content() and stat.S_IMODE(path.stat().st_mode) == 0o600
        made = path.stat().st_ino
        assert await access_to(runner).stage_bundle(folder) == str(path) and path.stat().st_ino == made
        path.write_bytes(b"half")
        await access_to(runner).stage_bundle(folder)
        assert path.read_bytes() == bundle_content()
        path.unlink()
        await access_to(runner).stage_bundle(folder)
        assert path.read_bytes() == bundle_content()

    play(story, server.site(), server.sockets)
