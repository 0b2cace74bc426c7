"""This machine as a site: a pilot is a process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LocalBackend:
    """What an agent on this machine is started with. Its key is in the credentials file, never in the arguments."""

    python: str
    bundle: str
    credentials: str
    worker: str
    cores: float
    workdir: str
    share: str
    cache: str
    home: str
    """Where the master keeps what tasks have made."""
    poll_s: float = 0.0
    cache_size: int = 0

    def command(self) -> list[str]:
        words = [self.python, self.bundle, "--credentials", self.credentials, "--worker", self.worker, "--cores", f"{self.cores:g}"]
        words += ["--workdir", self.workdir, "--share", self.share, "--cache", self.cache, "--home", self.home]
        words += ["--cache-bytes", str(self.cache_size)] if self.cache_size else []
        return [*words, "--poll", f"{self.poll_s:g}"] if self.poll_s else words
