"""Emulates ``pip install FOLDER`` without a network: builds the wheel of a folder of modules and has the real pip install it.

The build backend that the folder's ``pyproject.toml`` names cannot be fetched here. It would put the same into the wheel: the modules of
the folder, and the entry points that the file declares.

    python -m tests.support.offline_pip install TARGET FOLDER
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path


def build_wheel(folder: Path, into: Path) -> Path:
    """Build the wheel of all modules in ``folder``, with the name, version and entry points of its ``pyproject.toml``."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    groups = project.get("entry-points", {})
    entries = "".join(f"[{group}]\n" + "".join(f"{name} = {to}\n" for name, to in of.items()) + "\n" for group, of in groups.items())
    files = {path.name: path.read_text() for path in sorted(folder.glob("*.py"))}
    files |= {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{stem}.dist-info/entry_points.txt": entries,
    }
    files[f"{stem}.dist-info/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{stem}.dist-info/RECORD"))
    wheel = into / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def install(folder: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        wheel = build_wheel(folder, Path(scratch))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--upgrade"]
        subprocess.run([*command, "--target", str(target), str(wheel)], check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    word, to, source = sys.argv[1:]
    assert word == "install", f"only pip install is known here, not pip {word}"
    install(Path(source), Path(to))
