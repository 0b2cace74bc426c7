"""Starts the supervisor, the agent, a slot or the relay.

Each of them imports only the modules that it needs, because a node may start hundreds of slots at once.
"""

from __future__ import annotations

import sys


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["slot"]:
        # Modules of the bundle must not hide modules of the user.
        sys.path[:] = [path for path in sys.path if path != sys.argv[0]]
        from .slots.slot import main as run_slot

        run_slot(arguments[1])
    elif arguments[:1] == ["agent"]:
        from .node.agent_loop import main as run_agent

        run_agent(arguments[1])
    elif arguments[:1] == ["relay"]:
        from .relay import main as run_relay

        run_relay(arguments[1:])
    else:
        from .supervisor import main as run_supervisor

        run_supervisor(arguments)


if __name__ == "__main__":
    main()
