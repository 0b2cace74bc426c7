"""Builds the one-file agent archive: agent, portable code and cloudpickle. Equal source files give equal archives.

The archive omits comments and docstrings of Pilotfish. Line numbers in the archive and in tracebacks are the same as in the source.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from importlib.util import find_spec
from pathlib import Path

from pilotfish.errors import PilotfishError

MAX_BYTES = 200_000
PACKAGE = "pilotfish_agent"
_TEXT = re.compile(r'''#[^\n]*|"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'''', re.DOTALL)
"""A comment or a string."""
_EPOCH = (1980, 1, 1, 0, 0, 0)

# Old versions of Python must be able to run this part: it prints the message that Python is too old.
_MAIN = b"""\
import sys

if sys.version_info < (3, 8):
    found = sys.version_info[:2] + (sys.executable,)
    sys.stderr.write("pilotfish agent: this is Python %d.%d (%s); Python 3.8 or later is needed\\n" % found)
    sys.exit(2)

from pilotfish_agent.agent.__main__ import main

main()
"""


class BundleTooLarge(PilotfishError):
    """The archive is larger than allowed."""

    code = "P5100"


def bundle_content() -> bytes:
    files = {"__main__.py": _MAIN, f"{PACKAGE}/__init__.py": b""}
    for ours in ("agent", "portable"):
        found = _sources(f"pilotfish.{ours}", f"{PACKAGE}/{ours}")
        files.update({name: blank_comments(source.decode()).encode() for name, source in found.items()})
    files.update(_sources("cloudpickle", "cloudpickle"))  # its comments include its licence
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, files[name])
    content = buffer.getvalue()
    if len(content) > MAX_BYTES:
        raise BundleTooLarge(f"the agent's bundle has {len(content)} bytes; the maximum is {MAX_BYTES}")
    return content


def blank_comments(source: str) -> str:
    """Removes comments and docstrings. Every line of code keeps its line number.

    A docstring is a string in triple quotes that stands alone on its lines. The function uses a regular expression. The tokenizer of Python
    takes ten times as long and would delay every start.
    """
    pieces: list[str] = []
    copied, last_character = 0, ""
    for found in _TEXT.finditer(source):
        start, end = found.span()
        code = source[copied:start]
        last_character = code.rstrip()[-1:] or last_character
        text = found.group()
        if text.startswith("#"):
            pieces.append(code.rstrip(" \t"))
        elif (
            text.startswith('"""') and not source[source.rfind("\n", 0, start) + 1 : start].strip() and source[end : end + 1] in ("\n", "")
        ):
            # The body of a class or function must not be empty.
            pieces += [code + "pass" if last_character == ":" else code.rstrip(" \t"), "\n" * text.count("\n")]
        else:
            pieces += [code, text]
            last_character = text[-1]
        copied = end
    return "".join([*pieces, source[copied:]])


def _sources(package: str, inside: str) -> dict[str, bytes]:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise PilotfishError(f"the package {package} is not installed", "install Pilotfish again: pip install --force-reinstall pilotfish")
    root = Path(next(iter(spec.submodule_search_locations)))
    return {f"{inside}/{path.relative_to(root).as_posix()}": path.read_bytes() for path in sorted(root.rglob("*.py"))}


def bundle_name(content: bytes) -> str:
    return f"agent-{hashlib.sha256(content).hexdigest()[:16]}.pyz"
