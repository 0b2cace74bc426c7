"""Emulates ``pip install FOLDER`` without a network: pip builds the folder with the hatchling of this environment.

python -m tests.support.offline_pip install TARGET FOLDER
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OFFLINE = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation", "--upgrade")


def install(folder: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", *OFFLINE, "--target", str(target), str(folder)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    word, to, source = sys.argv[1:]
    assert word == "install", f"only pip install is known here, not pip {word}"
    install(Path(source), Path(to))
