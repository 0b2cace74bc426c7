"""Defines a site as a user configures it, the size of a pilot, and the events of pilots at a site."""

from __future__ import annotations

from msgspec import Struct

CREDENTIAL_KINDS = ("kerberos", "x509", "ssh-certificate", "token")
LOCAL = "local"
"""The site that is always there: this machine."""


REFUSED, BOOTSTRAP, EXPIRED, CANCELLED, VANISHED, DIED = "refused", "bootstrap", "expired", "cancelled", "vanished", "died"
"""Causes of a pilot's end, except the end in order. Refused: its site did not accept it. Bootstrap: it ended before an agent joined.
Expired: its walltime was over. Cancelled: this pool or another user cancelled it. Vanished: the site no longer knows it. Died: the pilot or
its node was killed.
"""


BATCH_LIMIT, LOGIN_NEEDED = "batch-limit", "login-needed"
"""Codes of problems with a site. Batch-limit: the site accepts no more pilots for a while. Login-needed: the user must log in."""


SUBMITTED, JOINED, SUCCEEDED, FAILED, WITHDRAWN, RELEASED = "submitted", "joined", "succeeded", "failed", "withdrawn", "released"
"""Kinds of events of pilots at a site, besides EXPIRED. Submitted: the site accepted the pilot after ``seconds``. Joined: the first agent
of the pilot joined ``seconds`` after the request. Succeeded: the pilot ended in order after an agent had joined. Failed: the pilot was
refused, or it ended in any other way. Withdrawn: the pilot was cancelled after ``seconds`` in the queue. Released: a user resumed the site.
"""


class SiteEvent(Struct, frozen=True, array_like=True):
    """One event of one pilot at a site. ``cause``: the kind of failure. ``reason``: the message at the end of the pilot."""

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
    """Login node on which the commands of the site run, as an argument of ssh; empty: this machine."""
    hosts: tuple[str, ...] = ()
    """For the ssh backend: hosts, as arguments of ssh."""

    max_pilots: int = 10
    """Maximum number of pilots, queued and running."""
    max_queued: int = 5
    """Maximum number of queued pilots."""
    max_cores: int = 0
    """Maximum number of cores of all pilots together; 0: no limit."""

    cores: int = 0
    """Cores per node of a pilot; 0: as many as the tasks need (with ssh: all cores of the host)."""
    nodes: int = 1
    """Number of nodes of a pilot. Only slurm, pbs and lsf allow more than one."""
    memory: int = 0
    """Memory per node of a pilot; 0: the default of the site, or as much as the tasks need."""
    gpus: int = 0
    walltime_s: float = 3600.0
    """Walltime of a pilot."""
    idle_s: float = 300.0
    """Time without tasks after which a pilot is released; 0: never. Pilots that the user requested are not released."""
    queue: str = ""
    """Queue or partition; empty: the default of the site."""
    account: str = ""
    """Account or project to charge."""
    directives: tuple[str, ...] = ()
    """Extra batch directives, written as the text after ``#SBATCH``."""
    options: dict[str, str] = {}
    """Backend-specific options, such as a container image."""
    environment: dict[str, str] = {}
    """Environment variables of the commands of the site, such as ``SLURM_CONF`` for one of two clusters. Values can be secrets: only
    ``pilotfish site show --dry-run`` shows them, and they are in no process list."""

    credentials: tuple[str, ...] = ()
    """Credentials that the commands of the site need, such as ``kerberos``, ``x509:FILE``, ``ssh-certificate:FILE`` or ``token:FILE``. You
    are warned before a credential expires. If it has expired, pilots wait for a new credential."""

    folder: str = "~/.pilotfish"
    """Directory for files of pilots at the site."""
    scratch: str = ""
    """Directory for sandboxes on the nodes; empty: the temporary directory of the node."""
    cache: str = ""
    """Directory on the nodes for the cache, which later pilots also use; empty: next to the sandboxes. If the nodes share the disk, one
    copy serves all nodes."""
    cache_size: int = 0
    """Maximum size of the cache; 0: half of the free space."""
    storage: tuple[str, ...] = ()
    """Directories on the nodes that already contain files, named by their own name or by their hash. These files are not sent."""
    peers: bool = True
    """Whether agents of the site exchange files."""
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
    """Connection of agents to the master: ``direct``, or ``tunnel`` through the login node; ``auto``: a tunnel if the site is reached
    through ssh and has no ``address``."""
    address: str = ""
    """For ``direct``: address under which the nodes reach the machine of the master. The master must listen on this address: see ``host``
    in ``config.toml``."""
    poll_s: float = 0.0
    """Seconds between short connections of an agent to the master; 0: agents stay connected."""

    period_s: float = 30.0
    """Interval between polls of the queue of the site; at least 1s. In ``pilotfish site add``: ``--poll-interval``."""
    submissions_per_minute: float = 300.0
    commands_at_once: int = 4
    paused: bool = False
    """Submit no more pilots until the site is resumed."""

    @property
    def is_tunnelled(self) -> bool:
        return self.reach == "tunnel" or (self.reach == "auto" and bool(self.via or self.hosts) and not self.address)

    @property
    def takes_whole_machines(self) -> bool:
        """Returns whether each pilot takes a whole machine, whose size is not configured."""
        return self.backend == "ssh" and not self.cores

    @property
    def pilot_size(self) -> PilotSize:
        """Returns the size of a pilot that is requested independently of waiting tasks."""
        cores = float(self.cores or (0 if self.takes_whole_machines else 1))
        return PilotSize(cores, self.nodes, self.walltime_s, self.memory, float(self.gpus))
