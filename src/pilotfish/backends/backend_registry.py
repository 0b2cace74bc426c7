"""The kinds of sites that there are."""

from __future__ import annotations

from pilotfish.backends.arc import ArcBackend
from pilotfish.backends.htcondor import HtcondorBackend
from pilotfish.backends.interface import Backend
from pilotfish.backends.kubernetes import KubernetesBackend
from pilotfish.backends.lsf import LsfBackend
from pilotfish.backends.pbs import PbsBackend
from pilotfish.backends.sge import SgeBackend
from pilotfish.backends.slurm import SlurmBackend
from pilotfish.backends.ssh import SshBackend

BACKENDS: dict[str, Backend] = {
    "ssh": SshBackend(),
    "slurm": SlurmBackend(),
    "sge": SgeBackend(),
    "pbs": PbsBackend(),
    "lsf": LsfBackend(),
    "htcondor": HtcondorBackend(),
    "kubernetes": KubernetesBackend(),
    "arc": ArcBackend(),
}
