"""Implements doctor and gc. doctor checks this installation and prints each problem with its fix. gc removes leftovers of dead masters."""

from __future__ import annotations

import itertools
import math
import os
import resource
import select
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from pilotfish.cli.completions import complete_site
from pilotfish.cli.shared_options import json_option, pool_option, timeout_option
from pilotfish.cli.terminal.check_results import BAD, DOUBTFUL, GOOD, MIN_DESCRIPTORS, MIN_PROCESSES, CheckResult, judge_space, show_check
from pilotfish.cli.terminal.screen import Screen, clean, cut, duration, plural, size
from pilotfish.client.pools import PoolHandle, find_pools, is_served
from pilotfish.config import home, read_settings
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.portable.processes import processes_of
from pilotfish.store.keyring import privacy_fix
from pilotfish.store.pool_directory import PoolDirectory

NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "afs", "ceph", "fuse.sshfs", "9p", "panfs")
OLDEST_PYTHON = (3, 11)
SLOW_SYNC_S = 0.02
SYNCS = 20
EARLIEST_YEAR = 2024


Check = Callable[[Path], CheckResult]


@click.command()
@click.argument("site", required=False, metavar="[SITE]", shell_complete=complete_site)
@click.option("--quick", is_flag=True, help="Skip the test pool.")
@click.option("--no-pilot", is_flag=True, help="Skip the test pilot of a site.")
@timeout_option
@pool_option
@json_option
def doctor(site: str | None, quick: bool, no_pilot: bool, timeout: str, pool: str, as_json: bool) -> int:
    """Check this installation or a site; suggest fixes.

    With SITE, check that site instead: its configuration, connection and commands, and one test pilot.
    The exit status is 0 if no check failed.
    """
    if site is not None:
        from pilotfish.cli.site_commands.site_check import check_site

        return check_site(site, no_pilot=no_pilot or quick, timeout=timeout, pool=pool, as_json=as_json)
    screen = Screen.of()
    place = home()
    results: list[CheckResult] = []
    checks = [check for check in CHECKS if not (quick and check is check_test_pool)]
    for check in checks:
        result = check(place)
        results.append(result)
        if not as_json:
            show_check(screen, result)
    bad = sum(result.state == BAD for result in results)
    if as_json:
        screen.json({"home": str(place), "bad": bad, "findings": [result.as_data() for result in results]})
    else:
        screen.line("All checks passed." if not bad else f"{plural(bad, 'thing')} to fix.")
    return 1 if bad else 0


def check_python(place: Path) -> CheckResult:
    numbers = tuple(sys.version_info[:3])
    version = ".".join(map(str, numbers))
    if numbers < OLDEST_PYTHON:
        return CheckResult("python", BAD, f"{version} is too old", "Use Python 3.11 or newer: python3.11 -m venv .venv")
    return CheckResult("python", GOOD, f"{version} ({sys.executable})")


def check_home(place: Path) -> CheckResult:
    """Check that this user can write to the directory, and that no other user has access to it."""
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = place / f".doctor-{os.getpid()}"
        probe.write_text("x")
        probe.unlink()
    except OSError as error:
        return CheckResult("home", BAD, f"{place} cannot be written: {error.strerror}", "export PILOTFISH_HOME=/a/directory/of/yours")
    status = place.stat()
    if status.st_uid != os.geteuid():
        return CheckResult("home", BAD, f"{place} belongs to another user", privacy_fix(place, status))
    if status.st_mode & 0o077:
        return CheckResult("home", BAD, f"{place} is open to others (mode {status.st_mode & 0o777:o})", privacy_fix(place, status))
    return CheckResult("home", GOOD, f"{place} is accessible only to you")


def check_settings(place: Path) -> CheckResult:
    path = place / "config.toml"
    try:
        read_settings(path)
    except BadInput as error:
        return CheckResult("settings", BAD, str(error), error.hint)
    return CheckResult("settings", GOOD, f"{path} is valid" if path.exists() else "none set, defaults are used")


def check_space(place: Path) -> CheckResult:
    try:
        free = shutil.disk_usage(place).free
        inodes = os.statvfs(place).f_favail
    except OSError as error:
        return CheckResult("disk", BAD, f"{place}: {error.strerror}", "export PILOTFISH_HOME=/a/directory/of/yours")
    state, fix = judge_space(free, inodes), f"Free some space: du -sh {place}/pools/*"
    if state == BAD:
        return CheckResult("disk", BAD, f"only {size(free) if free else '0 B'} free at {place}", fix)
    if state == DOUBTFUL:
        return CheckResult("disk", DOUBTFUL, f"{size(free)} and {inodes:,} files free at {place}", fix)
    return CheckResult("disk", GOOD, f"{size(free)} free")


def file_system_of(place: Path, mounts: str) -> str:
    """Return the type of the file system on which a path is. ``mounts`` is the text of /proc/mounts."""
    best, found = -1, "unknown"
    resolved = str(place.resolve())
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        if (resolved == point or resolved.startswith(point.rstrip("/") + "/")) and len(point) >= best:
            best, found = len(point), fields[2]
    return found


def check_sync(place: Path) -> CheckResult:
    """Measure how long a synced write to the disk takes. Each answer of a master waits for such a write."""
    kind = "unknown"
    with suppress(OSError):
        kind = file_system_of(place, Path("/proc/mounts").read_text(errors="replace"))
    try:
        median = measure_sync(place)
    except OSError as error:
        return CheckResult(
            "fsync", BAD, f"cannot be done at {place}: {error.strerror}", "export PILOTFISH_HOME=/a/directory/on/a/local/disk"
        )
    text = f"{duration(median)} on {kind}"
    if kind in NETWORK_FILE_SYSTEMS or median > SLOW_SYNC_S:
        remark = "a network file system" if kind in NETWORK_FILE_SYSTEMS else "slow"
        return CheckResult("fsync", DOUBTFUL, f"{text}: {remark}", "export PILOTFISH_HOME=/a/directory/on/a/local/disk")
    return CheckResult("fsync", GOOD, text)


def measure_sync(place: Path) -> float:
    path = place / f".doctor-{os.getpid()}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        taken = []
        for _ in range(SYNCS):
            started = time.perf_counter()
            os.write(descriptor, b"x" * 200)
            os.fdatasync(descriptor)
            taken.append(time.perf_counter() - started)
        return statistics.median(taken)
    finally:
        os.close(descriptor)
        path.unlink()


def check_descriptors(place: Path) -> CheckResult:
    return _check_limit("open files", resource.RLIMIT_NOFILE, MIN_DESCRIPTORS, "ulimit -n", most=4096)


def check_processes(place: Path) -> CheckResult:
    return _check_limit("processes", resource.RLIMIT_NPROC, MIN_PROCESSES, "ulimit -u")


def _check_limit(check: str, limit: int, minimum: int, command: str, most: float = math.inf) -> CheckResult:
    """Check a limit of this process. The suggested fix raises the limit to the hard limit, or to ``most`` if this is lower."""
    soft, hard = resource.getrlimit(limit)
    if soft != resource.RLIM_INFINITY and soft < minimum:
        value = "unlimited" if hard == resource.RLIM_INFINITY else min(hard, most)
        return CheckResult(check, DOUBTFUL, f"at most {soft} at once", f"{command} {value}")
    return CheckResult(check, GOOD, "unlimited" if soft == resource.RLIM_INFINITY else f"at most {soft:,} at once")


def check_clock(place: Path) -> CheckResult:
    """Check that the monotonic clock never goes back, and that the date is plausible."""
    readings = [time.monotonic() for _ in range(1000)]
    if any(after < before for before, after in itertools.pairwise(readings)):
        return CheckResult(
            "clock", BAD, "the monotonic clock goes backwards", "Ask the administrator of this machine: its clock source is broken."
        )
    if time.gmtime().tm_year < EARLIEST_YEAR:
        return CheckResult("clock", DOUBTFUL, f"the date is {time.strftime('%Y-%m-%d')}", "Set it: timedatectl set-ntp true")
    return CheckResult("clock", GOOD, "moves forward")


def check_leftovers(place: Path) -> CheckResult:
    found = [leftover for pool in find_pools() for leftover in leftovers_of(pool)]
    if found:
        return CheckResult("leftovers", DOUBTFUL, f"{len(found)} of dead masters", "pilotfish gc --remove")
    return CheckResult("leftovers", GOOD, "none")


def check_pools(place: Path) -> CheckResult:
    """Collect the warnings of the running masters, except the masters of temporary pools."""
    from pilotfish.client.session import connect_if_served

    masters = {pool.name: master for pool in find_pools() if not pool.temporary and (master := connect_if_served(pool.name))}
    warnings = []
    for name, master in masters.items():
        warnings += [(name, warning) for warning in master.ask("status")["warnings"]]
        master.close()
    if warnings:
        text = "; ".join(f"{name}: {warning['text']}" for name, warning in warnings)
        return CheckResult("pools", DOUBTFUL, text, next((command for _, warning in warnings for command in warning["commands"]), ""))
    return CheckResult("pools", GOOD, f"{plural(len(masters), 'master')} running, without warnings" if masters else "no master running")


def check_test_pool(place: Path) -> CheckResult:
    """Run one task in a temporary pool. After the end of the pool, check that no process or file of it remains."""
    from pilotfish.cli.run_commands.attach_command import follow
    from pilotfish.client.temporary_pool import private_master

    started = time.monotonic()
    try:
        with private_master(cores=1) as private:
            run = private.submit([["true"]])
            outcome = follow(private.master, run, quiet=True)
            first = time.monotonic() - started
    except (PilotfishError, OSError) as error:
        hint = getattr(error, "hint", "") or f"See why: tail {place}/pools/*/master.log"
        return CheckResult("test pool", BAD, f"does not work: {error}", hint)
    if outcome.bad or outcome.left:
        return CheckResult("test pool", BAD, "its task failed", f"See why: tail {place}/pools/*/master.log")
    if private.left:
        return CheckResult("test pool", BAD, f"left behind: {', '.join(private.left)}", "pilotfish gc --remove")
    return CheckResult("test pool", GOOD, f"started, ran a task in {duration(first)}, left nothing")


CHECKS: tuple[Check, ...] = (
    check_python,
    check_home,
    check_settings,
    check_space,
    check_sync,
    check_descriptors,
    check_processes,
    check_clock,
    check_leftovers,
    check_pools,
    check_test_pool,
)


# --- gc ---------------------------------------------------------------------------------------------------------------------------------

KILL_TIMEOUT_S = 5.0
SHOWN_CELLS = 100


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process, socket or directory that remains of a pool without a running master."""

    kind: str
    what: str
    pool: PoolHandle
    pid: int = 0


@click.command()
@click.option("--remove", is_flag=True, help="Remove leftovers; otherwise only list them.")
@json_option
def gc(remove: bool, as_json: bool) -> int:
    """List and remove leftovers of dead masters.

    Leftovers are processes and sockets without a master, and temporary pools whose program has ended. Without --remove, leftovers are only
    listed. The runs of all other pools are kept.
    """
    screen = Screen.of()
    found = [leftover for pool in find_pools() for leftover in leftovers_of(pool)]
    removed = [leftover for leftover in found if remove and remove_leftover(leftover)]
    if as_json:
        screen.json([{"kind": item.kind, "what": item.what, "pool": item.pool.name, "removed": item in removed} for item in found])
    elif not found:
        screen.line("No leftovers found.")
    else:
        for leftover in found:
            what = cut(clean(leftover.what), SHOWN_CELLS) if leftover.kind == "process" else clean(leftover.what)
            screen.line(f"{'removed' if leftover in removed else 'left'}  {leftover.kind}  {what}")
        if not remove:
            screen.line(f"{plural(len(found), 'leftover')}. Remove: pilotfish gc --remove")
    return 0 if len(removed) == len(found) or not remove else 1


def leftovers_of(pool: PoolHandle) -> list[Leftover]:
    """List the leftovers of a pool. If a master of the pool runs, there are none."""
    if is_served(pool.directory):
        return []
    running = list(processes_of(pool.directory))
    if any("pilotfish.master" in command for _, command in running):
        # A master that is starting or suspended does not answer, but it still uses the pool.
        return []
    found = [Leftover("process", f"{pid} {command}", pool, pid) for pid, command in running]
    socket_path = PoolDirectory(pool.directory).socket_path()
    if socket_path.exists():
        found.append(Leftover("socket", str(socket_path), pool))
    if pool.temporary and not _owner_lives(pool.directory):
        found.append(Leftover("directory", str(pool.directory), pool))
    return found


def _owner_lives(directory: Path) -> bool:
    """Test whether the process that created a temporary pool still runs. The id of this process is in the name of the directory,
    ``private-PID-…``."""
    pid = directory.name.split("-")[1]
    return pid.isdigit() and os.path.exists(f"/proc/{pid}")


def remove_leftover(leftover: Leftover) -> bool:
    if leftover.kind == "process":
        return _end_process(leftover.pid)
    if leftover.kind == "socket":
        Path(leftover.what).unlink(missing_ok=True)
        return True
    shutil.rmtree(leftover.pool.directory, ignore_errors=True)
    return not leftover.pool.directory.exists()


def _end_process(pid: int) -> bool:
    """End a process with SIGTERM or, after a timeout, with SIGKILL. The signals are sent through a pidfd, so they cannot reach a later
    process with the same id."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(handle, number)
            if select.select([handle], [], [], KILL_TIMEOUT_S)[0]:
                return True
    except ProcessLookupError:
        return True
    finally:
        os.close(handle)
    return False
