"""Draws the plots of docs/explanation/policies.md and its subpages: ``python docs/plots/policies.py``. Takes a minute; reproducible.

Each Gantt chart is drawn by the command that its page shows, the bar chart by the command of the overview with all policies.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from pilotfish.cli.main import invoke

PAGES = Path(__file__).parents[1] / "explanation" / "policies"
IMAGES = PAGES.parent / "images"
COMPARED = re.compile(r"^\$ pilotfish (simulate(?:.*\\\n> )*.*)--policy \S+ --seeds 2$", re.MULTILINE)
COMMAND = re.compile(r"^\$ pilotfish (simulate(?:.*\\\n> )*.*--gantt \S+)$", re.MULTILINE)


def main() -> None:
    os.chdir(IMAGES)
    for page in sorted(PAGES.glob("*.md")):
        for found in COMMAND.finditer(page.read_text()):
            print(page.name, flush=True)
            assert invoke(words_of(found[1])) == 0, page
    found = COMPARED.search(PAGES.with_suffix(".md").read_text())
    assert found is not None
    assert invoke([*words_of(found[1]), "--policy", "all", "--seeds", "10", "--plot", "policies.svg"]) == 0


def words_of(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n> ", ""))


if __name__ == "__main__":
    main()
