"""Starts pilots as processes on hosts that are reached by ssh. Each process leads its own session.

Each process has a record on its host. The record remains even if an answer is lost or the master ends. The record is a file. The file name
consists of the process id and the start time, because a later process can get the same id. The file contains the tag of the pilot batch.
After the end of the process, the file also contains the exit status and, after a failure, the last line of the output.

Hosts need a POSIX shell and ``ps``. Scripts are sent through standard input, so that the login shell can be any shell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from pilotfish.backends.interface import ENDED, RUNNING, Command, CommandExchange, CommandOutput, JobStatus, PilotBatch
from pilotfish.backends.pilot_script import pilot_script
from pilotfish.backends.shell_template import CANNOT, fill, home_path
from pilotfish.model.backend_traits import BackendTraits
from pilotfish.model.site import Site

Result = TypeVar("Result")

GRACE_S = 10
"""Seconds between SIGTERM and SIGKILL."""
DONE = "pilotfish: done"
"""Last line of a complete answer. If it is missing, the answer is unclear."""

RECORDS = """\
umask 077
records=@FOLDER@/processes/$(uname -n)
# When process $1 began, if it lives.
began() {
  if [ -r /proc/self/stat ]; then
    life=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    set -- ${life##*) }
    [ "$1" != Z ] && echo "${20}"
  else
    set -- $(LC_ALL=C TZ=UTC0 ps -o stat= -o lstart= -p "$1" | tr -d :)
    case $1 in '' | Z*) ;; *) shift && echo "$@" | tr -d ' ' ;; esac
  fi
}
lives() { [ "$(began "${1%%.*}")" = "${1#*.}" ]; }
of_tag() { grep -lxF -e "$1" "$records"/* 2>/dev/null | sed 's|.*/|found |;q'; }
"""

PILOT = """\
record=$$.$(began $$)
echo @TAG@ >"$records/.$record" && mv "$records/.$record" "$records/$record" || exit 70
trap : TERM INT
(
@SCRIPT@)
status=$?
{ echo $status; [ $status = 0 ] || tail -n 1 @LOG@; } >>"$records/$record"
"""

START = """\
found=$(of_tag @TAG@)
if [ -z "$found" ]; then
  mkdir -p "$records" && cat >@FILE@ <<'END-OF-PILOT' || exit 70
@PILOT@END-OF-PILOT
  find "$records" -type f -mtime +90 -exec rm -f {} +
  if command -v setsid >/dev/null; then session=setsid; else session='perl -MPOSIX=setsid -e setsid;exec@ARGV'; fi
  (trap '' HUP; exec $session sh @FILE@) >@LOG@ 2>&1 </dev/null &
  for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    found=$(of_tag @TAG@)
    [ -z "$found" ] || break
    sleep 0.1 2>/dev/null || sleep 1
  done
  [ -n "$found" ] || { echo "the pilot did not start: $(tail -n 1 @LOG@)" >&2; exit 70; }
fi
echo "$found"
"""

QUERY = """\
for process in @PROCESSES@; do
  [ -f "$records/$process" ] || continue
  if lives "$process"; then echo "lives $process"; else echo "ended $process" $(sed 1d "$records/$process"); fi
done
"""

CANCEL = """\
for process in @PROCESSES@; do
  pid=${process%%.*}
  if lives "$process"; then kill -s TERM -- "-$pid" 2>/dev/null || kill -s TERM "$pid"; fi
done
waited=0
for process in @PROCESSES@; do
  pid=${process%%.*}
  while lives "$process" && [ $waited -lt @GRACE@ ]; do sleep 1; waited=$((waited + 1)); done
  if lives "$process"; then
    ps -A -o pid= -o sid= 2>/dev/null | while read -r one session; do [ "$session" != "$pid" ] || kill -s KILL "$one"; done
    kill -s KILL -- "-$pid" 2>/dev/null || kill -s KILL "$pid" 2>/dev/null
  fi
done
"""


class SshBackend:
    """Uses job ids of the form ``host:process:start``. The host is empty if the site has no ``hosts``."""

    traits = BackendTraits(ignores=("nodes", "queue", "account", "directives"), programs=("sh", "ps", "tar"), harmless_word="-V")
    arrays = 1

    def submit(self, site: Site, batch: PilotBatch) -> CommandExchange[list[str]]:
        host = batch.host or next(iter(site.hosts), "")
        log = shlex.quote(f"{batch.folder}/1.log")
        words = {"TAG": shlex.quote(batch.tag), "LOG": log, "FILE": shlex.quote(f"{batch.folder}/pilot.sh")}
        pilot = _records(site) + fill(PILOT, **words, SCRIPT=pilot_script(site, batch, ()))

        def read(answer: CommandOutput) -> list[str]:
            if answer.status in (CANNOT, 127):
                raise answer.refused()
            found = [f"{host}:{process}:{start}" for process, start in re.findall(r"^found (\d+)\.(\w+)$", _output(answer), re.MULTILINE)]
            if len(found) != 1:
                raise answer.unclear("no process id in the output")
            return found

        return _exchange(site, host, fill(START, **words, PILOT=pilot), read)

    def query(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[dict[str, JobStatus]]]:
        return [
            _exchange(site, host, fill(QUERY, PROCESSES=" ".join(processes)), partial(_statuses, host, processes))
            for host, processes in _by_host(jobs).items()
        ]

    def cancel(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[None]]:
        return [
            _exchange(site, host, fill(CANCEL, PROCESSES=" ".join(processes), GRACE=str(GRACE_S)), _cancelled)
            for host, processes in _by_host(jobs).items()
        ]

    def find(self, site: Site, tag: str) -> list[CommandExchange[dict[int, str]]]:
        return [_exchange(site, host, f"of_tag {shlex.quote(tag)}\n", partial(_found, host)) for host in site.hosts or ("",)]

    def past(self, site: Site, jobs: Sequence[str]) -> None:
        """Returns None, because ``query`` also lists ended processes."""


def _records(site: Site) -> str:
    return fill(RECORDS, FOLDER=home_path(site.folder))


def _exchange(site: Site, host: str, script: str, read: Callable[[CommandOutput], Result]) -> CommandExchange[Result]:
    return CommandExchange(Command(("sh", "-s"), stdin=f"{_records(site)}{script}echo '{DONE}'\n", at=host), read)


def _output(answer: CommandOutput) -> str:
    if answer.status != 0 or DONE not in answer.stdout:
        raise answer.unclear()
    return answer.stdout


def _statuses(host: str, asked: list[str], answer: CommandOutput) -> dict[str, JobStatus]:
    rows = re.findall(r"^(lives|ended) (\d+\.\w+) ?(\d*) ?(.*)$", _output(answer), re.MULTILINE)
    return {
        _id(host, process): JobStatus(RUNNING) if state == "lives" else _ended(status, last)
        for state, process, status, last in rows
        if process in asked
    }


def _found(host: str, answer: CommandOutput) -> dict[int, str]:
    found = re.search(r"^found (\d+\.\w+)$", _output(answer), re.MULTILINE)
    return {1: _id(host, found[1])} if found else {}


def _cancelled(answer: CommandOutput) -> None:
    _output(answer)


def _ended(status: str, last: str) -> JobStatus:
    if not status:
        return JobStatus(ENDED, "it was killed, or its machine went down", well=False)
    code = int(status)
    reason = f"signal {code - 128}" if code > 128 else f"exit status {code}"
    return JobStatus(ENDED, f"{reason}: {last}" if last else reason, well=code == 0)


def _by_host(jobs: Iterable[str]) -> dict[str, list[str]]:
    """Groups jobs by host. A job id is ``host:process:start``. In the result, a job is ``process.start``, as in the names of records. A job
    id is split at its last two colons, because the name of a host can contain colons."""
    hosts: dict[str, list[str]] = {}
    for job in jobs:
        host, process, start = job.rsplit(":", 2)
        hosts.setdefault(host, []).append(f"{process}.{start}")
    return hosts


def _id(host: str, process: str) -> str:
    return f"{host}:{process.replace('.', ':', 1)}"
