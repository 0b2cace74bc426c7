"""Runs Slurm: one controller and any number of nodes on this machine. Several clusters can run at once."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from tests.engines import processes
from tests.engines.daemons import Engine


@dataclass(frozen=True)
class Partition:
    """A partition. Jobs of a higher tier preempt those of a lower one, which are requeued under the same id."""

    name: str
    most_minutes: int = 60
    tier: int = 1

    def line(self, is_default: bool) -> str:
        return (
            f"PartitionName={self.name} Nodes=ALL Default={'YES' if is_default else 'NO'} MaxTime={self.most_minutes}"
            f" DefaultTime={min(self.most_minutes, 10)} PriorityTier={self.tier} PreemptMode=REQUEUE State=UP"
        )


@dataclass
class Slurm(Engine):
    """A Slurm cluster. Nodes are named n1, n2, …, the first partition is the default, and cores and memory of nodes are only declared."""

    needs = "slurm"

    name: str = "pond"
    nodes: int = 2
    cpus: int = 4
    memory_mb: int = 4000
    partitions: tuple[Partition, ...] = (Partition("batch"), Partition("short", most_minutes=1), Partition("urgent", tier=10))
    forgets_after_s: int = 300
    """Seconds for which an ended job is listed, plus a few: Slurm forgets many at a time."""
    node_timeout_s: int = 30
    """Seconds of silence after which a node is down and its jobs are requeued or failed. Slurm retries first: with 3 it takes half a
    minute, or ten seconds if ``settings`` have MessageTimeout=2.
    """
    settings: tuple[str, ...] = ()
    """More lines of slurm.conf."""

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {"SLURM_CONF": str(self.place / "slurm.conf")}

    def kill_daemon(self, abruptly: bool = False) -> None:
        """Kill the controller. It saves its state every five seconds and before it ends; ``abruptly`` makes it forget the latest jobs."""
        self._kill("slurmctld", gently=not abruptly)

    def restart_daemon(self) -> None:
        self._run("slurmctld", "slurmctld", "-D", "-i")
        self._wait_for_controller()

    def kill_node(self, number: int) -> None:
        """Kill the slurmd of a node. Its jobs' processes continue, and the controller is not notified."""
        self._kill(f"slurmd-n{number}")

    def restart_node(self, number: int) -> None:
        self._start_node(number)
        self._wait_for_node(number)

    def leftovers(self) -> list[str]:
        return sorted(set(self.ask("squeue", "--noheader", "--format=%A").split()))

    def _set_up(self) -> None:
        self.ports = processes.free_ports(self.nodes + 1)
        for folder in ("state", "spool", "munge"):
            (self.place / folder).mkdir()
        (self.place / "munge").chmod(0o711)
        key = self.place / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        (self.place / "finished.txt").touch()
        (self.place / "plugstack.conf").touch()
        (self.place / "slurm.conf").write_text("\n".join([*self._configuration(), *self.settings, ""]))
        self._run("munged", *self._munged())
        processes.wait_until((self.place / "munge" / "socket").exists, "munged's socket")
        self._run("slurmctld", "slurmctld", "-D", "-i", "-c")
        for number in range(1, self.nodes + 1):
            self._start_node(number)
        self._wait_for_controller()
        for number in range(1, self.nodes + 1):
            self._wait_for_node(number)

    def _start_node(self, number: int) -> None:
        (self.place / "spool" / f"n{number}").mkdir(exist_ok=True)
        self._run(f"slurmd-n{number}", "slurmd", "-D", "-N", f"n{number}")

    def _wait_for_controller(self) -> None:
        # commands retry for ten seconds without a controller, so check its port first
        self._wait_until_up("slurmctld listens", lambda: processes.is_listening(self.ports[0]))
        self._wait_until_up("slurmctld answers", lambda: "is UP" in self.ask("scontrol", "ping"))

    def _wait_for_node(self, number: int) -> None:
        def is_up() -> bool:
            states = self.ask("sinfo", "--noheader", "--Node", f"--nodes=n{number}", "--format=%T").split()
            return bool(states) and all(state in ("idle", "mixed", "allocated", "completing") for state in states)

        self._wait_until_up(f"n{number} joins", is_up)

    def _munged(self) -> list[str]:
        folder = self.place / "munge"
        return [
            "munged",
            "--foreground",
            "--force",  # temporary directories are writable for all, which it would refuse
            f"--key-file={folder / 'key'}",
            f"--socket={folder / 'socket'}",
            f"--pid-file={folder / 'pid'}",
            f"--seed-file={folder / 'seed'}",
            "--num-threads=2",
        ]

    def _configuration(self) -> list[str]:
        host, place = socket.gethostname().split(".")[0], self.place
        nodes = [
            f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={self.cpus} RealMemory={self.memory_mb}"
            for number, port in enumerate(self.ports[1:], start=1)
        ]
        return [
            f"ClusterName={self.name}",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={self.ports[0]}",
            "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            f"AuthInfo=socket={place / 'munge' / 'socket'}",
            f"StateSaveLocation={place / 'state'}",
            f"SlurmdSpoolDir={place / 'spool' / '%n'}",
            f"SlurmctldPidFile={place / 'slurmctld.pid'}",
            f"SlurmdPidFile={place / 'slurmd-%n.pid'}",
            f"PlugStackConfig={place / 'plugstack.conf'}",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/linux",
            "JobCompType=jobcomp/filetxt",
            f"JobCompLoc={place / 'finished.txt'}",
            "AccountingStorageType=accounting_storage/none",
            "MpiDefault=none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU_Memory",
            "DefMemPerCPU=64",
            "SlurmdParameters=config_overrides",  # use the cores and memory configured here, not those of the machine
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,sched_min_interval=50000",
            "ReturnToService=2",
            f"SlurmdTimeout={self.node_timeout_s}",
            "SlurmctldTimeout=30",
            f"MinJobAge={self.forgets_after_s}",
            "KillWait=5",
            "MaxArraySize=10001",
            *nodes,
            *(partition.line(is_default=not position) for position, partition in enumerate(self.partitions)),
        ]
