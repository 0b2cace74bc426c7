"""The agent's archive as a file."""

from __future__ import annotations

from pathlib import Path

from pilotfish.master.agent_bundle import bundle_content, bundle_name


def build_bundle(directory: Path) -> Path:
    """Write the archive into a directory and return its path."""
    path = directory / bundle_name(bundle_content())
    path.write_bytes(bundle_content())
    return path
