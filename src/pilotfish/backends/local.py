"""This machine as a site: a pilot is a process."""

from __future__ import annotations


def agent_command(python: str, bundle: str, credentials: str, worker: str, cores: float, poll_s: float, *, workdir: str, share: str) -> list[str]:
    """The command that starts an agent here. The key is in the credentials file, never in the arguments."""
    command = [python, bundle, "--credentials", credentials, "--worker", worker, "--cores", f"{cores:g}", "--workdir", workdir]
    command += ["--share", share]
    if poll_s:
        command += ["--poll", f"{poll_s:g}"]
    return command
