"""Defines a site as a user configures it, the size of a pilot, and the events of pilots at a site."""

from __future__ import annotations

from msgspec import Struct

CREDENTIAL_KINDS = ("kerberos", "x509", "ssh-certificate", "token")
LOCAL = "local"
"""The site that is always there: this machine."""


REFUSED, BOOTSTRAP, EXPIRED, CANCELLED, VANISHED, DIED = "refused", "bootstrap", "expired", "cancelled", "vanished", "died"
"""Causes of a pilot's end, if the pilot did not end normally. Refused: the site did not accept the pilot. Bootstrap: the pilot ended before
an agent joined. Expired: the walltime of the pilot was over. Cancelled: this pool or another user cancelled the pilot. Vanished: the site
no longer knows the pilot. Died: the pilot or its node was killed."""


BATCH_LIMIT, LOGIN_NEEDED = "batch-limit", "login-needed"
"""Codes of problems with a site. Batch-limit: the site accepts no more pilots for a while. Login-needed: the user must log in."""


SUBMITTED, JOINED, SUCCEEDED, FAILED, WITHDRAWN, RELEASED = "submitted", "joined", "succeeded", "failed", "withdrawn", "released"
"""Kinds of events of pilots at a site, besides EXPIRED. Submitted: the site accepted the pilot after ``seconds``. Joined: the first agent
of the pilot joined ``seconds`` after the request. Succeeded: the pilot ended normally after an agent had joined. Failed: the site refused
the pilot, or the pilot ended in a way for which there is no other kind. Withdrawn: the pilot was cancelled after ``seconds`` in the queue.
Released: a user resumed the site."""


class SiteEvent(Struct, frozen=True, array_like=True):
    """One event of one pilot at a site. ``cause``: the kind of failure. ``reason``: the message about the end of the pilot."""

    at: float
    site: str
    kind: str
    pilot: str
    seconds: float = 0.0
    cause: str = ""
    reason: str = ""


class PilotSize(Struct, frozen=True, array_like=True):
    """Resources that one pilot requests. ``cores``, ``memory`` and ``gpus`` are for each of its nodes."""

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
    """Backend: ssh, slurm, sge, pbs, lsf, htcondor, kubernetes or arc."""
    via: str = ""
    """Login node on which the commands of the site run, written as for ssh, such as ``me@login.example.org``; empty: the commands run on
    this machine."""
    hosts: tuple[str, ...] = ()
    """For the ssh backend: hosts on which pilots run, written as for ssh."""

    max_pilots: int = 10
    """Maximum number of queued and running pilots together."""
    max_queued: int = 5
    """Maximum number of queued pilots."""
    max_cores: int = 0
    """Maximum number of cores of all pilots together; 0: no limit."""

    cores: int = 0
    """Cores per node of a pilot; 0: as many as the tasks need. With the ssh backend, 0 means all cores of the host."""
    nodes: int = 1
    """Number of nodes of a pilot. Only slurm, pbs and lsf allow more than one."""
    memory: int = 0
    """Memory per node of a pilot; 0: as much as the tasks request. If the tasks request no memory, the default of the site applies."""
    gpus: int = 0
    walltime_s: float = 3600.0
    """Walltime of a pilot."""
    idle_s: float = 300.0
    """If a pilot has no tasks for this time, the pilot is released; 0: never. Pilots from ``pilotfish pilots add`` are not released."""
    queue: str = ""
    """Queue or partition; empty: the default of the site."""
    account: str = ""
    """Account or project to charge."""
    directives: tuple[str, ...] = ()
    """Extra batch directives. With slurm, sge, pbs and lsf: the text after ``#SBATCH``, ``#$``, ``#PBS`` or ``#BSUB``. With htcondor and
    arc: lines of the job description."""
    options: dict[str, str] = {}
    """Backend-specific options, such as a container image."""
    environment: dict[str, str] = {}
    """Environment variables for the commands of the site, such as ``SLURM_CONF`` to choose a Slurm cluster. A value can be a secret: it
    appears in no process list, and only ``pilotfish site show --dry-run`` shows it."""

    credentials: tuple[str, ...] = ()
    """Credentials that the commands of the site need, such as ``kerberos``, ``x509:FILE``, ``ssh-certificate:FILE`` or ``token:FILE``. You
    are warned before a credential expires. While a credential is expired or missing, no pilots are submitted."""

    folder: str = "~/.pilotfish"
    """Directory for files of pilots at the site."""
    scratch: str = ""
    """Directory for sandboxes on the nodes; empty: the temporary directory of the node."""
    cache: str = ""
    """Directory of the cache on the nodes; empty: a directory next to the sandboxes. Later pilots use the same cache. If the nodes share
    the disk of the cache, one copy of a file serves all nodes."""
    cache_size: int = 0
    """Maximum size of the cache; 0: half of the disk space that other files leave free."""
    storage: tuple[str, ...] = ()
    """Directories on the nodes that already contain inputs of tasks. If an input is found there, by its file name or by its hash, the
    input is not sent."""
    peers: bool = True
    """``true``: agents of the site send files to each other."""
    transfers: int = 16
    """Maximum number of simultaneous transfers between the master and agents of the site."""
    python: str = ""
    """Path of Python 3.8 or later on the nodes; empty: the first suitable Python that is found."""
    setup: tuple[str, ...] = ()
    """Shell lines to run before the agent starts, such as ``module load python``. Do not put secrets here: some batch systems show them
    to all users."""
    tags: dict[str, str] = {}
    """Tags of the workers of the site. Tasks can require tags. A tag can have any name except ``site``."""

    reach: str = "auto"
    """How agents connect to the master. ``direct``: without a tunnel. ``tunnel``: through the ssh connection to the login node or host.
    ``auto``: ``tunnel`` if the site has ``via`` or ``hosts`` and no ``address``, otherwise ``direct``."""
    address: str = ""
    """For ``direct``: address at which the nodes reach the machine of the master. The master must listen on this address: see ``host``
    in ``config.toml``."""
    poll_s: float = 0.0
    """``0``: agents stay connected to the master. Other values, such as ``"5m"``: agents connect only briefly, once in this time."""

    period_s: float = 30.0
    """Interval at which the master asks the site for the states of its pilots; at least 1s. In ``pilotfish site add``, this is the option
    ``--poll-interval``."""
    submissions_per_minute: float = 300.0
    commands_at_once: int = 4
    paused: bool = False
    """``true``: no more pilots are submitted until ``pilotfish site resume``."""

    @property
    def is_tunnelled(self) -> bool:
        return self.reach == "tunnel" or (self.reach == "auto" and bool(self.via or self.hosts) and not self.address)

    @property
    def takes_whole_machines(self) -> bool:
        """Returns whether each pilot takes a whole machine. The size of the machine is then not configured."""
        return self.backend == "ssh" and not self.cores

    @property
    def pilot_size(self) -> PilotSize:
        """Returns the size of a pilot that is requested independently of waiting tasks."""
        cores = float(self.cores or (0 if self.takes_whole_machines else 1))
        return PilotSize(cores, self.nodes, self.walltime_s, self.memory, float(self.gpus))
