"""Zips the agent into the one file that travels to a node."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_EPOCH = (2020, 1, 1, 0, 0, 0)
"""Every entry has the same time, so that the same code makes the same file."""


def build_bundle(directory: Path) -> Path:
    """The agent as one ``.pyz`` in the directory; made only if this version of it is not there yet."""
    content = bundle_bytes()
    target = directory / f"agent-{hashlib.sha256(content).hexdigest()[:16]}.pyz"
    if not target.exists():
        scratch = target.with_suffix(f".{os.getpid()}")
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(scratch, target)
    return target


@cache
def bundle_bytes() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_members()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _members() -> list[tuple[str, Path]]:
    """The agent's own modules, and cloudpickle, whose pickles need it to be read."""
    agent = Path(__file__).parent.parent / "agent"
    members = [("__main__.py", agent / "__main__.py")]
    members += [(f"pilotfish_agent/{path.name}", path) for path in agent.glob("*.py")]
    spec = find_spec("cloudpickle")
    assert spec is not None and spec.submodule_search_locations
    members += [(f"cloudpickle/{path.name}", path) for path in Path(spec.submodule_search_locations[0]).glob("*.py")]
    return members
