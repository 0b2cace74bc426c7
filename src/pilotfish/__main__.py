"""``python -m pilotfish`` is ``pilotfish``."""

from __future__ import annotations

from pilotfish.cli.main import main

main()
