"""Runs the agent in its own process. The process first forks the slot server. Then it reads the options of the agent from the
supervisor."""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

from ..portable.failures import describe_limit, is_limit
from .slots.slot_server import start_slot_server

READ_BYTES = 64 * 1024


def run_agent(supervisor_pipe: int, bundle: str) -> NoReturn:
    """Runs the agent. ``supervisor_pipe``: pipe to which the supervisor writes the options of the agent, as one line of JSON. The pipe is
    closed only when the supervisor ends.

    ``bundle``: the directory with cloudpickle; "" if cloudpickle is installed.
    """
    os.set_inheritable(supervisor_pipe, False)
    try:
        server = start_slot_server(bundle)
    except OSError as error:
        print("pilotfish agent: cannot start: %s" % (describe_limit(error) if is_limit(error) else error), file=sys.stderr, flush=True)
        sys.exit(1)
    # The agent imports its modules after the fork, so that the slot server does not have these modules.
    from .node.agent_loop import main

    text = b""
    while not text.endswith(b"\n"):
        piece = os.read(supervisor_pipe, READ_BYTES)
        if not piece:
            sys.exit(0)
        text += piece
    options = json.loads(text)
    if options.get("log"):
        write_to_log(options["log"])
    options["supervisor_pipe"] = supervisor_pipe
    main(options, server)


def write_to_log(path: str) -> None:
    """Redirects standard output and standard error to a log."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
