"""Runs the command line as ``python -m pilotfish``."""

from __future__ import annotations

from pilotfish.cli.main import main

main()
