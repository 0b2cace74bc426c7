"""A site: a place where pilots can run, as a person describes it, and the size of one pilot."""

from __future__ import annotations

from msgspec import Struct

CREDENTIAL_KINDS = ("kerberos", "x509", "ssh-certificate", "token")
LOCAL = "local"
"""The site that is always there: this machine."""


REFUSED, BOOTSTRAP, EXPIRED, CANCELLED, VANISHED, DIED = "refused", "bootstrap", "expired", "cancelled", "vanished", "died"
"""How a pilot can end other than in order. Refused: its site did not take it. Bootstrap: it ended before an agent joined. Expired: its time
was over. Cancelled: by us, or by somebody else at the site. Vanished: the site no longer knows it. Died: it was killed, or its node was."""


SUBMITTED, JOINED, SUCCEEDED, FAILED, WITHDRAWN, RELEASED = "submitted", "joined", "succeeded", "failed", "withdrawn", "released"
"""What happens to pilots at a site, besides that they expire. Submitted: the site took it, after so many seconds. Joined: its first agent
is here, so long after it was requested. Succeeded: it ended in order after it had joined. Failed: it ended otherwise, or was refused.
Withdrawn: we cancelled it while it waited, after so many seconds. Released: a person had the site tried again, and knows more than its
past."""


class SiteEvent(Struct, frozen=True, array_like=True):
    """One thing that happened to one pilot at a site. ``cause`` tells one kind of failure from another; ``reason`` is what was said when
    it ended."""

    at: float
    site: str
    kind: str
    pilot: str
    seconds: float = 0.0
    cause: str = ""
    reason: str = ""


class PilotSize(Struct, frozen=True, array_like=True):
    """What one pilot asks of a site. ``cores``, ``memory`` and ``gpus`` are those of each of its nodes."""

    cores: float = 1.0
    nodes: int = 1
    walltime_s: float = 0.0
    memory: int = 0
    gpus: float = 0.0

    @property
    def all_cores(self) -> float:
        return self.cores * self.nodes


class Site(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of ``sites.toml``."""

    backend: str
    """How it is spoken to: ssh, slurm, sge, pbs, lsf, htcondor, kubernetes or arc."""
    via: str = ""
    """The login node on which its commands are run, as one would give it to ssh; empty: they are run here."""
    hosts: tuple[str, ...] = ()
    """For ssh alone: the machines, as one would give them to ssh."""

    max_pilots: int = 10
    """So many pilots at a time, waiting or running."""
    max_queued: int = 5
    """So many of them may wait."""
    max_cores: int = 0
    """So many cores at a time; 0 sets no limit."""

    cores: int = 0
    """Cores of one pilot on each node; 0: as many as the tasks need (for ssh: all that the machine has)."""
    nodes: int = 1
    """Nodes of one pilot; several only with slurm, pbs and lsf."""
    memory: int = 0
    """Bytes on each node; 0: what the site gives by itself, or what the tasks need."""
    gpus: int = 0
    walltime_s: float = 3600.0
    """How long one pilot may run."""
    idle_s: float = 300.0
    """A pilot goes home when it has had nothing to do for so long, unless a person asked for it; 0: it stays."""
    queue: str = ""
    """The queue or partition; empty: the site's own choice."""
    account: str = ""
    """The account or project that is charged."""
    directives: tuple[str, ...] = ()
    """More options for the batch system, as one would write them after ``#SBATCH`` or its like."""
    options: dict[str, str] = {}
    """What only this kind of backend knows, such as the image of a container."""
    environment: dict[str, str] = {}
    """For the site's own commands, such as ``SLURM_CONF`` where there are two clusters. They may be secrets: only
    ``pilotfish site show --dry-run`` shows their values, and no list of processes does."""

    credentials: tuple[str, ...] = ()
    """What must not have ended for its commands to work, such as ``kerberos``, ``x509:FILE``, ``ssh-certificate:FILE`` or ``token:FILE``:
    its end is watched, you are warned in time, and pilots wait for a new one."""

    folder: str = "~/.pilotfish"
    """Where the pilots' files are put at the site."""
    scratch: str = ""
    """Where tasks work on the nodes; empty: the node's place for temporary files."""
    cache: str = ""
    """Where nodes keep the files that tasks need, also between pilots; empty: beside where tasks work. On a disk that the nodes share, one
    copy serves them all."""
    cache_size: int = 0
    """It may have so many bytes; 0: half of what is free."""
    storage: tuple[str, ...] = ()
    """Directories of the nodes with files that tasks need, by their names or by their hashes: what is found there is not sent."""
    peers: bool = True
    """Agents get files from each other, too."""
    transfers: int = 16
    """So many files at once between the master and its agents."""
    python: str = ""
    """The Python of the nodes, 3.8 or later; empty: the first that is found."""
    setup: tuple[str, ...] = ()
    """Lines for the shell before the agent starts, such as ``module load python``. No place for secrets: some systems show them to all."""
    tags: dict[str, str] = {}
    """What its workers are labelled with; tasks may ask for it. Any name but ``site``."""

    reach: str = "auto"
    """How its agents reach the master: ``direct``, or by a ``tunnel`` through the login node; ``auto``: by a tunnel if the site is reached
    through ssh and has no ``address``."""
    address: str = ""
    """For ``direct``: the name under which the nodes know the master's machine; it must listen there, see ``host`` in ``config.toml``."""
    poll_s: float = 0.0
    """0: agents stay connected; otherwise they call this often."""

    period_s: float = 30.0
    """Its queue is looked at so often, whatever is there; 1s at least."""
    submissions_per_minute: float = 300.0
    commands_at_once: int = 4
    paused: bool = False
    """No new pilots, until somebody resumes it."""

    @property
    def is_tunnelled(self) -> bool:
        return self.reach == "tunnel" or (self.reach == "auto" and bool(self.via or self.hosts) and not self.address)

    @property
    def takes_whole_machines(self) -> bool:
        """Each pilot has a machine of its own, of which nobody has said how large it is."""
        return self.backend == "ssh" and not self.cores

    @property
    def pilot_size(self) -> PilotSize:
        """What a pilot asks for that is wanted whatever there is to do."""
        cores = float(self.cores or (0 if self.takes_whole_machines else 1))
        return PilotSize(cores, self.nodes, self.walltime_s, self.memory, float(self.gpus))
