"""Writes the job script and start.sh of a pilot. ``start.sh`` finds a Python and starts the agent.

Neither script contains a key. The credentials are in a separate file that only its owner can read.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TypeVar

from pilotfish.backends.interface import PilotBatch
from pilotfish.model.environment import SECRET
from pilotfish.model.site import Site

Text = TypeVar("Text")

MARGIN_S = 20.0
"""An agent ends this many seconds before the end of the walltime, so that there is time to send its results."""
NOTE_START = "export PILOTFISH_STARTED=$(date +%s)"
"""Shell line that saves the time at which the pilot starts. It comes before the set-up lines of the site, because the walltime includes the
time of these lines."""
NO_PYTHON = 43
"""Exit status of ``start.sh`` if it finds no suitable Python."""

PYTHONS = """python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 python \\
    /usr/local/bin/python3 /opt/*/bin/python3"""
"""Commands and paths that are tried if the configured Python does not work."""

START = f"""\
#!/bin/sh
# Starts a Pilotfish agent. Arguments: credentials, agent, and options of the agent.
credentials=$1; agent=$2; shift 2
good='import sys; sys.exit(sys.version_info < (3, 8))'
for python in "$PILOTFISH_PYTHON" {PYTHONS}; do
  if "$python" -c "$good" 2>/dev/null; then
    exec "$python" "$agent" --credentials "$credentials" "$@"
  elif [ -n "$python" ] && [ "$python" = "$PILOTFISH_PYTHON" ]; then
    echo "pilotfish: $python, which was named, is no Python of 3.8 or later on $(uname -n); another one is looked for" >&2
  fi
done
echo "pilotfish: no python3 of 3.8 or later on $(uname -n): tried $PILOTFISH_PYTHON python3 and its versions in PATH=$PATH" >&2
exit {NO_PYTHON}
"""


def requested(*choices: tuple[object, Text]) -> list[Text]:
    """Gets (value, text) pairs. Returns the texts whose value is not 0 and not empty."""
    return [text for value, text in choices if value]


def agent_options(site: Site, batch: PilotBatch) -> list[str]:
    size = batch.size
    options = [
        *requested(
            (size.cores, ("--cores", f"{size.cores:g}")),
            (size.memory, ("--memory", str(size.memory))),
            (size.gpus, ("--gpus", f"{size.gpus:g}")),
            (size.walltime_s, ("--ends-in", f"{max(1.0, size.walltime_s - MARGIN_S):g}")),
            (site.poll_s, ("--poll", f"{site.poll_s:g}")),
            (site.scratch, ("--workdir", site.scratch)),
            (site.cache, ("--cache", site.cache)),
            (site.cache_size, ("--cache-bytes", str(site.cache_size))),
        ),
        *(("--storage", directory) for directory in site.storage),
        *requested((not site.peers, ("--no-peers",))),
        *(("--tag", f"{name}={value}") for name, value in sorted(site.tags.items())),
    ]
    return [word for option in options for word in option]


def pilot_script(site: Site, batch: PilotBatch, directives: Sequence[str], number: str = "1", on_every_node: str = "") -> str:
    """Returns the job script of a pilot. ``number``: shell expression for the number of the pilot. ``on_every_node``: command that starts a
    program on each node, such as ``srun``; it is used only if a pilot has several nodes."""
    lines = ["#!/bin/sh", *directives, NOTE_START]
    if secrets := [name for name in site.environment if SECRET.search(name)]:
        lines.append(f"unset {' '.join(secrets)}")  # only the commands of the site need secrets, but some systems pass them on to jobs
    lines += site.setup
    if site.python:
        lines.append(f"export PILOTFISH_PYTHON={shlex.quote(site.python)}")
    folder = shlex.quote(batch.folder)
    start = " ".join(
        [
            *([on_every_node] if on_every_node and batch.size.nodes > 1 else []),
            f"sh {folder}/start.sh {folder}/{number}.json {shlex.quote(batch.bundle)}",
            *map(shlex.quote, agent_options(site, batch)),
        ]
    )
    return "\n".join([*lines, f"exec {start}", ""])
