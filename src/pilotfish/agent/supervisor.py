"""The command line of an agent, and its supervisor: the process that a person or a batch system starts.

It starts the agent proper and waits. If the agent dies, it ends everything that the agent left, tells the master so, and goes; if it dies
itself, the agent notices and does the same.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, NoReturn

from ..portable.failures import describe_limit, is_limit
from ..portable.processes import NOTICES, become_subreaper, kill_descendants
from ..portable.wire.handshake import BadCredentials, read_credentials
from . import VERSION

USAGE_ERROR = 2
GONE_TIMEOUT_S = 5.0
MOST_LATE_S = 86400.0


def main(words: List[str]) -> NoReturn:
    sys.exit(supervise(vars(_parse(words))))


def complain(message: str) -> None:
    print("pilotfish agent: " + message, file=sys.stderr, flush=True)


def _parse(words: List[str]) -> Any:
    import argparse

    parser = argparse.ArgumentParser(prog="agent.pyz", description="A Pilotfish agent: joins a master and runs its tasks on this machine.")
    parser.add_argument("--credentials", required=True, metavar="FILE", help="where the master is and the key for it (mode 0600)")
    parser.add_argument("--worker", metavar="NAME", help="the name to join under (default: made from the host name)")
    parser.add_argument("--cores", type=float, metavar="N", help="cores to offer (default: all)")
    parser.add_argument("--memory", type=float, metavar="BYTES", help="memory to offer (default: all)")
    parser.add_argument("--gpus", type=float, metavar="N", help="GPUs to offer (default: those found)")
    parser.add_argument("--resource", action="append", default=[], type=_amount, metavar="NAME=AMOUNT", help="something else to offer")
    parser.add_argument("--tag", action="append", default=[], type=_pair, metavar="K=V", help="a label that policies may ask for")
    parser.add_argument("--share", metavar="DIR", default="", help="where large payloads lie, if the master is on this machine")
    parser.add_argument("--workdir", metavar="DIR", help="where to put what tasks leave (default: the place for temporary files)")
    parser.add_argument("--cache", metavar="DIR", help="where contents are kept between agents (default: beside the working directory)")
    parser.add_argument("--cache-bytes", type=float, metavar="BYTES", help="how large it may grow (default: half of what is free)")
    parser.add_argument("--storage", action="append", default=[], metavar="DIR", help="where contents or input files may lie already")
    parser.add_argument("--no-peers", action="store_true", help="have nothing to do with other agents")
    parser.add_argument("--home", metavar="DIR", default="", help=argparse.SUPPRESS)
    parser.add_argument("--ends-in", type=float, metavar="SECONDS", help="this machine is taken away after so long")
    parser.add_argument("--poll", type=float, default=0.0, metavar="SECONDS", help="do not stay connected, call so often")
    parser.add_argument("--stopped-after", type=float, default=10.0, metavar="SECONDS", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=VERSION)
    return parser.parse_args(words)


def _pair(text: str) -> List[str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise ValueError(text)
    return [name, value]


def _amount(text: str) -> List[Any]:
    name, value = _pair(text)
    return [name, float(value)]


def supervise(options: Dict[str, Any]) -> int:
    options["credentials"] = os.path.abspath(options["credentials"])
    try:
        options["pilot"] = read_credentials(options["credentials"]).pilot
        workdir = tempfile.mkdtemp(prefix="pilotfish-", dir=options["workdir"])
    except BadCredentials as error:
        complain(str(error))
        return USAGE_ERROR
    except OSError as error:
        complain("cannot make a working directory in %s: %s" % (options["workdir"] or tempfile.gettempdir(), error.strerror))
        return USAGE_ERROR
    if not options["worker"]:
        # A pilot may have several nodes, and may be started anew by its batch system while the old agent lives on.
        node, pilot = os.uname().nodename.partition(".")[0], options["pilot"]
        options["worker"] = "%s.%s.%d" % (pilot, node, os.getpid()) if pilot else "%s-%s" % (node, os.urandom(3).hex())
    beside = os.path.join(os.path.dirname(workdir), "pilotfish-cache-%d" % os.getuid())
    options["cache"] = os.path.expanduser(options["cache"] or "") or beside
    options.update(workdir=workdir, bundle=_unpack(workdir), supervisor=os.getpid(), started=time.monotonic() - _late_s())
    become_subreaper()
    life_read, life_write = os.pipe()
    options["life"] = life_read
    words = [sys.executable, options["bundle"], "agent", json.dumps(options)]
    try:
        agent = subprocess.Popen(words, pass_fds=[life_read], stdin=subprocess.DEVNULL)
    except OSError as error:
        complain("the agent cannot be started: %s" % (describe_limit(error) if is_limit(error) else error))
        _remove(workdir)
        return 1
    os.close(life_read)
    for number in (*NOTICES, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: agent.send_signal(signal.SIGTERM))
    try:
        status = agent.wait()
        kill_descendants()
    finally:
        _remove(workdir)
    os.close(life_write)
    if status < 0 or status == 1:
        reason = "the agent was ended by signal %d" % -status if status < 0 else "the agent failed"
        complain(reason)
        _tell_gone(options, reason)
        return 1
    return status


def _late_s() -> float:
    """How long ago the job began that started us: its lines before us may have taken a while of its time."""
    try:
        late = time.time() - float(os.environ.pop("PILOTFISH_STARTED", "nan"))
    except ValueError:
        return 0.0
    return late if 0.0 < late < MOST_LATE_S else 0.0


def _unpack(workdir: str) -> str:
    """Slots start faster from files than from an archive: compiled modules are kept between them."""
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


def _tell_gone(options: Dict[str, Any], reason: str) -> None:
    """The master need not wait for a silence: whatever ran here has ended."""
    from ..portable.wire.frame_link import LinkLost, Rejected, dial

    try:
        link = dial(read_credentials(options["credentials"]), GONE_TIMEOUT_S)
        link.connection.settimeout(GONE_TIMEOUT_S)
        link.send(["gone", options["worker"], reason], [])
        link.flush()
        link.close()
    except (BadCredentials, LinkLost, Rejected, OSError) as error:
        complain("could not tell the master: %s" % error)
