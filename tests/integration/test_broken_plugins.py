"""Starts real masters with plug-ins that fail, and with an old setting. Their client shows the reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotfish.client.master_client import MasterClient
from pilotfish.client.pools import PoolHandle
from pilotfish.errors import ConnectionFailed, PilotfishError
from pilotfish.store.pool_directory import PoolDirectory
from tests.conftest import PATIENCE_S

RAISING = """
from pilotfish.policies.dispatcher import workqueue
def Policy():
    policy = workqueue()
    policy.describe = describe
    return policy
def describe():
    raise ValueError("no\\nidea")
"""


@pytest.fixture
def pool(pilotfish_home: Path) -> PoolHandle:
    return PoolHandle(PoolDirectory(pilotfish_home / "pools" / "test").make().directory, {"local_cores": 1})


@pytest.fixture
def plugin(tmp_path: Path, pilotfish_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module of an installed policy, which the settings name. Tests write its code."""
    metadata = tmp_path / "packages" / "my_policy-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "entry_points.txt").write_text("[pilotfish.policies]\nmine = my_policy:Policy\n")
    monkeypatch.setenv("PYTHONPATH", f"{metadata.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    (pilotfish_home / "config.toml").write_text('[pool]\npolicy = "mine"\n')
    return metadata.parent / "my_policy.py"


@pytest.mark.parametrize(("code", "reason"), [("import nothing_like_it", "ModuleNotFoundError"), ("exit(3)", "SystemExit: 3")])
def test_a_policy_that_cannot_be_imported_is_told_with_its_fix_and_code(pool: PoolHandle, plugin: Path, code: str, reason: str) -> None:
    plugin.write_text(code)
    with pytest.raises(PilotfishError, match="did not start: the policy 'mine' cannot be loaded") as caught:
        pool.start()
    assert reason in str(caught.value) and "of the distribution my-policy" in str(caught.value)
    assert (caught.value.code, caught.value.hint) == ("P1200", "install it anew, or remove it: pip uninstall my-policy")


def test_a_policy_that_raises_while_the_master_runs_is_named(pool: PoolHandle, plugin: Path) -> None:
    plugin.write_text(RAISING)
    pool.start()
    client = MasterClient.connect(pool.directory, pool.start)
    with pytest.raises(ConnectionFailed, match="forecasts: the connection broke 3 times") as caught:
        client.ask("forecasts")
    assert str(caught.value).endswith(f"; the master ended with ValueError: no idea ({plugin}, line 8)")
    assert client.ask("status")["runs"] == []
    assert not PoolDirectory(pool.directory).crash.exists(), "the next master removed it"
    client.ask("stop", now=True)
    client.close()
    assert pool.wait_until_stopped(PATIENCE_S) == []


def test_the_note_about_an_old_setting_reaches_the_client(
    pool: PoolHandle, pilotfish_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (pilotfish_home / "config.toml").write_text("[pool]\nworkers = 1\n")
    pool.start()
    assert capfd.readouterr().err == f"note: {pilotfish_home}/config.toml: workers is now local_cores\n"
    client = MasterClient.connect(pool.directory)
    client.ask("stop", now=True)
    client.close()
    assert pool.wait_until_stopped(PATIENCE_S) == []
