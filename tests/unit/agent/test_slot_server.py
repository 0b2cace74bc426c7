"""Tests that a slot server that cannot start says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from pilotfish.agent.slots.slot_server import start_slot_server
server = start_slot_server(sys.argv[1])
os.waitpid(server.pid, 0)
"""


def test_a_server_that_cannot_import_its_modules_says_why(tmp_path: Path) -> None:
    (tmp_path / "cloudpickle.py").write_text("raise ImportError('it is broken')\n")
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert "ImportError: it is broken" in ended.stderr
