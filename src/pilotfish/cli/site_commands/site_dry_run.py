"""Functions for single actions at a site: show the exact commands for one pilot, run a command of the user, log in."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pilotfish import plugins
from pilotfish.backends.interface import Backend, Command, CommandOutput, PilotBatch
from pilotfish.cli.terminal.screen import Screen, clean
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.master.agent_bundle import bundle_content, bundle_name
from pilotfish.master.sites.command_runner import CommandRunner
from pilotfish.master.sites.ssh_connection import LOGIN_PERSIST, SshCommand, control_directory
from pilotfish.model.quantities import show_seconds
from pilotfish.model.site import Site
from pilotfish.store.pool_directory import pool_home

END = "END-OF-INPUT"
TIMEOUT_S = 60.0


class SiteUnreachable(PilotfishError):
    """A machine of a site could not be reached by ssh, or it refused the login."""

    code = "P3200"


def _digest(pool: str) -> str:
    """Return the digest of the pool's secret. The names of pilot batches contain this digest. Return zeros if the pool does not exist
    yet."""
    from pilotfish.store.keyring import open_keyring, pool_digest

    directory = pool_home(pool).directory
    return pool_digest(open_keyring(directory)) if (directory / "secret").exists() else "0" * 8


def with_environment(site: Site, command: Command) -> Command:
    """Return a command that sets the environment variables of the site and then runs ``command``."""
    if not site.environment:
        return command
    return replace(command, argv=("env", *(f"{name}={value}" for name, value in sorted(site.environment.items())), *command.argv))


def as_typed(site: Site, command: Command) -> str:
    """Return a command and its input as one shell command that a user can copy."""
    destination, text = command.at or site.via, shlex.join(command.argv)
    if destination:
        text = f"ssh {shlex.quote(destination)} {shlex.quote(text)}"
    return f"{text} <<'{END}'\n{command.stdin.rstrip()}\n{END}" if command.stdin else text


def show_plan(screen: Screen, name: str, site: Site, pool: str, as_json: bool) -> None:
    """Print the commands that submit and find one pilot, without running them."""
    digest = _digest(pool)
    base = site.folder.rstrip("/")
    if not site.via and not site.hosts:
        base = os.path.expanduser(base)
    tag = f"pf-{digest}-1"
    host = site.hosts[0] if site.hosts else ""
    batch = PilotBatch(tag, 1, site.pilot_size, f"{base}/{digest}/{tag}", f"{base}/agents/{bundle_name(bundle_content())}", host)
    backend: Backend = plugins.load("backends", site.backend)()
    submission = with_environment(site, backend.submit(site, batch).command)
    searches = [with_environment(site, exchange.command) for exchange in backend.find(site, tag)]
    if as_json:
        commands = {"submit": _data(submission), "find": [_data(command) for command in searches]}
        screen.json({"site": name, "folder": batch.folder, "agent": batch.bundle, **commands})
        return
    _block(
        screen, f"# 1. Files, which only you can read. In {batch.folder}: start.sh, 1.json (the pilot's key); and the agent, {batch.bundle}"
    )
    if batch.folder.startswith("~"):
        _block(screen, "#    ~ is your home directory at the site; it is replaced by the real path.")
    if site.environment:
        _block(
            screen,
            "#    Values of variables are shown only here. Commands read them from standard input, where other users cannot see them.",
        )
    _block(screen, "# 2. The pilot is submitted:")
    _block(screen, as_typed(site, submission))
    _block(screen, "# 3. If the answer is lost, the pilot is searched by its name:")
    for search in searches:
        _block(screen, as_typed(site, search))
    _block(screen, f"# 4. One query for all pilots runs every {show_seconds(site.period_s)}.")


def _block(screen: Screen, text: str) -> None:
    for line in text.split("\n"):
        screen.line(clean(line))


def _data(command: Command) -> dict[str, Any]:
    return {"at": command.at, "argv": list(command.argv), "stdin": command.stdin}


# --- by hand --------------------------------------------------------------------------------------------------------------------------


def execute(name: str, site: Site, argv: Sequence[str], pool: str) -> int:
    """Run a command at the site, print its output and return its exit status."""
    answer = asyncio.run(_execute(runner_of(name, site, pool), Command(tuple(argv), timeout_s=TIMEOUT_S)))
    sys.stdout.write(answer.stdout)
    sys.stderr.write(answer.stderr if answer.stderr.endswith("\n") or not answer.stderr else answer.stderr + "\n")
    if answer.status is None:
        raise SiteUnreachable(f"site {name}: {shlex.join(argv)} did not end normally", f"See: pilotfish doctor {name}")
    return answer.status


async def _execute(runner: CommandRunner, command: Command) -> CommandOutput:
    try:
        return await runner.run(command)
    finally:
        await runner.close()


def destinations(site: Site) -> list[str]:
    """Return the machines of a site that are reached by ssh. The login node comes first."""
    return [*([site.via] if site.via else []), *site.hosts]


def runner_of(name: str, site: Site, pool: str) -> CommandRunner:
    """Return a command runner that uses the same ssh connections as the master of the pool."""
    directory: Path = pool_home(pool).directory
    return CommandRunner(name, site, control_directory(directory))


def log_in(screen: Screen, name: str, site: Site, pool: str) -> None:
    """Run ssh in the foreground, so that the user can answer its questions."""
    places = destinations(site)
    if not places:
        raise BadInput(
            f"site {name} has no login node: its commands are run here", f"Name one: pilotfish site set {name} via=login.example.org"
        )
    if any(place.startswith("-") for place in places):
        raise BadInput(f"site {name}: {places[0]!r} is not a machine", f"pilotfish site set {name} via=login.example.org")
    runner = runner_of(name, site, pool)
    for place in places:
        ssh = runner.ssh(place if place != site.via else "")
        if ssh.is_open():
            screen.line(f"There is a connection to {clean(place)} already.")
        else:
            _log_in(name, ssh)
            screen.line(clean(f"The connection to {place} stays for {LOGIN_PERSIST}; the master of pool {pool} uses it."))
        screen.stream.flush()


def _log_in(name: str, ssh: SshCommand) -> None:
    try:
        status = subprocess.run(ssh.open(login=True), check=False).returncode
    except FileNotFoundError:
        raise SiteUnreachable("there is no ssh on this machine", "Install OpenSSH's client, such as: apt install openssh-client") from None
    if status != 0:
        raise SiteUnreachable(
            f"site {name}: ssh to {ssh.destination} ended with exit status {status}", f"Try it by hand: ssh {shlex.quote(ssh.destination)}"
        )
    if not ssh.is_open():
        raise SiteUnreachable(
            f"site {name}: logged in to {ssh.destination}, but the connection did not stay",
            "See whether ~/.ssh/config forbids ControlMaster",
        )
