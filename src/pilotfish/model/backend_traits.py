"""What is known of each kind of backend: its options, so that a slip is found when it is written and not in a queue, and its programs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

Check = tuple[Callable[[str], object], str]
"""Whether a text will do, and what would."""


def _holds_pod(text: str) -> bool:
    try:
        pod = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(pod, dict) and isinstance(pod.get("volumes", []), list)


def _matches(pattern: str, expected: str) -> Check:
    return re.compile(pattern).fullmatch, expected


_WORD = _matches(r"(?!-)[^\s\x00-\x1f\x7f]+", "one word")
_PATH = _matches(r"(?![\s-])[^\x00-\x1f\x7f]+", "a path")


class BackendTraits(NamedTuple):
    """What a person can tell a kind of backend, and what they can be told of it."""

    options: dict[str, Check] = {}
    """What it can be told beyond what every site has."""
    needs: tuple[str, ...] = ()
    """Options without which it cannot work."""
    ignores: tuple[str, ...] = ()
    """Keys that would have no effect."""
    multiplies: str = ""
    """Directives that would change how many jobs there are, which is not theirs to say."""
    programs: tuple[str, ...] = ()
    """What it is spoken to with."""
    helpers: dict[str, str] = {}
    """Programs that it can do without, and what is missing then."""
    harmless_word: str = ""
    """With this each of them does nothing."""
    variables: tuple[str, ...] = ()
    """How the names of the variables begin that they go by."""
    hands_on: bool = False
    """It may hand the environment of a submission on to its jobs. Others, and ssh, may need secrets in it to let us in."""
    several_queues: bool = False
    cancel: str = ""
    """What takes a job out of its queue, if a person can type it."""
    release: str = ""
    """What lets a job go that is held."""


ANY_OPTIONS: dict[str, Check] = {"ssh_config": _PATH}
KINDS: dict[str, BackendTraits] = {
    "ssh": BackendTraits(
        ignores=("nodes", "queue", "account", "directives"),
        programs=("sh", "ps", "tar"),
        harmless_word="-V",
    ),
    "slurm": BackendTraits(
        {"accounting": _matches("yes|no", "yes or no")},
        multiplies=r"(^|\s)(--array\b|-a[\s\d])",
        programs=("sbatch", "squeue", "scancel"),
        helpers={"sacct": "how a pilot ended is known only while squeue lists it"},
        harmless_word="--version",
        variables=("SLURM_",),
        hands_on=True,
        several_queues=True,
        cancel="scancel",
        release="scontrol release",
    ),
    "sge": BackendTraits(
        {
            **dict.fromkeys(("pe", "memory_resource", "gpu_resource"), _WORD),
            "account_flag": _matches("-[AP]", "-P or -A"),
        },
        ignores=("nodes",),
        multiplies=r"(^|\s)-t[\s\d]",
        programs=("qsub", "qstat", "qdel"),
        helpers={"qacct": "how a pilot ended is not known"},
        harmless_word="-help",
        variables=("SGE_",),
        hands_on=True,
        several_queues=True,
        cancel="qdel",
        release="qrls",
    ),
    "pbs": BackendTraits(
        {"flavour": _matches("(?i)openpbs|torque", "openpbs or torque")},
        multiplies=r"(^|\s)-[Jt][\s\d]",
        programs=("qsub", "qstat", "qdel"),
        helpers={"qselect": "Torque's way is tried instead"},
        harmless_word="--version",
        variables=("PBS_",),
        hands_on=True,
        several_queues=True,
        cancel="qdel",
        release="qrls",
    ),
    "lsf": BackendTraits(
        multiplies=r"(^|\s)-J\b.*\[",
        programs=("bsub", "bjobs", "bkill"),
        harmless_word="-V",
        variables=("LSF_",),
        hands_on=True,
        several_queues=True,
        cancel="bkill",
    ),
    "htcondor": BackendTraits(
        ignores=("nodes", "queue"),
        multiplies=r"(?i)^\s*queue\b(?!\s*=)",
        programs=("condor_submit", "condor_q", "condor_rm"),
        helpers={"condor_history": "how a pilot ended is not known"},
        harmless_word="-version",
        variables=("CONDOR_", "_CONDOR_"),
        cancel="condor_rm",
    ),
    "kubernetes": BackendTraits(
        {
            **dict.fromkeys(("image", "namespace", "context", "service_account", "gpu"), _WORD),
            "kubeconfig": _PATH,
            "pull_policy": _matches("Always|IfNotPresent|Never", "Always, IfNotPresent or Never"),
            "node_selector": _matches(r"[^=,\s]+=[^=,\s]*(,\s*[^=,\s]+=[^=,\s]*)*", "name=value,..."),
            "run_as": _matches(r"[0-9]{1,10}", "the number of a user"),
            "pod": (_holds_pod, "a JSON object, with a list if it has volumes"),
        },
        needs=("image",),
        ignores=("nodes", "account", "directives"),
        programs=("kubectl",),
        harmless_word="--help",
        variables=("KUBE",),
    ),
    "arc": BackendTraits(
        {
            "endpoint": _matches(r"https?://[^\s/\x00-\x1f\x7f][^\s\x00-\x1f\x7f]*", "an address such as https://ce.example.org:443/arex"),
            **dict.fromkeys(("proxy", "capath", "cacert"), _PATH),
        },
        needs=("endpoint",),
        ignores=("nodes",),
        programs=("curl",),
        harmless_word="--version",
        variables=("X509_", "ARC_"),
    ),
}
BACKEND_NAMES = tuple(KINDS)


def kind_of(backend: str) -> BackendTraits:
    """Of one that a later version has described nothing is known."""
    return KINDS.get(backend, BackendTraits())
