"""Starts the supervisor, the agent or the relay.

The process imports only the modules that it needs, because a node can start many of these processes at once.
"""

from __future__ import annotations

import sys


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["agent"]:
        from .agent_process import run_agent

        run_agent(int(arguments[1]), bundle=sys.argv[0])
    elif arguments[:1] == ["local"]:
        from .local_start import main as run_local

        run_local()
    elif arguments[:1] == ["relay"]:
        from .relay import main as run_relay

        run_relay(arguments[1:])
    else:
        from .supervisor import main as run_supervisor

        run_supervisor(arguments)


if __name__ == "__main__":
    main()
