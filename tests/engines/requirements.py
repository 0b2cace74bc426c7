"""Checks what an engine needs of this machine. Engines are required unless they are switched off explicitly."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.engines import htcondor

SWITCH = "PILOTFISH_ENGINES"
ONLY_FOR_CAMPAIGNS = ("arc",)
"""Engines that ``make campaign`` installs and ``make test`` does not."""
INSTEAD = f"or set {SWITCH}=none to leave these tests out"
PROGRAMS = {
    "slurm": ("munged", "slurmctld", "slurmd", "sbatch", "scontrol"),
    "gridengine": ("sge_qmaster", "sge_execd", "qconf", "qsub"),
    "htcondor": (str(htcondor.prefix() / "sbin" / "condor_master"), str(htcondor.prefix() / "bin" / "condor_submit")),
    "openssh": ("sshd", "ssh", "ssh-keygen"),
    "arc": ("arched", "arcproxy", "curl", "openssl"),
    "people": ("useradd", "usermod", "userdel"),
    "openssl": ("openssl",),
    "csh": ("tcsh",),
}
PACKAGES = {
    "slurm": "the packages slurm-wlm and munge",
    "gridengine": "the packages gridengine-master, gridengine-exec and gridengine-client",
    "htcondor": f"HTCondor in {htcondor.prefix()}",
    "openssh": "the packages openssh-server and openssh-client",
    "arc": "the packages nordugrid-arc-arex, nordugrid-arc-client and curl",
    "people": "the package passwd",
    "openssl": "the package openssl",
    "csh": "the package tcsh",
}
FOR_ANYBODY = ("openssl", "csh")
"""Programs that need no root."""


def are_left_out() -> bool:
    return os.environ.get(SWITCH) == "none"


def what_is_missing(what: str) -> str:
    """Return what to install; empty if nothing is missing."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))
    missing = [program for program in PROGRAMS[what] if shutil.which(program, path=path) is None]
    if missing:
        installer = f".ci/engines {what}" if what in ONLY_FOR_CAMPAIGNS else ".ci/engines"
        return f"{', '.join(missing)} cannot be found: install {PACKAGES[what]} (as root, {installer} does it), {INSTEAD}"
    if os.geteuid() != 0 and what not in FOR_ANYBODY:
        return f"Jobs run here as somebody else, which only root can arrange: run the tests as root, {INSTEAD}"
    return ""


def require(what: str) -> None:
    """Fail if a program is missing, so that a skipped test is never taken for a passed one."""
    if are_left_out():
        pytest.skip(f"{SWITCH}=none")
    if missing := what_is_missing(what):
        pytest.fail(missing, pytrace=False)
