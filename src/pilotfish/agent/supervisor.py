"""Parses the agent's command line, starts the agent and reports the death of the agent.

A user or batch system starts the supervisor. When the agent ends, the supervisor kills the processes that the agent left behind, and exits.
If the agent failed or was killed, the supervisor also reports this to the master. If the supervisor dies, the agent notices this, kills its
slots and leaves the pool.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, NoReturn, Tuple

from ..portable.failures import describe_limit, is_limit
from ..portable.processes import END_SIGNALS, become_subreaper, kill_descendants
from ..portable.wire.handshake import BadCredentials, read_credentials
from . import VERSION

USAGE_ERROR = 2
REPORT_TIMEOUT_S = 5.0
MAX_ELAPSED_S = 86400.0


def main(arguments: List[str]) -> NoReturn:
    sys.exit(supervise(vars(parse_arguments(arguments)), _execute_agent))


def print_error(message: str) -> None:
    print("pilotfish agent: " + message, file=sys.stderr, flush=True)


def parse_arguments(arguments: List[str]) -> Any:
    import argparse

    parser = argparse.ArgumentParser(prog="agent.pyz", description="Join a master and run its tasks on this machine.")
    parser.add_argument("--credentials", required=True, metavar="FILE", help="address and key of the master (mode 0600)")
    parser.add_argument("--worker", metavar="NAME", help="name of the worker (default: made from the host name)")
    parser.add_argument("--cores", type=float, metavar="N", help="cores to offer (default: all)")
    parser.add_argument("--memory", type=float, metavar="BYTES", help="memory to offer (default: all)")
    parser.add_argument("--gpus", type=float, metavar="N", help="GPUs to offer (default: those found)")
    parser.add_argument("--resource", action="append", default=[], type=_amount, metavar="NAME=AMOUNT", help="custom resource to offer")
    parser.add_argument("--tag", action="append", default=[], type=_pair, metavar="K=V", help="tag of the worker")
    parser.add_argument("--share", metavar="DIR", default="", help="directory of large payloads, if the master is on this machine")
    parser.add_argument("--workdir", metavar="DIR", help="directory for running tasks (default: the temporary directory)")
    parser.add_argument("--cache", metavar="DIR", help="directory of the content cache (default: beside the working directory)")
    parser.add_argument("--cache-bytes", type=float, metavar="BYTES", help="maximum size of the cache (default: half of the free space)")
    parser.add_argument(
        "--storage", action="append", default=[], metavar="DIR", help="directory that may have contents or input files already"
    )
    parser.add_argument("--no-peers", action="store_true", help="do not connect to other agents")
    parser.add_argument("--home", metavar="DIR", default="", help=argparse.SUPPRESS)
    parser.add_argument("--ends-in", type=float, metavar="SECONDS", help="remaining walltime")
    parser.add_argument(
        "--poll", type=float, default=0.0, metavar="SECONDS", help="poll the master at this interval instead of staying connected"
    )
    parser.add_argument("--stopped-after", type=float, default=10.0, metavar="SECONDS", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=VERSION)
    return parser.parse_args(arguments)


def _pair(text: str) -> List[str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise ValueError(text)
    return [name, value]


def _amount(text: str) -> List[Any]:
    name, value = _pair(text)
    return [name, float(value)]


def supervise(options: Dict[str, Any], start_agent: Callable[[Dict[str, Any]], Tuple[Any, int]]) -> int:
    """Starts the agent and waits for its end. Returns the exit status of the supervisor.

    ``start_agent``: function that starts the agent. It returns the process of the agent, and the descriptor to which the options of the
    agent are written. The descriptor stays open until the agent has ended.
    """
    options["credentials"] = os.path.abspath(options["credentials"])
    try:
        options["pilot"] = read_credentials(options["credentials"]).pilot
        workdir = tempfile.mkdtemp(prefix="pilotfish-", dir=options["workdir"])
    except BadCredentials as error:
        print_error(str(error))
        return USAGE_ERROR
    except OSError as error:
        print_error("cannot make a working directory in %s: %s" % (options["workdir"] or tempfile.gettempdir(), error.strerror))
        return USAGE_ERROR
    if not options["worker"]:
        # The name must be unique. A pilot can have several nodes, and a batch system can restart a pilot while its old agent is still
        # alive.
        node, pilot = os.uname().nodename.partition(".")[0], options["pilot"]
        options["worker"] = "%s.%s.%d" % (pilot, node, os.getpid()) if pilot else "%s-%s" % (node, os.urandom(3).hex())
    default_cache = os.path.join(os.path.dirname(workdir), "pilotfish-cache-%d" % os.getuid())
    options["cache"] = os.path.expanduser(options["cache"] or "") or default_cache
    options.update(workdir=workdir, supervisor=os.getpid(), started=time.monotonic() - _elapsed_s())
    become_subreaper()
    try:
        agent, pipe_write = start_agent(options)
    except OSError as error:
        print_error("the agent cannot be started: %s" % (describe_limit(error) if is_limit(error) else error))
        _remove(workdir)
        return 1
    for number in (*END_SIGNALS, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: agent.send_signal(signal.SIGTERM))
    try:
        with contextlib.suppress(BrokenPipeError):
            os.write(pipe_write, json.dumps(options).encode() + b"\n")
        status = int(agent.wait())
        kill_descendants()
    finally:
        _remove(workdir)
    os.close(pipe_write)
    if status < 0 or status == 1:
        reason = "the agent was ended by signal %d" % -status if status < 0 else "the agent failed"
        print_error(reason)
        _report_death(options, reason)
        return 1
    return status


def _execute_agent(options: Dict[str, Any]) -> Tuple[Any, int]:
    """Starts the agent from the unpacked bundle. See ``supervise``."""
    bundle = _unpack(options["workdir"])
    pipe_read, pipe_write = os.pipe()
    try:
        arguments = [sys.executable, bundle, "agent", str(pipe_read)]
        return subprocess.Popen(arguments, pass_fds=[pipe_read], stdin=subprocess.DEVNULL), pipe_write
    finally:
        os.close(pipe_read)


def _elapsed_s() -> float:
    """Returns the seconds since the batch job began; 0 if this time is unknown. Commands of the job that ran before the agent have used a
    part of the walltime."""
    try:
        elapsed = time.time() - float(os.environ.pop("PILOTFISH_STARTED", "nan"))
    except ValueError:
        return 0.0
    return elapsed if 0.0 < elapsed < MAX_ELAPSED_S else 0.0


def _unpack(workdir: str) -> str:
    """Unpacks the bundle, because Python reads modules faster from files than from an archive. Returns the path of the files."""
    bundle = sys.argv[0]
    if os.path.isfile(bundle) and not bundle.endswith(".py"):
        import zipfile

        with zipfile.ZipFile(bundle) as archive:
            archive.extractall(os.path.join(workdir, "bundle"))
        return os.path.join(workdir, "bundle")
    return os.path.abspath(bundle)


def _remove(workdir: str) -> None:
    if os.path.exists(workdir):
        import shutil

        shutil.rmtree(workdir, ignore_errors=True)


def _report_death(options: Dict[str, Any], reason: str) -> None:
    """Reports to the master that the agent is dead, so that the master need not wait until the lease ends."""
    from ..portable.wire.frame_link import LinkLost, Rejected, dial

    try:
        link = dial(read_credentials(options["credentials"]), REPORT_TIMEOUT_S)
        link.connection.settimeout(REPORT_TIMEOUT_S)
        link.send(["gone", options["worker"], reason], [])
        link.flush()
        link.close()
    except (BadCredentials, LinkLost, Rejected, OSError) as error:
        print_error("could not report to the master: %s" % error)
