"""Where the processes of an agent begin: the supervisor (what people start), the agent proper, and its slots; and a relay,
through which agents reach a master that they cannot see.

Each imports no more than it needs: a node may start hundreds of slots at once.
"""

from __future__ import annotations

import sys


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["slot"]:
        # Nothing of ours may shadow a module of the user's.
        sys.path[:] = [path for path in sys.path if path != sys.argv[0]]
        from .slots.slot import main as run_slot

        run_slot(words[1])
    elif words[:1] == ["agent"]:
        from .node.agent_loop import main as run_agent

        run_agent(words[1])
    elif words[:1] == ["relay"]:
        from .relay import main as run_relay

        run_relay(words[1:])
    else:
        from .supervisor import main as run_supervisor

        run_supervisor(words)


if __name__ == "__main__":
    main()
