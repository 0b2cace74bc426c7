"""Runs Grid Engine: one qmaster, and this machine as the only host."""

from __future__ import annotations

import pwd
import re
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.engines import processes
from tests.engines.daemons import Engine

SHIPPED = Path("/usr/share/gridengine")
PROGRAMS = Path("/usr/lib/gridengine")

PARALLEL = """\
pe_name            smp
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    $pe_slots
control_slaves     FALSE
job_is_first_task  TRUE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
"""


@dataclass
class GridEngine(Engine):
    """A Grid Engine with queue all.q and parallel environment smp. Root may not submit."""

    needs = "gridengine"

    slots: int = 8
    notice_s: int = 5
    """Seconds of notice before the end, for jobs submitted with -notify."""
    has_urgent_queue: bool = False
    """Whether there is a queue urgent.q; while a job runs there, jobs of all.q are suspended."""

    @property
    def environment(self) -> dict[str, str]:
        qmaster, execd = self.ports or (0, 0)
        return super().environment | {
            "SGE_ROOT": str(self.place / "root"),
            "SGE_CELL": "default",
            "SGE_QMASTER_PORT": str(qmaster),
            "SGE_EXECD_PORT": str(execd),
        }

    def kill_daemon(self) -> None:
        self._kill("qmaster")

    def restart_daemon(self) -> None:
        """Restart the qmaster. The host reconnects after half a minute; until then no job starts and cancelled jobs continue."""
        self._start_qmaster()

    def leftovers(self) -> list[str]:
        return sorted({line.split()[0] for line in self.ask("qstat", "-u", "*").splitlines()[2:]})

    def _set_up(self) -> None:
        self.ports = processes.free_ports(2)
        self._write_files()
        self._fill_database()
        self._start_qmaster()
        self._configure()
        self._run("execd", str(PROGRAMS / "sge_execd"), SGE_ND="1")
        self._wait_until_up("the queue is open", lambda: self._queue_state() == "")

    def _start_qmaster(self) -> None:
        self._run("qmaster", str(PROGRAMS / "sge_qmaster"), SGE_ND="1")
        self._wait_until_up("qmaster listens", lambda: processes.is_listening(self.ports[0]))
        self._wait_until_up("qmaster answers", lambda: bool(self.ask("qconf", "-sss")))

    def _queue_state(self) -> str:
        """Return the state of the queue; empty if it is fine."""
        fields = self.ask("qstat", "-f", "-q", "all.q").splitlines()[2].split()
        return "" if len(fields) == 5 and fields[3] != "-NA-" else fields[-1]

    def _write_files(self) -> None:
        known = self.place / "root" / "default" / "common"
        for folder in (known, *(self.place / name for name in ("qmaster/job_scripts", "execd", "database"))):
            folder.mkdir(parents=True)
        for name in ("bin", "lib", "util", "utilbin"):
            (self.place / "root" / name).symlink_to(Path("/var/lib/gridengine") / name)
        host = socket.gethostname()
        (known / "act_qmaster").write_text(f"{host}\n")
        (known / "host_aliases").write_text(f"{host} localhost\n")  # 127.0.0.1 may resolve to that name first
        (known / "bootstrap").write_text(
            changed(
                (SHIPPED / "default-bootstrap").read_text(),
                spooling_params=self.place / "database",
                qmaster_spool_dir=self.place / "qmaster",
            )
        )
        (self.place / "configuration").write_text(
            changed(
                (SHIPPED / "default-configuration").read_text(),
                execd_spool_dir=self.place / "execd",
                mailer="/bin/true",
                # The host sends at most one message per second, so that each one lists all its jobs. A rescheduled job whose host sends
                # a message that does not list it is never ended.
                load_report_time="00:00:01",
                # an extra group id marks each job, so no other engine on this machine may use the same ids
                gid_range=f"{self.ports[0] * 100}-{self.ports[0] * 100 + 99}",
                reporting_params="accounting=true reporting=false flush_time=00:00:01 joblog=false sharelog=00:00:00",
            )
        )
        subprocess.run(["chown", "-R", "sgeadmin:sgeadmin", str(self.place)], check=True)
        (self.place / "tmp").mkdir()
        (self.place / "tmp").chmod(0o1777)

    def _fill_database(self) -> None:
        resources = SHIPPED / "util" / "resources"
        for program, *arguments in [
            ("spoolinit", "berkeleydb", "libspoolb", str(self.place / "database"), "init"),
            ("spooldefaults", "configuration", str(self.place / "configuration")),
            ("spooldefaults", "complexes", str(resources / "centry")),
            ("spooldefaults", "usersets", str(resources / "usersets")),
            ("spooldefaults", "managers", "sgeadmin"),
            ("spooldefaults", "managers", "root"),
        ]:
            account = pwd.getpwnam("sgeadmin")
            said = subprocess.run(
                [str(PROGRAMS / program), *arguments],
                user=account.pw_uid,
                group=account.pw_gid,
                extra_groups=[],
                env=self.environment,
                cwd=self.place,
                capture_output=True,
                text=True,
            )
            if said.returncode:
                raise processes.EngineFailed(f"{program} {' '.join(arguments)}: {said.stderr or said.stdout}")

    def _configure(self) -> None:
        host = socket.gethostname()
        self.ask("qconf", "-ah", host)
        self.ask("qconf", "-as", host)
        self._add("-Ahgrp", f"group_name @allhosts\nhostlist {host}\n")
        self._add("-Ap", PARALLEL)
        queue = changed(
            self.ask("qconf", "-sq"),
            qname="all.q",
            hostlist="@allhosts",
            slots=self.slots,
            pe_list="smp",
            shell="/bin/sh",
            shell_start_mode="unix_behavior",
            load_thresholds="NONE",
            tmpdir=self.place / "tmp",
            notify=f"00:00:{self.notice_s:02}",
        )
        self._add("-Aq", queue)
        if self.has_urgent_queue:
            self._add("-Aq", changed(queue, qname="urgent.q", subordinate_list="all.q=1"))
        scheduler = self.ask("qconf", "-ssconf")
        quick = changed(scheduler, schedule_interval="0:0:1", flush_submit_sec=1, flush_finish_sec=1, job_load_adjustments="NONE")
        self._add("-Msconf", quick)

    def _add(self, how: str, text: str) -> None:
        file = self.place / f"qconf{how}"
        file.write_text(text)
        self.ask("qconf", how, str(file))


def changed(text: str, **values: object) -> str:
    """Change settings in a text with one setting per line, name first."""
    for name, value in values.items():
        text, count = re.subn(rf"^{name}\s.*$", f"{name} {value}", text, flags=re.MULTILINE)
        if count != 1:
            raise processes.EngineFailed(f"the setting {name} is there {count} times in {text}")
    return text
